//! One OS process per worker: the same desk, through pipes.

use async_trait::async_trait;
use distlock_examples::{Children, Failure, Interrupt, Message, Orders, report};
use serde::{Deserialize, Serialize};
use tokio::sync::Mutex;

use crate::desk::{Desk, Event, Hub};
use crate::worker::Worker;
use crate::{Arguments, on_mongodb, workers};

/// The part of a child.
#[derive(Serialize, Deserialize)]
pub(crate) struct Part {
    worker: Worker,
    mongodb: String,
    database: String,
}

/// What a child reports. A write gets an order in return: whether it was accepted.
#[derive(Serialize, Deserialize)]
enum Report {
    Event(Event),
    Write { worker: String, resource: String, token: u64 },
}

/// The desk of a worker that has a process of its own.
struct PipeDesk(Mutex<Orders>);

#[async_trait]
impl Desk for PipeDesk {
    async fn record(&self, event: Event) {
        report(&Report::Event(event));
    }

    async fn write(&self, worker: &str, resource: &str, token: u64) -> bool {
        let mut replies = self.0.lock().await;
        report(&Report::Write { worker: worker.to_owned(), resource: resource.to_owned(), token });
        // Without a reply the write was not accepted.
        matches!(replies.next().await, Ok(Some(true)))
    }
}

/// Runs the worker of this process until its time is over or the parent stops it.
pub(crate) async fn play(part: Part, orders: Orders) -> Result<(), Failure> {
    let Part { worker, mongodb, database } = part;
    let connected = on_mongodb(&mongodb, &database, &worker.name).await?;
    let (end, desk) = (orders.end(), PipeDesk(Mutex::new(orders)));
    tokio::select! {
        done = worker.run(&*connected.locks, &desk) => done?,
        () = end => {}
    }
    connected.close().await
}

/// Starts a process for each worker, and serves them until all have ended.
pub(crate) async fn run_all(uri: &str, arguments: &Arguments, hub: &Hub, interrupt: &Interrupt) -> Result<(), Failure> {
    let mut children = Children::new();
    for worker in workers(arguments) {
        let name = worker.name.clone();
        let part = Part { worker, mongodb: uri.to_owned(), database: arguments.database.clone() };
        children.start(&name, &part).await?;
    }
    while let Some((name, message)) = children.next_until(interrupt).await? {
        match message {
            Message::Report(Report::Event(event)) => hub.record(event),
            // A worker that was told to stop no longer waits for the answer.
            Message::Report(Report::Write { .. }) if children.is_stopping() => {}
            Message::Report(Report::Write { worker, resource, token }) => {
                let is_accepted = hub.write(&worker, &resource, token);
                children.send(&name, &is_accepted).await?;
            }
            Message::Ended => {}
        }
    }
    children.stop().await
}
