//! A chain of writes through several clients by hand: a client that sees another's number in its
//! events writes the next one. This is the least that a pushed hand-over costs.

mod mongo;
mod postgres;

use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use tokio::task::JoinSet;

use super::protocol::{Hop, Relay as Task, Report, Window};
use crate::Outcome;
use crate::clock;
use crate::locks::Contender;

/// One client of the chain.
#[async_trait]
trait Client: Send {
    /// The next number that was written, by this client or another one.
    async fn received(&mut self) -> Outcome<u64>;

    /// Writes a number; then makes the second write, if the task has one.
    fn write(&self, number: u64) -> BoxFuture<'static, Outcome<()>>;
}

pub(super) struct Relay {
    task: Task,
    client: Box<dyn Client>,
}

impl Relay {
    pub(super) async fn open(who: Contender, uri: &str, task: Task) -> Outcome<Self> {
        let client: Box<dyn Client> = match who {
            Contender::RawPostgres => Box::new(postgres::Records::open(uri, &task).await?),
            _ => Box::new(mongo::Records::open(uri, &task).await?),
        };
        Ok(Self { task, client })
    }

    pub(super) async fn run(mut self, window: Window) -> Outcome<Report> {
        clock::sleep_until(window.start).await;
        let mut hops = Vec::new();
        let mut writes = JoinSet::new();
        if self.task.place == 1 {
            self.write(1, &mut hops, &mut writes);
        }
        loop {
            let number = tokio::select! {
                number = self.client.received() => number?,
                () = clock::sleep_until(window.stop) => break,
            };
            let received = clock::now();
            // Each number is for the one after its writer.
            if (number + 1) % self.task.of != self.task.place % self.task.of {
                continue;
            }
            hops.push(Hop { number, received: Some(received), sent: None });
            if self.task.hold_ms > 0 {
                tokio::time::sleep(Duration::from_millis(self.task.hold_ms)).await;
            }
            self.write(number + 1, &mut hops, &mut writes);
        }
        Ok(Report { hops, ..Report::default() })
    }

    /// Writes in the background, so that the client's own event, too, is received at once.
    fn write(&self, number: u64, hops: &mut Vec<Hop>, writes: &mut JoinSet<Outcome<()>>) {
        while writes.try_join_next().is_some() {}
        let write = self.client.write(number);
        hops.push(Hop { number, received: None, sent: Some(clock::now()) });
        writes.spawn(write);
    }
}
