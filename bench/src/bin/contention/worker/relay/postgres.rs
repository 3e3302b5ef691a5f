//! Updates of one record with a NOTIFY in the same transaction, and LISTEN on a second connection.

use std::sync::Arc;

use async_trait::async_trait;
use distlock_example_postgres::tokio_postgres::{self, Statement};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use super::{Client, Task};
use crate::Outcome;
use crate::postgres::{self, Listener};

const RESET: &str = "INSERT INTO bench_raw.relay (key, number) VALUES ($1, 0) \
                     ON CONFLICT (key) DO UPDATE SET number = excluded.number";
/// The channel is called like the key.
const WRITE: &str = "WITH written AS (UPDATE bench_raw.relay SET number = $2 WHERE key = $1 RETURNING number) \
                     SELECT pg_notify($1, number::text) FROM written";
/// The queue has a table of its own, as that of the store has.
const QUEUE_UP: &str = "INSERT INTO bench_raw.queued (key, place, number) VALUES ($1, $2, $3) \
                        ON CONFLICT (key, place) DO UPDATE SET number = excluded.number";

pub(super) struct Records {
    task: Task,
    client: Arc<tokio_postgres::Client>,
    write: Statement,
    queue_up: Statement,
    events: Listener,
}

impl Records {
    pub(super) async fn open(uri: &str, task: &Task) -> Outcome<Self> {
        let client = postgres::connect(uri).await?;
        client.execute(RESET, &[&task.key]).await?;
        let (write, queue_up) = (client.prepare(WRITE).await?, client.prepare(QUEUE_UP).await?);
        let events = Listener::open(uri, &task.key).await?;
        Ok(Self { task: task.clone(), client: Arc::new(client), write, queue_up, events })
    }
}

#[async_trait]
impl Client for Records {
    async fn received(&mut self) -> Outcome<u64> {
        Ok(self.events.next().await?.parse()?)
    }

    fn write(&self, number: u64) -> BoxFuture<'static, Outcome<()>> {
        let (client, task, number) = (Arc::clone(&self.client), self.task.clone(), number as i64);
        let (write, queue_up) = (self.write.clone(), self.queue_up.clone());
        async move {
            client.execute(&write, &[&task.key, &number]).await?;
            if task.second_write {
                client.execute(&queue_up, &[&task.key, &(task.place as i64), &number]).await?;
            }
            Ok(())
        }
        .boxed()
    }
}
