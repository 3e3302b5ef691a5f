//! The conformance suite on this store.

mod arena;
mod server;

use std::process::ExitCode;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use distlock_api::{Capabilities, LockKey, LockProvider};
use distlock_conformance::{Arena, Client, DisturbedStore, Fixture, FixtureError, Hook, Profile, async_trait, run_one};
use distlock_engine::{LeaseProvider, LeaseStore, QueueOptions};
use distlock_example_postgres::PostgresStore;
use distlock_example_postgres::tokio_postgres::{self, NoTls};

use crate::server::Server;

fn main() -> ExitCode {
    run_one(Postgres::default())
}

/// What [`arena::start`] can do to its server.
const HOOKS: [Hook; 7] =
    [Hook::Cut, Hook::Stall, Hook::Delay, Hook::Lag, Hook::LoseReplies, Hook::Restart, Hook::Block];

/// A server, and a schema with a random name on it. Each client has connections of its own.
#[derive(Default)]
struct Postgres {
    server: Mutex<Option<Server>>,
    started: OnceLock<Started>,
}

struct Started {
    uri: String,
    schema: String,
    /// A connection for what clients of the store cannot do.
    operator: Arc<tokio_postgres::Client>,
}

impl Postgres {
    fn started(&self) -> &Started {
        self.started.get().expect("the suite starts a fixture before it uses it")
    }
}

fn open(uri: &str, schema: &str) -> distlock_api::Result<PostgresStore> {
    PostgresStore::parse(uri)?.schema(schema).lock_events().build()
}

/// Purges one record, as [`PostgresStore::purge`] does with records that were unused for an hour.
async fn purge(operator: &tokio_postgres::Client, schema: &str, key: &LockKey) -> Result<(), FixtureError> {
    let purge = format!("SELECT {schema}.purge_keys(ARRAY[$1::bytea], 0)");
    let purged: i64 = operator.query_one(&purge, &[&key.as_str().as_bytes()]).await?.get(0);
    if purged == 1 { Ok(()) } else { Err(format!("there is no unused record of {key:?}").into()) }
}

#[async_trait]
impl Fixture for Postgres {
    fn name(&self) -> &str {
        "postgres"
    }

    fn profile(&self) -> Profile {
        let mut promised = Capabilities::default();
        (promised.expiry, promised.minimum_hold, promised.fair, promised.push) = (true, true, true, true);
        let profile = Profile::new(promised).ttl(Duration::from_secs(3));
        let profile = profile.processes().admin().owners().lock_events().purge().store().disturbed();
        // Refused: shared locks, permits, and outcomes of work.
        profile.arena().hooks(HOOKS).expected_refusals(81)
    }

    async fn start(&self) -> Result<(), FixtureError> {
        let server = Server::start().await?;
        let uri = server.uri.clone();
        let schema = format!("locks_{:016x}", fastrand::u64(..));
        let (operator, connection) = tokio_postgres::connect(&uri, NoTls).await?;
        tokio::spawn(connection);
        *self.server.lock().expect("not poisoned") = Some(server);
        let started = Started { uri, schema, operator: Arc::new(operator) };
        self.started.set(started).map_err(|_| "started twice".into())
    }

    async fn clients(&self, count: usize) -> Result<Vec<Client>, FixtureError> {
        let Started { uri, schema, operator } = self.started();
        let mut clients = Vec::new();
        for _ in 0..count {
            let (operator, of) = (Arc::clone(operator), schema.clone());
            let store = DisturbedStore::new(Arc::new(open(uri, schema)?)).with_purge(move |key| {
                let (operator, of) = (Arc::clone(&operator), of.clone());
                async move { purge(&operator, &of, &key).await }
            });
            // Longer than a busy test machine stalls: a missed claim loses its place in the queue.
            let queue = QueueOptions::new().claim(Duration::from_secs(3));
            clients.push(Client::of_disturbed(store, |engine| engine.queue(queue))?);
        }
        Ok(clients)
    }

    async fn store(&self) -> Result<Arc<dyn LeaseStore>, FixtureError> {
        let Started { uri, schema, .. } = self.started();
        Ok(Arc::new(open(uri, schema)?))
    }

    fn address(&self) -> Option<String> {
        let Started { uri, schema, .. } = self.started();
        Some(format!("{schema} {uri}"))
    }

    async fn connect(&self, address: &str) -> Result<Arc<dyn LockProvider>, FixtureError> {
        let (schema, uri) = address.split_once(' ').ok_or("no schema in the address")?;
        Ok(Arc::new(LeaseProvider::new(Arc::new(open(uri, schema)?))))
    }

    async fn arena(&self) -> Result<Box<dyn Arena>, FixtureError> {
        Ok(Box::new(arena::start(&self.started().schema).await?))
    }

    async fn store_at(&self, address: &str) -> Result<Arc<dyn LeaseStore>, FixtureError> {
        let (schema, uri) = address.split_once(' ').ok_or("no schema in the address")?;
        Ok(Arc::new(open(uri, schema)?))
    }

    async fn stop(&self) {
        if let Some(Started { schema, operator, .. }) = self.started.get() {
            // A server of the user outlives the suite.
            let _ = operator.batch_execute(&format!("DROP SCHEMA {schema} CASCADE")).await;
        }
        if let Some(server) = self.server.lock().expect("not poisoned").take() {
            server.stop();
        }
    }
}
