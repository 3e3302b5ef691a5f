//! A candidate: the part that looks like an application.

use std::sync::Arc;
use std::time::Duration;

use distlock_api::{LeaseOptions, LockProvider};
use distlock_examples::{Failure, Orders, Place, report};
use distlock_mongo::mongodb::Collection;
use distlock_mongo::mongodb::bson::{Document, doc};
use distlock_mongo::{Fence, Fenced, MongoProvider, close_all};
use distlock_recipes::lead::{LeadExt, Led, Term};
use serde::{Deserialize, Serialize};
use tokio::runtime::Handle;
use tokio::sync::Mutex;
use tokio::task::block_in_place;
use tokio::time::sleep;

use crate::{KEY, REGISTER, REGISTERS};

/// The time between two writes.
const PAUSE: Duration = Duration::from_millis(40);

/// The part of a candidate.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Part {
    pub(crate) place: Place,
    pub(crate) fenced: bool,
    pub(crate) lease: Duration,
}

/// What the parent orders the leader to do.
#[derive(Serialize, Deserialize)]
pub(crate) enum Order {
    /// Stop before the next write, until another order.
    Stop,
    /// Resign, and end.
    Resign,
}

/// What a candidate reports, with its term.
#[derive(Serialize, Deserialize)]
pub(crate) enum Report {
    Leads(i64),
    /// The database has confirmed it.
    Wrote(i64),
    /// Nothing was written: a later leader had, in this term.
    Refused(i64, u64),
    /// Directly before a write. It looks at nothing else until it has written.
    Stops(i64),
    /// After the end of the task, and the release.
    Resigned,
}

#[derive(Clone)]
struct Writer {
    name: String,
    register: Collection<Document>,
    fenced: bool,
}

impl Writer {
    /// Adds one line to the register, under the term.
    async fn write(self, term: Term) -> Result<(), Failure> {
        let fence = Fence::of(&term)?;
        let number = i64::try_from(term.fencing_token().get())?;
        let update = doc! { "$push": { "log": { "term": number, "by": &self.name } } };
        let written = match self.fenced {
            true => fence.upsert_one(&self.register, REGISTER, update).await?,
            false => {
                self.register.update_one(doc! { "_id": REGISTER }, update).upsert(true).await?;
                Fenced::Accepted(())
            }
        };
        match written {
            Fenced::FencedOff { newest } => {
                report(&Report::Refused(number, newest.get()));
                Err(format!("a later leader has written, in term {newest}").into())
            }
            Fenced::Accepted(()) | Fenced::NoDocument => {
                report(&Report::Wrote(number));
                Ok(())
            }
        }
    }

    /// The task of the leader.
    async fn lead(self, term: Term, orders: Arc<Mutex<Orders>>) -> Result<(), Failure> {
        let number = i64::try_from(term.fencing_token().get())?;
        report(&Report::Leads(number));
        let mut orders = orders.lock().await;
        loop {
            let order = tokio::select! {
                order = orders.next() => order?,
                () = sleep(PAUSE) => {
                    self.clone().write(term.clone()).await?;
                    continue;
                }
            };
            match order {
                Some(Order::Resign) => return Ok(()),
                Some(Order::Stop) => {
                    report(&Report::Stops(number));
                    // It does not yield, so nothing can drop it. The parent stops the process here.
                    let _: Option<()> = block_in_place(|| Handle::current().block_on(orders.next()))?;
                    // Sent whatever happens to this task, as a request that is already on its way.
                    let late = tokio::spawn(self.clone().write(term.clone()));
                    late.await??;
                }
                // The parent is gone, or stops this process: `until` drops this task.
                None => std::future::pending().await,
            }
        }
    }
}

/// Campaigns until the parent stops this process, or has it resign.
pub(crate) async fn play(name: String, part: Part, orders: Orders) -> Result<(), Failure> {
    let database = part.place.open().await?;
    let locks = MongoProvider::builder(database.clone()).lease(LeaseOptions::new().ttl(part.lease)).build()?;
    let writer = Writer { name: name.clone(), register: database.collection(REGISTERS), fenced: part.fenced };
    let (stopped, orders) = (orders.end(), Arc::new(Mutex::new(orders)));
    let candidate = locks.lead(KEY).owner(&name).until(stopped);
    let led = candidate.run(|term| writer.clone().lead(term, Arc::clone(&orders))).await?;
    if led == Led::Finished(()) {
        report(&Report::Resigned);
    }
    close_all(database.client().clone(), [locks.close()]).await?;
    Ok(())
}
