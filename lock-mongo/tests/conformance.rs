//! Both styles keep the contract, on a replica set and on a standalone.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use distlock_api::{Capabilities, LockKey, LockProvider};
use distlock_conformance::{
    Arena, Client, Controls, DisturbedStore, Fixture, FixtureError, Hook, Operation, Profile, Pushes, SeenRenewal,
    async_trait,
};
use distlock_conformance_mongo::{ClusterArena, FailCommand, MongoServer, Topology, run};
use distlock_engine::{LeaseProvider, LeaseStore, QueueOptions};
use distlock_mongo::{DocumentLocks, DocumentLocksBuilder, MongoProvider, MongoProviderBuilder, MongoStore};
use mongodb::bson::{Document, doc};
use mongodb::options::ClientOptions;
use tokio::sync::{Mutex, OnceCell};

fn main() -> ExitCode {
    let topologies = [Topology::ReplicaSet, Topology::Standalone];
    let fixtures =
        [Style::Upsert, Style::Field].into_iter().flat_map(|style| topologies.map(|topology| (style, topology)));
    run(fixtures.map(|(style, topology)| Box::new(Mongo::on(style, topology)) as Box<dyn Fixture>))
}

/// Where the locks are.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Style {
    /// In a lock collection.
    Upsert,
    /// In documents, under a field of them. They are made when they are locked: the suite chooses
    /// its keys as it goes.
    Field,
}

/// What a cluster has. Nothing blocks one record of MongoDB for all who use it.
const HOOKS: [Hook; 4] = [Hook::Cut, Hook::Stall, Hook::Delay, Hook::Restart];
const COLLECTION: &str = "locks";

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
        MongoProvider::builder(client.database(database)).collection(COLLECTION)
    }

    fn field(self, client: &mongodb::Client, database: &str) -> DocumentLocksBuilder<Document> {
        let documents = client.database(database).collection(COLLECTION);
        DocumentLocks::builder(&documents).default_document(&doc! { "state": "$new", "lines": [1, 2, 3] })
    }
}

/// One style on a server of one kind.
struct Mongo {
    style: Style,
    topology: Topology,
    database: String,
    /// Taken out when it is stopped.
    server: Mutex<Option<MongoServer>>,
    started: OnceCell<Started>,
}

struct Started {
    uri: String,
    admin: mongodb::Client,
    fail: FailCommand,
}

impl Mongo {
    fn on(style: Style, topology: Topology) -> Self {
        let database = format!("distlock_{}_{:016x}", style.name(), fastrand::u64(..));
        Self { style, topology, database, server: Mutex::default(), started: OnceCell::new() }
    }

    fn started(&self) -> &Started {
        self.started.get().expect("the suite starts a fixture before it uses it")
    }
}

/// A connection of its own, as another process has it.
async fn client(uri: &str, app: &str) -> Result<mongodb::Client, FixtureError> {
    let mut options = ClientOptions::parse(uri).await?;
    // The one of an arena is how its faults know their clients.
    options.app_name.get_or_insert_with(|| app.to_owned());
    Ok(mongodb::Client::with_options(options)?)
}

#[async_trait]
impl Fixture for Mongo {
    fn name(&self) -> &str {
        match (self.style, self.topology) {
            (Style::Upsert, Topology::ReplicaSet) => "mongo-upsert-replica-set",
            (Style::Upsert, Topology::Standalone) => "mongo-upsert-standalone",
            (Style::Field, Topology::ReplicaSet) => "mongo-field-replica-set",
            (Style::Field, Topology::Standalone) => "mongo-field-standalone",
        }
    }

    fn profile(&self) -> Profile {
        let mut promised = Capabilities::default();
        promised.expiry = true;
        promised.minimum_hold = true;
        // Many times what an operation takes, also with three servers on two busy cores: their
        // disks stall for a second at times, and a lease that is renewed too late is lost, as it
        // must be.
        let ttl = Duration::from_secs(3);
        promised.fair = true;
        promised.push = self.topology == Topology::ReplicaSet;
        let profile = Profile::new(promised).ttl(ttl).admin().owners().processes().purge().disturbed().store();
        match self.topology {
            Topology::ReplicaSet => profile.lock_events().arena().hooks(HOOKS),
            // Refused: what needs a change stream.
            Topology::Standalone => profile.expected_refusals(7),
        }
    }

    async fn start(&self) -> Result<(), FixtureError> {
        let server = MongoServer::start(self.topology).await?;
        let uri = server.uri().to_owned();
        *self.server.lock().await = Some(server);
        let admin = mongodb::Client::with_uri_str(&uri).await?;
        let fail = FailCommand::new(admin.clone());
        self.started.set(Started { uri, admin, fail }).map_err(|_| "started twice".into())
    }

    async fn clients(&self, count: usize) -> Result<Vec<Client>, FixtureError> {
        let Started { uri, admin, fail } = self.started();
        let mut clients = Vec::new();
        for _ in 0..count {
            let app = format!("client-{:016x}", fastrand::u64(..));
            let store = self.style.store(&client(uri, &app).await?, &self.database)?;
            let disturbed = DisturbedStore::new(Arc::new(store));
            // Longer than the disks of busy test machines stall; who misses its claim stands behind
            // the others.
            let queue = QueueOptions::new().claim(Duration::from_secs(3));
            let provider = LeaseProvider::builder(Arc::new(disturbed.clone())).queue(queue).build()?;
            let records = admin.database(&self.database).collection(COLLECTION);
            let controls = OfClient { disturbed, fail: fail.of(app), fails: AtomicBool::new(false), records };
            clients.push(Client::new(Arc::new(provider)).with_controls(controls));
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

    async fn stop(&self) {
        if let Some(started) = self.started.get() {
            // Only a server of the user's outlives the suite.
            let _ = started.admin.database(&self.database).drop().await;
        }
        if let Some(server) = self.server.lock().await.take() {
            server.stop().await;
        }
    }
}

/// What the suite may do to one client.
struct OfClient {
    disturbed: DisturbedStore,
    /// What fails fails at the server.
    fail: FailCommand,
    fails: AtomicBool,
    records: mongodb::Collection<Document>,
}

#[async_trait]
impl Controls for OfClient {
    async fn fail_next(&self, operation: Operation, times: u32) -> Result<(), FixtureError> {
        let command = match operation {
            Operation::Acquire | Operation::Release => "findAndModify",
            Operation::Renew => "update",
            other => return Err(format!("{other:?} is not known here").into()),
        };
        self.fails.store(true, Ordering::Relaxed);
        self.fail.fail_next(&[command], times).await
    }

    async fn lose_replies(&self, operation: Operation, times: u32) -> Result<(), FixtureError> {
        self.disturbed.lose_replies(operation, times).await
    }

    async fn delay_replies(&self, operation: Operation, times: u32, by: Duration) -> Result<(), FixtureError> {
        self.disturbed.delay_replies(operation, times, by).await
    }

    async fn cut_off(&self) -> Result<(), FixtureError> {
        self.disturbed.cut_off().await
    }

    async fn disturb_pushes(&self, pushes: Pushes) -> Result<(), FixtureError> {
        self.disturbed.disturb_pushes(pushes).await
    }

    async fn stall(&self, key: &LockKey) -> Result<(), FixtureError> {
        self.disturbed.stall(key).await
    }

    async fn requests(&self) -> Result<u64, FixtureError> {
        self.disturbed.requests().await
    }

    fn renewals(&self) -> Vec<SeenRenewal> {
        self.disturbed.renewals()
    }

    async fn end_faults(&self) -> Result<u64, FixtureError> {
        let hit = self.disturbed.end_faults().await?;
        if self.fails.swap(false, Ordering::Relaxed) { Ok(hit + self.fail.end().await?) } else { Ok(hit) }
    }

    /// The TTL index removes a record an hour after its expiry. By then the server's clock, from
    /// which tokens come, has moved on.
    async fn purge(&self, key: &LockKey) -> Result<(), FixtureError> {
        let deleted = self.records.delete_one(doc! { "_id": key.as_str() }).await?;
        tokio::time::sleep(Duration::from_millis(5)).await;
        if deleted.deleted_count == 1 { Ok(()) } else { Err(format!("there is no record of {key:?}").into()) }
    }
}
