//! Both styles keep the contract: on a replica set, on a standalone, and as a user with the
//! documented role only.

mod role;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use distlock_api::{Capabilities, LockAdmin, LockKey, LockProvider};
use distlock_conformance::{Arena, Client, DisturbedStore, Fixture, FixtureError, Hook, Profile, async_trait};
use distlock_conformance_mongo::{ClusterArena, MongoServer, Topology, run};
use distlock_engine::{LeaseStore, QueueOptions};
use distlock_mongo::{DocumentLocks, DocumentLocksBuilder, MongoOnce, MongoProvider, MongoProviderBuilder, MongoStore};
use distlock_recipes::once::OnceProvider;
use mongodb::bson::{Document, doc};
use mongodb::options::ClientOptions;
use tokio::sync::{Mutex, OnceCell};

fn main() -> ExitCode {
    let servers = [
        (Topology::ReplicaSet, Access::Open),
        (Topology::Standalone, Access::Open),
        (Topology::ReplicaSet, Access::Role),
    ];
    let fixtures = [Style::Upsert, Style::Field].into_iter().flat_map(|style| servers.map(|server| (style, server)));
    run(fixtures.map(|(style, (topology, access))| Box::new(Mongo::on(style, topology, access)) as Box<dyn Fixture>))
}

/// The place of the locks.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Style {
    /// In a lock collection.
    Upsert,
    /// In a field of documents, which are inserted by their acquisition, because the suite chooses
    /// its keys.
    Field,
}

/// The faults of a cluster. MongoDB cannot block one record for all its clients.
const HOOKS: [Hook; 6] = [Hook::Cut, Hook::Stall, Hook::Delay, Hook::Lag, Hook::LoseReplies, Hook::Restart];
const COLLECTION: &str = "locks";
/// Some checks leave little of a ttl, by a large margin or a short time of a ticket.
const MIN_TTL: Duration = Duration::from_millis(10);
/// The collection of the outcomes of work that is done once.
const OUTCOMES: &str = "once";

impl Style {
    fn name(self) -> &'static str {
        match self {
            Self::Upsert => "upsert",
            Self::Field => "field",
        }
    }

    fn store(self, client: &mongodb::Client, database: &str) -> Result<MongoStore, FixtureError> {
        Ok(match self {
            Self::Upsert => self.upsert(client, database).build_store()?,
            Self::Field => self.field(client, database).build_store()?,
        })
    }

    fn provider(self, client: &mongodb::Client, database: &str) -> Result<MongoProvider, FixtureError> {
        Ok(match self {
            Self::Upsert => self.upsert(client, database).build()?,
            Self::Field => self.field(client, database).build()?.provider(),
        })
    }

    fn upsert(self, client: &mongodb::Client, database: &str) -> MongoProviderBuilder {
        MongoProvider::builder(client.database(database)).collection(COLLECTION).min_ttl(MIN_TTL)
    }

    fn field(self, client: &mongodb::Client, database: &str) -> DocumentLocksBuilder<Document> {
        let documents = client.database(database).collection(COLLECTION);
        let locks = DocumentLocks::builder(&documents).min_ttl(MIN_TTL);
        locks.default_document(&doc! { "state": "$new", "lines": [1, 2, 3] })
    }
}

/// The user of the locks.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Access {
    /// The server has no access control.
    Open,
    /// A user with the privileges of the guide, and no others.
    Role,
}

/// One style on a server of one kind.
struct Mongo {
    style: Style,
    topology: Topology,
    access: Access,
    database: String,
    /// `None` after it was stopped.
    server: Mutex<Option<MongoServer>>,
    started: OnceCell<Started>,
}

struct Started {
    uri: String,
    admin: mongodb::Client,
}

impl Mongo {
    fn on(style: Style, topology: Topology, access: Access) -> Self {
        let database = format!("distlock_{}_{:016x}", style.name(), fastrand::u64(..));
        Self { style, topology, access, database, server: Mutex::default(), started: OnceCell::new() }
    }

    fn started(&self) -> &Started {
        self.started.get().expect("the suite starts a fixture before it uses it")
    }

    /// Creates the user with the documented role, and returns its connection string.
    async fn restricted(&self, uri: &str, admin: &mongodb::Client) -> Result<String, FixtureError> {
        let on_collection = match self.style {
            Style::Upsert => role::OF_RECORDS.to_vec(),
            // The suite's documents are inserted from a default.
            Style::Field => [&role::OF_DOCUMENTS[..], &["insert"]].concat(),
        };
        let (user, password) = (&self.database, role::PASSWORD);
        let mut privileges = vec![(COLLECTION, on_collection), ("", role::OF_DATABASE.to_vec())];
        if self.style == Style::Upsert {
            privileges.push((OUTCOMES, role::OF_RECORDS.to_vec()));
        }
        role::create_user(admin, user, &self.database, &privileges).await?;
        let (_, server) = uri.split_once('@').ok_or("the connection string has no user")?;
        Ok(format!("mongodb://{user}:{password}@{server}"))
    }
}

/// A connection of its own, as in another process. It is there: on a busy machine it may take
/// longer than a request, and the store's error would be right.
async fn client(uri: &str, app: &str) -> Result<mongodb::Client, FixtureError> {
    let mut options = ClientOptions::parse(uri).await?;
    // The faults of an arena recognise their clients by this one.
    options.app_name.get_or_insert_with(|| app.to_owned());
    let client = mongodb::Client::with_options(options)?;
    client.database("admin").run_command(doc! { "ping": 1 }).await?;
    Ok(client)
}

#[async_trait]
impl Fixture for Mongo {
    fn name(&self) -> &str {
        match (self.style, self.topology, self.access) {
            (Style::Upsert, _, Access::Role) => "mongo-upsert-least-privilege",
            (Style::Field, _, Access::Role) => "mongo-field-least-privilege",
            (Style::Upsert, Topology::ReplicaSet, Access::Open) => "mongo-upsert-replica-set",
            (Style::Upsert, Topology::Standalone, Access::Open) => "mongo-upsert-standalone",
            (Style::Field, Topology::ReplicaSet, Access::Open) => "mongo-field-replica-set",
            (Style::Field, Topology::Standalone, Access::Open) => "mongo-field-standalone",
        }
    }

    fn profile(&self) -> Profile {
        let mut promised = Capabilities::default();
        promised.expiry = true;
        promised.minimum_hold = true;
        // Many times the duration of an operation, also with three servers on two busy cores. Their
        // disks stall for a second at times, and a lease that is renewed too late is correctly
        // lost.
        let ttl = Duration::from_secs(3);
        promised.fair = true;
        promised.shared = true;
        promised.permits = true;
        promised.push = self.topology == Topology::ReplicaSet;
        let profile = Profile::new(promised).ttl(ttl).admin().owners().processes().purge().disturbed().store();
        // Work that is done once has a collection of its own, whatever the place of the locks.
        let profile = if self.style == Style::Upsert { profile.once() } else { profile };
        let is_first = (self.style, self.topology, self.access) == (Style::Upsert, Topology::ReplicaSet, Access::Open);
        let profile = if is_first { profile } else { profile.variant() };
        // Refused: a blocked record; without an arena, what damages one; without a change stream,
        // what needs it; and work that is done once.
        let (profile, refused, of_once) = match (self.topology, self.access) {
            (Topology::ReplicaSet, Access::Open) => (profile.lock_events().arena().hooks(HOOKS), 6, 24),
            // An arena has no access control.
            (Topology::ReplicaSet, Access::Role) => (profile.lock_events(), 19, 21),
            (Topology::Standalone, _) => (profile, 36, 21),
        };
        profile.expected_refusals(if self.style == Style::Upsert { refused } else { refused + of_once })
    }

    async fn start(&self) -> Result<(), FixtureError> {
        let server = match self.access {
            Access::Open => MongoServer::start(self.topology).await?,
            Access::Role => MongoServer::start_with_access_control(self.topology).await?,
        };
        let mut uri = server.uri().to_owned();
        *self.server.lock().await = Some(server);
        let admin = mongodb::Client::with_uri_str(&uri).await?;
        if self.access == Access::Role {
            uri = self.restricted(&uri, &admin).await?;
        }
        self.started.set(Started { uri, admin }).map_err(|_| "started twice".into())
    }

    async fn clients(&self, count: usize) -> Result<Vec<Client>, FixtureError> {
        let Started { uri, admin } = self.started();
        let records = admin.database(&self.database).collection(COLLECTION);
        let mut clients = Vec::new();
        for _ in 0..count {
            let store = Arc::new(self.style.store(&client(uri, "client").await?, &self.database)?);
            let (own, records) = (store.clone(), records.clone());
            let store = DisturbedStore::new(store).with_purge(move |key| purge(own.clone(), records.clone(), key));
            // Longer than the disks of busy test machines stall. A waiter that misses its claim
            // goes behind the others.
            let queue = QueueOptions::new().claim(Duration::from_secs(3));
            clients.push(Client::of_disturbed(store, |engine| engine.queue(queue))?);
        }
        Ok(clients)
    }

    async fn once_clients(&self, count: usize) -> Result<Vec<Arc<dyn OnceProvider>>, FixtureError> {
        let mut clients = Vec::new();
        for _ in 0..count {
            let client = client(&self.started().uri, "once").await?;
            let once = MongoOnce::builder(client.database(&self.database)).collection(OUTCOMES).build()?;
            clients.push(Arc::new(once) as Arc<dyn OnceProvider>);
        }
        Ok(clients)
    }

    async fn store(&self) -> Result<Arc<dyn LeaseStore>, FixtureError> {
        let client = client(&self.started().uri, &format!("store-{:016x}", fastrand::u64(..))).await?;
        Ok(Arc::new(self.style.store(&client, &self.database)?))
    }

    fn address(&self) -> Option<String> {
        Some(format!("{} {}", self.database, self.started().uri))
    }

    async fn connect(&self, address: &str) -> Result<Arc<dyn LockProvider>, FixtureError> {
        let (database, uri) = address.split_once(' ').ok_or("no database in the address")?;
        Ok(Arc::new(self.style.provider(&client(uri, "child").await?, database)?))
    }

    async fn arena(&self) -> Result<Box<dyn Arena>, FixtureError> {
        let database = self.database.clone();
        let arena = ClusterArena::start(move |uri| format!("{database} {uri}")).await?;
        Ok(Box::new(match self.style {
            Style::Upsert => arena.swept(&self.database, COLLECTION),
            // Nothing is ever removed.
            Style::Field => arena,
        }))
    }

    async fn store_at(&self, address: &str) -> Result<Arc<dyn LeaseStore>, FixtureError> {
        let (database, uri) = address.split_once(' ').ok_or("no database in the address")?;
        Ok(Arc::new(self.style.store(&client(uri, "store").await?, database)?))
    }

    async fn once_at(&self, address: &str) -> Result<Arc<dyn OnceProvider>, FixtureError> {
        let (database, uri) = address.split_once(' ').ok_or("no database in the address")?;
        let once = MongoOnce::builder(client(uri, "once").await?.database(database)).collection(OUTCOMES).build()?;
        Ok(Arc::new(once))
    }

    async fn stop(&self) {
        if let Some(started) = self.started.get() {
            // Only a server of the user survives the suite.
            let _ = started.admin.database(&self.database).drop().await;
        }
        if let Some(server) = self.server.lock().await.take() {
            server.stop().await;
        }
    }
}

/// The TTL index removes a record an hour after its expiry, or the end of its minimum hold. By then
/// the server's clock, from which tokens come, has advanced.
async fn purge(
    store: Arc<MongoStore>,
    records: mongodb::Collection<Document>,
    key: LockKey,
) -> Result<(), FixtureError> {
    if let Some(used) = store.inspect(&key).await? {
        return Err(format!("the record is in use: {used:?}").into());
    }
    let deleted = records.delete_one(doc! { "_id": key.as_str() }).await?;
    tokio::time::sleep(Duration::from_millis(5)).await;
    if deleted.deleted_count == 1 { Ok(()) } else { Err(format!("there is no record of {key:?}").into()) }
}
