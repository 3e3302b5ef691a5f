//! The handle of work that was begun: a locked document, and what its record becomes.

use std::mem::replace;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use distlock_api::{AcquisitionId, LockError, LockKey, Loss, LostSignal, Result};
use distlock_recipes::once::{NotCompleted, OnceHandle};
use mongodb::bson::Document;
use tokio::time::{Instant, sleep_until};

use crate::documents::{Change, CommitError, DocumentGuard, NotCommitted};
use crate::lease::{Fate, WriteId};
use crate::numbers::corrupt;
use crate::requests::once::{Seen, find};
use crate::store::MongoStore;

/// Work that was begun. Dropping it releases the lease in the background, and leaves the record as
/// it is: interrupted.
pub(super) struct MongoOnceHandle {
    store: Arc<MongoStore>,
    key: LockKey,
    acquisition: AcquisitionId,
    token: i64,
    keep: Duration,
    /// How long after the end of the lease a write of this run may still be carried out, by the
    /// server's clock. It is the time that a write may stall, and a step of the clock.
    stall: Duration,
    /// What was stored before the run.
    before: Document,
    state: State,
    /// The end of the lease, if a write that ends it was sent and not answered. The lease may have
    /// been renewed since, but no longer protects the work.
    deadline: Option<Instant>,
}

enum State {
    Held(DocumentGuard<Document>),
    /// A write that ends the lease was sent, and its outcome is not known.
    Unanswered {
        number: i64,
        discards: bool,
    },
    Completed,
    Discarded,
    Lost(Loss),
}

impl MongoOnceHandle {
    pub(super) fn new(
        store: Arc<MongoStore>,
        guard: DocumentGuard<Document>,
        before: Document,
        keep: Duration,
        margin: Duration,
    ) -> Result<Self> {
        let (key, acquisition, token) = (guard.key().clone(), guard.acquisition().clone(), guard.fencing_token());
        let token = i64::try_from(token).map_err(|_| corrupt().with_key(key.clone()))?;
        let stall = store.records.request_timeout.saturating_add(margin);
        Ok(Self { store, key, acquisition, token, keep, stall, before, state: State::Held(guard), deadline: None })
    }

    /// Changes the record and keeps the lease.
    pub(super) async fn save(&mut self, change: Change) -> Result<()> {
        match &mut self.state {
            State::Held(guard) => guard.save(change).await,
            _ => Err(NotCompleted::lost(self.key.clone()).into_error()),
        }
    }

    /// Makes the write that ends the lease (O3).
    async fn commit(&mut self, stages: Vec<Document>, done: State) -> Result<(), NotCompleted> {
        let mut unanswered = State::Lost(Loss::Gone);
        if let State::Held(guard) = &self.state {
            self.deadline = guard.valid_until();
            let discards = matches!(done, State::Discarded);
            unanswered = State::Unanswered { number: guard.next_write(), discards };
        }
        // If the caller leaves meanwhile, the outcome is not known.
        match replace(&mut self.state, unanswered) {
            State::Held(guard) => match end(guard, stages, &done).await {
                Ok(()) => {
                    (self.state, self.deadline) = (done, None);
                    Ok(())
                }
                Err(not) => {
                    if let Some(guard) = not.guard {
                        (self.state, self.deadline) = (State::Held(guard), None);
                    }
                    Err(match not.error {
                        CommitError::AlreadyLost(_) => self.lost(),
                        CommitError::Rejected { error, .. } => NotCompleted::Rejected(error),
                        CommitError::Unknown(error) => NotCompleted::Unknown(error),
                    })
                }
            },
            other => {
                self.state = other;
                Err(self.lost())
            }
        }
    }

    /// Finds out what has become of a write whose outcome was not known (O8).
    async fn resolve(&mut self, number: i64, discards: bool) -> Result<(), NotCompleted> {
        let unknown = |error: LockError| NotCompleted::Unknown(error.outcome_unknown());
        // A read that has not seen everything could miss the write.
        let records = &self.store.records;
        let seen = Seen::Everything(WriteId { acquisition: &self.acquisition, number });
        let found = find(records, &self.key, seen, records.request_timeout).await.map_err(unknown)?;
        let fate = found.map_or(Ok(Fate::Over), |found| found.fate(self.token, self.stall));
        match fate.map_err(|error| unknown(error.with_key(self.key.clone())))? {
            Fate::Ended => {
                self.state = if discards { State::Discarded } else { State::Completed };
                // What was lost stays lost.
                self.deadline = self.deadline.filter(|end| *end <= Instant::now());
                Ok(())
            }
            Fate::Over => Err(self.lost()),
            Fate::Open => {
                let message = "the completion may still be carried out: complete it again";
                let error = LockError::timeout(distlock_api::Phase::Request, message);
                Err(unknown(error.with_key(self.key.clone())))
            }
        }
    }

    /// Returns the loss of a lease whose end has passed without an answer.
    fn ended(&self) -> Option<Loss> {
        self.deadline.filter(|end| *end <= Instant::now()).map(|_| Loss::Expired)
    }

    fn lost(&mut self) -> NotCompleted {
        if !matches!(self.state, State::Lost(_)) {
            self.state = State::Lost(self.ended().unwrap_or(Loss::Gone));
        }
        NotCompleted::lost(self.key.clone())
    }
}

#[async_trait]
impl OnceHandle for MongoOnceHandle {
    fn loss(&self) -> Option<Loss> {
        match &self.state {
            State::Held(guard) => guard.loss(),
            State::Lost(loss) => Some(*loss),
            State::Unanswered { .. } | State::Completed | State::Discarded => self.ended(),
        }
    }

    fn lost(&self) -> LostSignal {
        match &self.state {
            State::Held(guard) => guard.lost(),
            State::Lost(loss) => {
                let loss = *loss;
                LostSignal::new(async move { loss })
            }
            State::Unanswered { .. } | State::Completed | State::Discarded => match self.deadline {
                Some(end) => LostSignal::new(async move {
                    sleep_until(end).await;
                    Loss::Expired
                }),
                None => LostSignal::never(),
            },
        }
    }

    fn valid_until(&self) -> Option<Instant> {
        match &self.state {
            State::Held(guard) => guard.valid_until(),
            // No longer than until now.
            _ => Some(Instant::now()),
        }
    }

    async fn complete(&mut self, value: Arc<[u8]>) -> Result<(), NotCompleted> {
        match &self.state {
            State::Completed => Ok(()),
            State::Unanswered { number, discards } => {
                let (number, discards) = (*number, *discards);
                self.resolve(number, discards).await?;
                if discards { Err(self.lost()) } else { Ok(()) }
            }
            State::Held(_) | State::Discarded | State::Lost(_) => {
                let stages = self.store.records.layout.once_done(&value, self.token, self.keep);
                self.commit(stages, State::Completed).await
            }
        }
    }

    async fn discard(&mut self) -> Result<(), NotCompleted> {
        match &self.state {
            State::Discarded => Ok(()),
            State::Unanswered { number, discards } => {
                let (number, discards) = (*number, *discards);
                self.resolve(number, discards).await?;
                if discards { Ok(()) } else { Err(completed(&self.key)) }
            }
            State::Completed => Err(completed(&self.key)),
            State::Held(_) | State::Lost(_) => {
                let stages = self.store.records.layout.once_restored(&self.before);
                self.commit(stages, State::Discarded).await
            }
        }
    }
}

/// A discarded run leaves no minimum hold (O6).
async fn end(
    guard: DocumentGuard<Document>,
    stages: Vec<Document>,
    done: &State,
) -> Result<(), NotCommitted<Document>> {
    let change = Change::pipeline(stages);
    if matches!(done, State::Discarded) { guard.discard_with(change).await } else { guard.commit_or_keep(change).await }
}

fn completed(key: &LockKey) -> NotCompleted {
    let error = LockError::invalid_options("the work is completed, and its outcome is remembered: nothing to discard");
    NotCompleted::Rejected(error.with_key(key.clone()))
}
