//! What the suite cannot see: locked rows, connections that break, requests that are given up, and
//! the records.

mod calls;
mod records;
#[path = "../server/mod.rs"]
mod server;

use std::time::Duration;

use distlock_api::{FencingToken, LockKey, ReleaseOutcome};
use distlock_engine::LeaseStore;
use distlock_engine::store::{Attempt, Claim, ProviderId, Release, Reply};
use distlock_example_postgres::PostgresStore;
use distlock_example_postgres::tokio_postgres::{self, NoTls, Transaction};
use tokio::sync::OnceCell;
use tokio::time::{sleep, timeout};

use crate::server::Server;

pub(crate) const LONG: Duration = Duration::from_secs(60);
pub(crate) const SOON: Duration = Duration::from_secs(20);

/// A schema on the server that the tests share.
pub(crate) struct World {
    pub(crate) uri: &'static str,
    pub(crate) schema: String,
    pub(crate) operator: tokio_postgres::Client,
}

impl World {
    pub(crate) async fn new() -> Self {
        static SERVER: OnceCell<Server> = OnceCell::const_new();
        let server = SERVER.get_or_init(|| async { Server::start().await.unwrap() }).await;
        let (operator, connection) = tokio_postgres::connect(&server.uri, NoTls).await.unwrap();
        tokio::spawn(connection);
        Self { uri: &server.uri, schema: format!("locks_{:016x}", fastrand::u64(..)), operator }
    }

    pub(crate) fn store(&self) -> PostgresStore {
        PostgresStore::parse(self.uri).unwrap().schema(&self.schema).build().unwrap()
    }

    /// A transaction that keeps the record of a key locked.
    pub(crate) async fn lock<'a>(&'a mut self, key: &LockKey) -> Transaction<'a> {
        let lock = format!("SELECT FROM {}.lease WHERE key = $1 FOR UPDATE", self.schema);
        let locking = self.operator.transaction().await.unwrap();
        assert_eq!(locking.query(&lock, &[&key.as_str().as_bytes()]).await.unwrap().len(), 1);
        locking
    }
}

/// Waits until this many statements of a function wait for a lock.
pub(crate) async fn until_blocked(operator: &Transaction<'_>, schema: &str, count: i64) {
    let blocked = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE $1";
    timeout(SOON, async {
        while operator.query_one(blocked, &[&format!("%{schema}%")]).await.unwrap().get::<_, i64>(0) != count {
            // Statistics are read once per transaction.
            operator.batch_execute("SELECT pg_stat_clear_snapshot()").await.unwrap();
            sleep(Duration::from_millis(5)).await;
        }
    })
    .await
    .expect("a request waits for the record");
}

pub(crate) fn key(name: &str) -> LockKey {
    LockKey::new(name).unwrap()
}

pub(crate) fn claim(name: &str) -> Claim {
    Claim::new(key(name), ProviderId::random().acquisition_id())
}

pub(crate) async fn take(store: &PostgresStore, claim: &Claim, ttl: Duration) -> FencingToken {
    match store.try_acquire(&Attempt::new(claim.clone(), ttl)).await.unwrap() {
        Reply::Granted(grant) => grant.token,
        busy => panic!("the key is free, but the answer is {busy:?}"),
    }
}

pub(crate) async fn give_back(store: &PostgresStore, claim: Claim) {
    assert_eq!(store.release(&Release::new(claim)).await.unwrap(), ReleaseOutcome::Released);
}
