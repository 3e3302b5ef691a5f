//! A worker: the part that looks like an application.

use std::time::Duration;

use distlock_api::{LeaseOptions, LockProvider};
use distlock_examples::{Failure, Orders, Place, report};
use distlock_mongo::mongodb::Collection;
use distlock_mongo::mongodb::bson::{self, Document, doc};
use distlock_mongo::{Change, CommitError, DocumentGuard, DocumentLocks, close_all};
use futures_util::TryStreamExt;
use serde::{Deserialize, Serialize};
use tokio::time::sleep;

use crate::{EFFECTS, ORDERS};

/// How long to wait for an order if all that are open are locked.
const PATIENCE: Duration = Duration::from_millis(500);
/// How many steps a worker does before the one in which it is to stop.
const FIRST_STEPS: usize = 3;

/// The part of a worker.
#[derive(Serialize, Deserialize)]
pub(crate) struct Part {
    pub(crate) place: Place,
    pub(crate) locked: bool,
    pub(crate) lease: Duration,
    /// Whether it stops once in the middle of a step, until an order to continue.
    pub(crate) stops: bool,
}

/// What a worker reports of an order and its new state.
#[derive(Serialize, Deserialize)]
pub(crate) enum Report {
    /// The database has confirmed it.
    Committed(i64, State, String),
    AlreadyLost(i64, State),
    /// Between the effect of a step and its commit.
    Stops(i64, State),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum State {
    Reserved,
    Paid,
    Packed,
    Shipped,
}

impl State {
    pub(crate) const STEPS: [Self; 3] = [Self::Paid, Self::Packed, Self::Shipped];

    /// The next step, if there is one.
    fn next(self) -> Option<Self> {
        Self::STEPS.into_iter().find(|next| *next > self)
    }
}

/// The state of the saga. The lock is in the same document, and not in this type.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Order {
    #[serde(rename = "_id")]
    pub(crate) id: i64,
    pub(crate) state: State,
    /// Which worker has done which step.
    pub(crate) log: Vec<String>,
}

struct Worker {
    name: String,
    orders: Collection<Order>,
    effects: Collection<Document>,
    /// `None` shows what happens without locks.
    locks: Option<DocumentLocks<Order>>,
    steps: usize,
    /// Whether it has yet to stop.
    stops: bool,
}

impl Worker {
    /// The orders that have not been shipped, shuffled.
    async fn open(&self) -> Result<Vec<i64>, Failure> {
        let found = self.orders.find(doc! { "state": { "$ne": "shipped" } }).await?;
        let mut open: Vec<_> = found.map_ok(|order| order.id).try_collect().await?;
        fastrand::shuffle(&mut open);
        Ok(open)
    }

    /// Locks one of the orders. Returns `None` if all of them stay locked for a while.
    async fn lock(&self, locks: &DocumentLocks<Order>, open: &[i64]) -> Result<Option<DocumentGuard<Order>>, Failure> {
        for id in open {
            if let Some(order) = locks.try_lock(*id).await? {
                return Ok(Some(order));
            }
        }
        Ok(locks.try_lock(open[0]).within(PATIENCE).await?)
    }

    /// Carries out the step's effect elsewhere. By its key the other side recognises a repetition.
    async fn effect(&self, order: i64, state: State) -> Result<(), Failure> {
        sleep(Duration::from_millis(fastrand::u64(10..50))).await;
        let key = doc! { "_id": format!("{order}/{state:?}") };
        self.effects.update_one(key, doc! { "$inc": { "times": 1 } }).upsert(true).await?;
        Ok(())
    }

    /// Does one step of one order. Returns `false` if no step is left, or the worker is to stop.
    async fn step(&mut self, orders: &mut Orders) -> Result<bool, Failure> {
        let open = self.open().await?;
        let Some(first) = open.first() else { return Ok(false) };
        let guard = match &self.locks {
            Some(locks) => match self.lock(locks, &open).await? {
                Some(guard) => Some(guard),
                None => return Ok(true),
            },
            None => None,
        };
        let order = match &guard {
            Some(guard) => guard.document().clone(),
            None => self.orders.find_one(doc! { "_id": first }).await?.ok_or("an order has gone")?,
        };
        // Another worker has shipped it in between. Dropping the guard releases the lock.
        let Some(state) = order.state.next() else { return Ok(true) };
        self.effect(order.id, state).await?;
        if self.stops && self.steps >= FIRST_STEPS {
            self.stops = false;
            report(&Report::Stops(order.id, state));
            // Asleep, it notices nothing. When it wakes up, it commits before it looks.
            let Some(()) = orders.next().await? else { return Ok(false) };
        }
        self.steps += 1;
        let entry = format!("{state:?} by {} in step {}", self.name, self.steps);
        let mut log = order.log;
        log.push(entry.clone());
        let committed = match guard {
            Some(guard) => {
                let change = Change::new().set_serialized("state", &state).set("log", log);
                match guard.commit(change).await {
                    Ok(()) => true,
                    Err(CommitError::AlreadyLost(_)) => false,
                    Err(other) => return Err(other.into_error().into()),
                }
            }
            None => {
                let state = bson::to_bson(&state)?;
                let change = doc! { "$set": { "state": state, "log": log } };
                self.orders.update_one(doc! { "_id": order.id }, change).await?.matched_count == 1
            }
        };
        report(&match committed {
            true => Report::Committed(order.id, state, entry),
            false => Report::AlreadyLost(order.id, state),
        });
        Ok(true)
    }
}

/// Runs the worker of this process until all orders are shipped or the parent stops it.
pub(crate) async fn play(name: String, part: Part, mut orders: Orders) -> Result<(), Failure> {
    let database = part.place.open().await?;
    let documents = database.collection(ORDERS);
    let lease = LeaseOptions::new().ttl(part.lease);
    let locks = DocumentLocks::builder(&documents).integer_ids().lease(lease).owner(&name).build()?;
    let effects = database.collection(EFFECTS);
    let used = part.locked.then(|| locks.clone());
    let mut worker = Worker { name, orders: documents, effects, locks: used, steps: 0, stops: part.stops };
    while !orders.have_ended() && worker.step(&mut orders).await? {}
    close_all(database.client().clone(), [locks.provider().close()]).await?;
    Ok(())
}
