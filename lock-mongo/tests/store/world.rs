//! The parts that all checks share.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use distlock_api::{AcquisitionId, FencingToken, LockAdmin, LockKey, ReleaseOutcome};
use distlock_conformance_mongo::Topology;
use distlock_engine::store::{
    Attempt, BusyReply, Claim, Grant, LeaseStore, ProviderId, QueueStanding, Release, Renewal, Reply, Standing, Ticket,
};
use distlock_mongo::mongodb::bson::{Document, doc};
use distlock_mongo::mongodb::event::EventHandler;
use distlock_mongo::mongodb::event::command::CommandEvent;
use distlock_mongo::mongodb::options::{ClientOptions, ServerApi, ServerApiVersion};
use distlock_mongo::mongodb::{Client, Collection};
use distlock_mongo::{MongoProvider, MongoStore};

pub(crate) const LONG: Duration = Duration::from_secs(60);
pub(crate) const SHORT: Duration = Duration::from_millis(120);

/// If this variable is set, the clients of the checks have the Stable API in its strict mode.
const STABLE_API: &str = "DISTLOCK_MONGODB_STABLE_API";

/// One server, and a client of it.
#[derive(Clone)]
pub(crate) struct World {
    pub(crate) topology: Topology,
    pub(crate) options: ClientOptions,
    pub(crate) client: Client,
    /// A client for commands that the Stable API lacks.
    pub(crate) operator: Client,
}

impl World {
    pub(crate) async fn new(uri: &str, topology: Topology) -> Self {
        let mut options = ClientOptions::parse(uri).await.expect("a connection string");
        let operator = Client::with_options(options.clone()).expect("a client");
        if std::env::var_os(STABLE_API).is_some() {
            let strict = ServerApi::builder().version(ServerApiVersion::V1).strict(true).deprecation_errors(true);
            options.server_api = Some(strict.build());
        }
        let client = Client::with_options(options.clone()).expect("a client");
        Self { topology, options, client, operator }
    }

    /// Makes another client of the same server.
    pub(crate) async fn connect(&self, change: impl FnOnce(&mut ClientOptions)) -> (Client, ClientOptions) {
        let mut options = self.options.clone();
        change(&mut options);
        (Client::with_options(options.clone()).expect("a client"), options)
    }

    /// Makes a store over a new collection.
    pub(crate) fn store(&self) -> MongoStore {
        self.store_on(&self.client, &random_name("locks"))
    }

    /// Makes such a store, and returns the name of the collection.
    pub(crate) fn named_store(&self) -> (MongoStore, String) {
        let name = random_name("locks");
        (self.store_on(&self.client, &name), name)
    }

    /// Makes two stores over a new collection, on clients of their own. Returns its name, too.
    pub(crate) async fn two_stores(&self) -> ([MongoStore; 2], String) {
        let ((store, name), (other, _)) = (self.named_store(), self.connect(|_| ()).await);
        let other = self.store_on(&other, &name);
        ([store, other], name)
    }

    pub(crate) fn store_on(&self, client: &Client, collection: &str) -> MongoStore {
        let builder = MongoProvider::builder_from_client(client).database("distlock_test").collection(collection);
        builder.build_store().expect("valid options")
    }

    /// Makes a provider over a collection.
    pub(crate) fn locks(&self, collection: &str) -> MongoProvider {
        MongoProvider::builder(self.client.database("distlock_test"))
            .collection(collection)
            .build()
            .expect("valid options")
    }

    /// Returns the collection of a store.
    pub(crate) fn raw(&self, collection: &str) -> Collection<Document> {
        self.client.database("distlock_test").collection(collection)
    }

    pub(crate) async fn admin(&self, command: Document) -> Document {
        self.operator.database("admin").run_command(command).await.expect("an admin command")
    }

    /// Makes a client that [`fail`](Self::fail) can hit alone, by the returned name.
    pub(crate) async fn client_of_app(&self) -> (Client, String) {
        let app = random_name("app");
        let (client, _) = self.connect(|options| options.app_name = Some(app.clone())).await;
        (client, app)
    }

    /// Makes a client that records what it sends.
    pub(crate) async fn recorded_client(&self) -> (Client, Sent) {
        let sent = Sent::default();
        let (client, _) = self.connect(|options| options.command_event_handler = Some(sent.handler())).await;
        (client, sent)
    }

    /// Makes a client that [`fail`](Self::fail) can hit alone, and that records what it sends.
    pub(crate) async fn recorded_client_of_app(&self) -> (Client, String, Sent) {
        let (app, sent) = (random_name("app"), Sent::default());
        let (client, _) = self
            .connect(|options| {
                options.app_name = Some(app.clone());
                options.command_event_handler = Some(sent.handler());
            })
            .await;
        (client, app, sent)
    }

    /// Makes a store on a client that [`fail`](Self::fail) can hit alone, by the returned name.
    /// Also returns the name of the collection.
    pub(crate) async fn store_of_app(&self) -> (MongoStore, String, String) {
        let ((client, app), name) = (self.client_of_app().await, random_name("locks"));
        (self.store_on(&client, &name), app, name)
    }

    /// Makes the next command of an application fail. A server has one such fail point: the check
    /// must run alone.
    pub(crate) async fn fail(&self, app: &str, command: &str, how: Document) {
        let mut data = doc! { "failCommands": [command], "appName": app };
        data.extend(how);
        self.admin(doc! { "configureFailPoint": "failCommand", "mode": { "times": 1 }, "data": data }).await;
    }
}

/// Returns the size of a document in BSON, in bytes.
pub(crate) fn size(document: &Document) -> usize {
    let mut bytes = Vec::new();
    document.to_writer(&mut bytes).expect("a document");
    bytes.len()
}

pub(crate) fn random_name(prefix: &str) -> String {
    format!("{prefix}_{:016x}", fastrand::u64(..))
}

pub(crate) fn key() -> LockKey {
    LockKey::new(random_name("key")).expect("a key")
}

pub(crate) fn id() -> AcquisitionId {
    ProviderId::random().acquisition_id()
}

/// Makes a new claim of a key.
pub(crate) fn claim(key: &LockKey) -> Claim {
    Claim::new(key.clone(), id())
}

/// Makes the same claim in another process.
pub(crate) fn twin(claim: &Claim) -> Claim {
    Claim::new(claim.key().clone(), claim.id().clone())
}

pub(crate) async fn try_once(store: &MongoStore, claim: &Claim, ttl: Duration) -> Reply {
    store.try_acquire(&Attempt::new(claim.clone(), ttl)).await.expect("an answer")
}

pub(crate) async fn granted(store: &MongoStore, claim: &Claim, ttl: Duration) -> Grant {
    match try_once(store, claim, ttl).await {
        Reply::Granted(grant) => grant,
        other => panic!("not granted: {other:?}"),
    }
}

pub(crate) async fn busy(store: &MongoStore, claim: &Claim) -> BusyReply {
    match try_once(store, claim, LONG).await {
        Reply::Busy(busy) => busy,
        other => panic!("not busy: {other:?}"),
    }
}

/// A ticket that outlives its check. A release grants it a long lease.
pub(crate) fn ticket() -> Ticket {
    Ticket::new(LONG, LONG, 64)
}

/// Returns the answer to an attempt that gets a ticket.
pub(crate) async fn queue_up(store: &MongoStore, attempt: &Attempt) -> BusyReply {
    match store.try_acquire(attempt).await.expect("an answer") {
        Reply::Busy(busy) if matches!(busy.standing, QueueStanding::Queued { .. }) => busy,
        other => panic!("not queued: {other:?}"),
    }
}

pub(crate) async fn queued(store: &MongoStore, claim: &Claim) -> BusyReply {
    queue_up(store, &Attempt::new(claim.clone(), LONG).with_ticket(ticket())).await
}

pub(crate) async fn release(store: &MongoStore, claim: &Claim) -> ReleaseOutcome {
    store.release(&Release::new(claim.clone())).await.expect("an answer")
}

pub(crate) async fn renew(store: &MongoStore, claim: &Claim, token: FencingToken, ttl: Duration) -> Standing {
    store.renew(&Renewal::lease(claim.clone(), token, ttl)).await.expect("an answer")
}

pub(crate) fn admin(store: &MongoStore) -> &dyn LockAdmin {
    store.extras().admin.expect("administration")
}

/// Waits until the key is open, by the server's clock.
pub(crate) async fn opened(store: &MongoStore, key: &LockKey) {
    while let Some(info) = admin(store).inspect(key).await.expect("an answer") {
        tokio::time::sleep(info.remaining.min(Duration::from_millis(20)).max(Duration::from_millis(1))).await;
    }
}

/// Ends the lease of a key, and those of all its holders, by the server's clock. No event is sent.
/// For checks whose calls must come before the end, however long the server pauses.
pub(crate) async fn end_lease(world: &World, collection: &str, key: &LockKey) {
    let ended = doc! { "$mergeObjects": ["$$this", { "expiresAt": "$$NOW" }] };
    let holders = doc! { "$cond": [
        { "$isArray": "$holders" },
        { "$map": { "input": "$holders", "in": ended } },
        "$$REMOVE",
    ] };
    let change = vec![doc! { "$set": { "expiresAt": "$$NOW", "holders": holders } }];
    let answer = world.raw(collection).update_one(doc! { "_id": key.as_str() }, change).await.expect("an answer");
    assert_eq!(answer.matched_count, 1, "{key} has no record");
}

/// Makes the ticket of a claim older, as if it had not been refreshed for this much longer.
pub(crate) async fn age_ticket(world: &World, collection: &str, claim: &Claim, by: Duration) {
    let by = i64::try_from(by.as_millis()).expect("a short time");
    let is_it = doc! { "$eq": ["$$this.id", { "$literal": claim.id().as_str() }] };
    let older = doc! { "$mergeObjects": ["$$this", { "seen": { "$subtract": ["$$this.seen", by] } }] };
    let queue = doc! { "$map": { "input": "$queue", "in": { "$cond": [is_it, older, "$$this"] } } };
    let filter = doc! { "_id": claim.key().as_str(), "queue.id": claim.id().as_str() };
    let change = vec![doc! { "$set": { "queue": queue } }];
    let answer = world.raw(collection).update_one(filter, change).await.expect("an answer");
    assert_eq!(answer.matched_count, 1, "the claim has no ticket");
}

/// The commands of a client, by name.
#[derive(Clone, Default)]
pub(crate) struct Sent(Arc<Mutex<Vec<Document>>>);

impl Sent {
    pub(crate) fn handler(&self) -> EventHandler<CommandEvent> {
        let sent = self.clone();
        EventHandler::callback(move |event: CommandEvent| {
            if let CommandEvent::Started(event) = event {
                sent.0.lock().expect("not poisoned").push(event.command);
            }
        })
    }

    /// Waits until this number of commands of this name has been sent.
    pub(crate) async fn wait_for(&self, count: usize, name: &str) {
        let limit = tokio::time::Instant::now() + Duration::from_secs(30);
        while self.0.lock().unwrap().iter().filter(|command| command.contains_key(name)).count() < count {
            assert!(tokio::time::Instant::now() < limit, "{count} commands `{name}` are not sent: {:?}", self.take());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Returns all commands since the last call, except those of the background.
    pub(crate) fn take(&self) -> Vec<Document> {
        let mut sent = std::mem::take(&mut *self.0.lock().expect("not poisoned"));
        sent.retain(|command| {
            !["createIndexes", "listIndexes", "listCollections"].iter().any(|name| command.contains_key(name))
        });
        sent
    }
}
