//! Acquisitions: the first attempt and later ones, with a ticket or without (R7, R8, R9).

use std::num::NonZeroU32;
use std::sync::atomic::Ordering;
use std::time::Duration;

use distlock_api::{ErrorKind, LockError, Result};
use distlock_engine::store::{Attempt, BusyReply, Claim, Grant, QueueStanding, Reply, StoreTime};
use mongodb::bson::{Bson, Document, RawDocumentBuf};

use super::foreign::{found, refusal};
use super::run::run;
use crate::budget::Budget;
use crate::calls::{ChangeOptions, Failure, privileges};
use crate::claim::claim_state;
use crate::error::{failed_with, garbled, is_lost_race, is_unauthorized, no_document, rejection, unmarked};
use crate::lease::plan::{self, AcquirePath, Step};
use crate::lease::{AcquireReply, Found, Layout, NOT_A_LOCK, not_once};
use crate::numbers::{NEVER, corrupt, millis, token};
use crate::records::{IfMissing, Records};
use crate::topology::Deployment;

/// Sends one attempt to acquire.
pub(crate) async fn try_acquire(records: &Records, attempt: &Attempt) -> Result<Reply> {
    acquire(records, attempt, &records.if_missing, false).await
}

/// Sends one attempt to acquire that also reads the document, and keeps it in the claim's state.
pub(crate) async fn try_acquire_document(
    records: &Records,
    attempt: &Attempt,
    if_missing: &IfMissing,
) -> Result<Reply> {
    acquire(records, attempt, if_missing, true).await
}

async fn acquire(records: &Records, attempt: &Attempt, if_missing: &IfMissing, with_document: bool) -> Result<Reply> {
    let claim = &attempt.claim;
    let budget = Budget::new(attempt.timeout);
    let identity = records.layout.identity(claim.key())?;
    let deployment = records.deployment(claim, budget).await?;
    let acquiring = Acquiring { records, attempt, if_missing, with_document, identity, deployment, budget };
    acquiring.run().await.map_err(|error| error.with_key(claim.key().clone()))
}

/// An attempt under way.
struct Acquiring<'a> {
    records: &'a Records,
    attempt: &'a Attempt,
    if_missing: &'a IfMissing,
    with_document: bool,
    identity: Bson,
    deployment: Deployment,
    budget: Budget,
}

impl Acquiring<'_> {
    /// Sends the plan, and the full path once more if it lost the race for a new record, which it
    /// may share with the winner, or was late by an outdated reading of the server's clock (R31).
    async fn run(&self) -> Result<Reply> {
        let Self { records, attempt, deployment, budget, .. } = *self;
        let claim = &attempt.claim;
        let known = records.key_memory.begin_use(claim.key().as_str());
        let is_first = !claim_state(claim).attempted.swap(true, Ordering::Relaxed);
        let inserts_record = matches!(self.if_missing, IfMissing::InsertRecord);
        let mut plan = plan::acquire(attempt, known.was_free && is_first && inserts_record);
        for is_last in [false, true] {
            let reading = records.server_clock.reading();
            let options = ChangeOptions::attempt(deployment, claim, budget);
            match run(records, plan, |path| self.step(path), options, |_: &AcquireReply| true).await {
                Ok(Some(answer)) => {
                    reading.shows(millis(answer.now));
                    return self.learn(answer);
                }
                Ok(None) if self.is_upsert() => return Err(unmarked()),
                Ok(None) => return Err(no_document()),
                Err(Failure::Late) if !is_last => {}
                Err(Failure::Driver(error)) if is_lost_race(&error) => {
                    if let Some(reply) = self.after_collision().await? {
                        return Ok(reply);
                    }
                }
                Err(failure) => return Err(self.explained(failure).await),
            }
            plan = &[AcquirePath::Full];
        }
        // The new record was removed at once, and another one made.
        Ok(retry_at_once())
    }

    fn step(&self, path: AcquirePath) -> Step {
        let Self { records, attempt, if_missing, deployment, .. } = *self;
        let (layout, clock, identity) = (&records.layout, records.clock(deployment), self.identity.clone());
        if path == AcquirePath::IfUnused {
            return layout.acquire_if_unused(identity, attempt, clock);
        }
        let default = match if_missing {
            IfMissing::InsertDefault(default) | IfMissing::InsertOwned { default, .. } => Some(default),
            IfMissing::InsertRecord | IfMissing::Fail => None,
        };
        // A document that is no record is not matched, and the insertion collides with it (R22).
        let filter = match if_missing {
            IfMissing::InsertRecord => layout.record(identity),
            IfMissing::InsertOwned { filter, .. } => owned_filter(identity, filter),
            IfMissing::InsertDefault(_) | IfMissing::Fail => Layout::document(identity),
        };
        let mut pipeline = layout.preparation(default);
        pipeline.extend(layout.acquire(attempt, clock));
        let step = Step::new(filter, pipeline, layout.acquisition(attempt, self.with_document));
        Step { upsert: self.is_upsert(), ..step }
    }

    fn is_upsert(&self) -> bool {
        !matches!(self.if_missing, IfMissing::Fail)
    }

    /// Keeps what the answer says for later requests of the claim.
    fn learn(&self, mut answer: AcquireReply) -> Result<Reply> {
        let Self { records, attempt, .. } = self;
        let state = claim_state(&attempt.claim);
        let was_alone = answer.granted && answer.waiting == 0 && answer.others == 0;
        state.was_alone.store(was_alone, Ordering::Relaxed);
        state.met_modes.store(answer.met_modes, Ordering::Relaxed);
        if self.with_document && answer.granted {
            let document = answer.document.take().ok_or_else(unmarked)?;
            records.document_len.store(document.as_bytes().len(), Ordering::Relaxed);
            keep_document(&attempt.claim, document);
        }
        reply(attempt, &answer)
    }

    /// Handles a collision: another acquisition has inserted the record, or the document is none
    /// (R22). Returns `None` if the full path may be sent again.
    async fn after_collision(&self) -> Result<Option<Reply>> {
        let Self { records, attempt, budget, .. } = *self;
        match self.if_missing {
            IfMissing::InsertRecord => {}
            IfMissing::InsertOwned { filter, .. } => {
                let own = owned_filter(self.identity.clone(), filter);
                return self.refuse_other(own).await.map(|()| None);
            }
            IfMissing::InsertDefault(_) | IfMissing::Fail => return Ok(None),
        }
        let found = found(records, self.identity.clone(), budget).await?;
        let Some(found) = found.filter(|found| !found.is_record()) else { return Ok(None) };
        let respected = found.respected_for().filter(|_| records.adopts_foreign).ok_or_else(|| refusal(&found))?;
        if !respected.is_zero() {
            return Ok(Some(Reply::Busy(BusyReply::new().with_holder_remaining(respected))));
        }
        let layout = &records.layout;
        let (filter, pipeline) =
            (layout.expired_foreign(self.identity.clone()), layout.adopt(attempt, records.clock(self.deployment)));
        let step = Step::new(filter, pipeline, layout.acquisition(attempt, false));
        let options = ChangeOptions::attempt(self.deployment, &attempt.claim, budget);
        let answer: Option<AcquireReply> = records.change(step, options).await?;
        answer.map(|answer| reply(attempt, &answer)).transpose()
    }

    /// Fails if the insertion has collided with a document of another program (R22, O12).
    async fn refuse_other(&self, own: Document) -> Result<()> {
        let Self { records, budget, .. } = *self;
        let is_own = records.find_one::<Found>(own, records.layout.found(), budget).await?.is_some();
        if is_own || found(records, self.identity.clone(), budget).await?.is_none() { Ok(()) } else { Err(not_once()) }
    }

    /// Returns the error of a failed attempt.
    async fn explained(&self, failure: Failure) -> LockError {
        let Self { records, .. } = self;
        let layout = &records.layout;
        match failure {
            Failure::Driver(error) if is_unauthorized(&error) => {
                Box::pin(privileges::explain(records, self.if_missing, &error, self.budget)).await
            }
            Failure::Driver(error) if failed_with(&error, NOT_A_LOCK) => {
                let message = format!(
                    "the field {:?} of the document is no lock, and is left as it is: name another field for the \
                     locks (`DocumentLocksBuilder::field`)",
                    layout.field()
                );
                LockError::new(ErrorKind::Corrupt, message)
            }
            // The validator of an application's collection, or a unique index that the default
            // violates.
            Failure::Driver(error) if layout.is_within() => {
                rejection(&error).map_or_else(|| Failure::Driver(error).into(), |(_, rejected)| rejected)
            }
            failure => failure.into(),
        }
    }
}

/// Returns the filter of the document, if it is one of the library's own.
fn owned_filter(identity: Bson, filter: &Document) -> Document {
    let mut own = Layout::document(identity);
    own.extend(filter.clone());
    own
}
/// Makes the answer of an attempt that has changed nothing, not even left a ticket. The state of
/// the record is not known, so another attempt follows at once.
fn retry_at_once() -> Reply {
    Reply::Busy(BusyReply::new().with_holder_remaining(Duration::ZERO))
}

fn reply(attempt: &Attempt, answer: &AcquireReply) -> Result<Reply> {
    let remaining = millis(answer.remaining);
    if !answer.granted {
        let now = StoreTime::since_origin(millis(answer.now));
        // What keeps the key has an end, and what refuses a ticket is the number of others (R32).
        if answer.remaining == 0 || answer.now.saturating_add(answer.remaining) >= NEVER {
            return Err(garbled("`expiresAt` or `closedUntil` is not the date of any grant"));
        }
        let is_full = |capacity: u32| u64::try_from(answer.waiting).is_ok_and(|waiting| waiting >= capacity.into());
        if answer.at < 0 && attempt.ticket.is_some_and(|ticket| !is_full(ticket.capacity)) {
            return Err(garbled("`queue` is no list"));
        }
        let standing = match (u32::try_from(answer.at), attempt.ticket) {
            (Ok(ahead), _) => QueueStanding::Queued { ahead },
            (Err(_), Some(_)) => QueueStanding::Full,
            (Err(_), None) => QueueStanding::NotQueued,
        };
        let busy = BusyReply::new().with_holder_remaining(remaining).with_standing(standing);
        return Ok(Reply::Busy(busy.with_anchor(now, token(answer.since)?)));
    }
    grant(answer.token, answer.tokens, remaining).map(Reply::Granted)
}

/// Keeps the document that a grant has brought for the guard.
pub(crate) fn keep_document(claim: &Claim, document: RawDocumentBuf) {
    *claim_state(claim).document.lock().expect("no code in here panics") = Some(document);
}

/// Makes the grant of a block that ends with this token.
pub(crate) fn grant(last: i64, tokens: i32, remaining: Duration) -> Result<Grant> {
    let first = last.checked_sub(i64::from(tokens) - 1).ok_or_else(corrupt)?;
    let tokens = u32::try_from(tokens).ok().and_then(NonZeroU32::new).ok_or_else(corrupt)?;
    Ok(Grant::new(token(first)?, remaining).with_tokens(tokens))
}
