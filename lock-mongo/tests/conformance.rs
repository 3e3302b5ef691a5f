//! The backend keeps the contract on a replica set and on a standalone.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use distlock_api::{Capabilities, LockKey, LockProvider};
use distlock_conformance::server::{MongoServer, Topology};
use distlock_conformance::{
    Client, Controls, FailCommand, Fixture, FixtureError, Operation, Profile, async_trait, run,
};
use distlock_mongo::MongoProvider;
use mongodb::bson::{Document, doc};
use mongodb::options::ClientOptions;
use tokio::sync::{Mutex, OnceCell};

fn main() -> ExitCode {
    run([Topology::ReplicaSet, Topology::Standalone].map(|topology| Box::new(Upsert::on(topology)) as Box<dyn Fixture>))
}

/// The lock collection on a server of one kind.
struct Upsert {
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

impl Upsert {
    fn on(topology: Topology) -> Self {
        let database = format!("distlock_{:016x}", fastrand::u64(..));
        Self { topology, database, server: Mutex::default(), started: OnceCell::new() }
    }

    fn started(&self) -> &Started {
        self.started.get().expect("the suite starts a fixture before it uses it")
    }
}

/// A connection of its own, as another process has it.
async fn connected(uri: &str, app: &str, database: &str) -> Result<MongoProvider, FixtureError> {
    let mut options = ClientOptions::parse(uri).await?;
    options.app_name = Some(app.to_owned());
    let client = mongodb::Client::with_options(options)?;
    Ok(MongoProvider::builder(client.database(database)).build()?)
}

#[async_trait]
impl Fixture for Upsert {
    fn name(&self) -> &str {
        match self.topology {
            Topology::ReplicaSet => "mongo-upsert-replica-set",
            Topology::Standalone => "mongo-upsert-standalone",
        }
    }

    fn profile(&self) -> Profile {
        let mut promised = Capabilities::default();
        promised.expiry = true;
        promised.minimum_hold = true;
        // Many times what an operation takes, also with three servers on two busy cores: their disks stall for a second at times, and
        // a lease that is renewed too late is lost, as it must be.
        let ttl = Duration::from_secs(3);
        let profile = Profile::new(promised).ttl(ttl).admin().owners().processes().faults().purge();
        match self.topology {
            Topology::ReplicaSet => profile.lock_events(),
            // Refused: what needs a change stream.
            Topology::Standalone => profile.expected_refusals(3),
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
            let provider = connected(uri, &app, &self.database).await?;
            let records = admin.database(&self.database).collection("locks");
            clients.push(Client::new(Arc::new(provider)).with_controls(OfClient { fail: fail.of(app), records }));
        }
        Ok(clients)
    }

    fn address(&self) -> Option<String> {
        Some(format!("{} {}", self.database, self.started().uri))
    }

    async fn connect(&self, address: &str) -> Result<Arc<dyn LockProvider>, FixtureError> {
        let (database, uri) = address.split_once(' ').ok_or("no database in the address")?;
        Ok(Arc::new(connected(uri, "child", database).await?))
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
    fail: FailCommand,
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
        self.fail.fail_next(&[command], times).await
    }

    async fn end_faults(&self) -> Result<u64, FixtureError> {
        self.fail.end().await
    }

    /// The TTL index removes a record an hour after its expiry. By then the server's clock, from which tokens come, has moved on.
    async fn purge(&self, key: &LockKey) -> Result<(), FixtureError> {
        let deleted = self.records.delete_one(doc! { "_id": key.as_str() }).await?;
        tokio::time::sleep(Duration::from_millis(5)).await;
        if deleted.deleted_count == 1 { Ok(()) } else { Err(format!("there is no record of {key:?}").into()) }
    }
}
