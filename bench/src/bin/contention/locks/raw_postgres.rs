//! The least that a lock in PostgreSQL can do: one statement to take it, one to give it back, each
//! of them a transaction that is on disk when it returns. It has no waiters.

use std::sync::Arc;

use async_trait::async_trait;
use distlock_example_postgres::tokio_postgres::{Client, Statement};

use super::{Held, Locks};
use crate::Outcome;
use crate::commands::Monitor;
use crate::postgres;

const TAKE: &str = "INSERT INTO bench_raw.lock AS lock (key, holder, acquired_at) VALUES ($1, $2, clock_timestamp()) \
                    ON CONFLICT (key) DO UPDATE SET holder = excluded.holder, acquired_at = excluded.acquired_at \
                    WHERE lock.holder IS NULL";
const GIVE_BACK: &str = "UPDATE bench_raw.lock SET holder = NULL WHERE key = $1 AND holder = $2";

struct Raw(Arc<Statements>);

struct Statements {
    client: Client,
    take: Statement,
    give_back: Statement,
    monitor: Option<Arc<Monitor>>,
}

impl Statements {
    /// Fails if the statement finds no record to change.
    async fn execute(&self, name: &str, statement: &Statement, key: &str, holder: i64) -> Outcome<()> {
        if let Some(monitor) = &self.monitor {
            monitor.sent(name);
        }
        let changed = self.client.execute(statement, &[&key, &holder]).await?;
        if changed == 1 { Ok(()) } else { Err("another holder's".into()) }
    }
}

pub(super) async fn connect(uri: &str, monitor: Option<&Arc<Monitor>>) -> Outcome<Arc<dyn Locks>> {
    let client = postgres::connect(uri).await?;
    let (take, give_back) = (client.prepare(TAKE).await?, client.prepare(GIVE_BACK).await?);
    Ok(Arc::new(Raw(Arc::new(Statements { client, take, give_back, monitor: monitor.cloned() }))))
}

#[async_trait]
impl Locks for Raw {
    async fn acquire(&self, key: &str) -> Outcome<Box<dyn Held>> {
        let holder = fastrand::i64(..);
        self.0.execute("insert", &self.0.take, key, holder).await?;
        Ok(Box::new(Taken { statements: Arc::clone(&self.0), key: key.to_owned(), holder }))
    }
}

struct Taken {
    statements: Arc<Statements>,
    key: String,
    holder: i64,
}

#[async_trait]
impl Held for Taken {
    async fn release(self: Box<Self>) -> Outcome<()> {
        self.statements.execute("update", &self.statements.give_back, &self.key, self.holder).await
    }
}
