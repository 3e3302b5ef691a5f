//! Acquisitions: the first attempt and later ones, with a ticket or without (R7, R8, R9).
//!
//! A lease that is probably free is taken by the fast path, and for one that is probably held a
//! ticket is. All other attempts, and those that find the record in another state there, take
//! the full path: one command that decides by the state of the record.

use std::num::NonZeroU32;
use std::sync::atomic::Ordering;
use std::time::Duration;

use distlock_api::{ErrorKind, LockError, Result};
use distlock_engine::store::{Attempt, BusyReply, Claim, Grant, QueueStanding, Reply, StoreTime, Ticket};
use mongodb::bson::{Bson, Document, RawDocumentBuf};

use super::foreign::{found, refusal};
use crate::budget::Budget;
use crate::calls::{ChangeOptions, Failure, privileges};
use crate::claim::claim_state;
use crate::error::{failed_with, garbled, is_lost_race, is_unauthorized, no_document, rejection, unmarked};
use crate::lease::{AcquireReply, Found, Layout, NOT_A_LOCK, Taken, block, not_once};
use crate::numbers::{LATEST, corrupt, millis, token};
use crate::records::{IfMissing, Records};
use crate::topology::Deployment;

/// Sends one attempt to acquire.
pub(crate) async fn try_acquire(records: &Records, attempt: &Attempt) -> Result<Reply> {
    let budget = Budget::new(attempt.timeout);
    match try_fast_paths(records, attempt, &records.if_missing, budget).await? {
        Some(reply) => Ok(reply),
        None => acquire(records, attempt, &records.if_missing, false, budget).await,
    }
}

/// Sends one attempt to acquire that also reads the document, and keeps it in the claim's state.
pub(crate) async fn try_acquire_document(
    records: &Records,
    attempt: &Attempt,
    if_missing: &IfMissing,
) -> Result<Reply> {
    let budget = Budget::new(attempt.timeout);
    match try_fast_paths(records, attempt, if_missing, budget).await? {
        Some(reply) => Ok(reply),
        None => acquire(records, attempt, if_missing, true, budget).await,
    }
}

/// Tries the fast paths that suit what is known of the key. Returns `None` if the full path must
/// decide.
async fn try_fast_paths(
    records: &Records,
    attempt: &Attempt,
    if_missing: &IfMissing,
    budget: Budget,
) -> Result<Option<Reply>> {
    let Attempt { claim, ticket, .. } = attempt;
    let key = claim.key().as_str();
    let first = !claim_state(claim).attempted.swap(true, Ordering::Relaxed);
    // A caller that does not wait has one round trip, even if the lease has a holder (C18).
    let Some(ticket) = ticket.filter(|_| first) else { return Ok(None) };
    let is_exclusive = claim.mode().is_exclusive();
    let was_crowded = records.recent_use.was_crowded(key);
    let is_probably_free = matches!(if_missing, IfMissing::InsertRecord)
        && records.recent_use.was_free(key)
        && (is_exclusive || !was_crowded);
    if is_probably_free && let Some(granted) = take_if_free(records, attempt, budget).await? {
        return Ok(Some(granted));
    }
    let is_probably_held = is_exclusive && (is_probably_free || was_crowded) && !records.recent_use.had_modes(key);
    if is_probably_held && ticket.capacity > 0 {
        return take_ticket(records, attempt, &ticket, if_missing, budget).await;
    }
    Ok(None)
}

/// Takes a lease that is probably free. Returns `None` if it is in use.
async fn take_if_free(records: &Records, attempt: &Attempt, budget: Budget) -> Result<Option<Reply>> {
    let Records { layout, recent_use, .. } = records;
    let claim = &attempt.claim;
    let with_key = |error: LockError| error.with_key(claim.key().clone());
    // Meanwhile other callers of this process must take the full path.
    recent_use.mark_in_use(claim.key().as_str());
    if !claim.mode().is_exclusive() {
        recent_use.mark_modes(claim.key().as_str());
    }
    let identity = layout.identity(claim.key())?;
    let deployment = records.deployment(claim, budget).await?;
    let pipeline = layout.take(attempt, records.clock(deployment));
    let reading = records.server_clock.reading();
    let options = ChangeOptions { upsert: true, ..ChangeOptions::attempt(deployment, claim, budget) };
    match records.change::<Taken>(layout.if_unused(identity), pipeline, layout.token_taken(), options).await {
        Ok(Some(Taken { token, now })) => {
            reading.shows(millis(now));
            claim_state(claim).was_alone.store(true, Ordering::Relaxed);
            let grant = grant(token, block(attempt), attempt.ttl).map_err(with_key)?;
            Ok(Some(Reply::Granted(grant)))
        }
        Ok(None) => Err(with_key(unmarked())),
        Err(Failure::Late) => Ok(None),
        Err(Failure::Driver(error)) if is_lost_race(&error) => Ok(None),
        Err(Failure::Driver(error)) if is_unauthorized(&error) => {
            Err(with_key(Box::pin(privileges::explain(records, &records.if_missing, &error, budget)).await))
        }
        Err(failure) => Err(with_key(failure.into())),
    }
}

/// Takes a ticket for a lease that another acquisition probably holds. Returns `None` if the full
/// path must decide.
async fn take_ticket(
    records: &Records,
    attempt: &Attempt,
    ticket: &Ticket,
    if_missing: &IfMissing,
    budget: Budget,
) -> Result<Option<Reply>> {
    let Records { layout, recent_use, .. } = records;
    let claim = &attempt.claim;
    let with_key = |error: LockError| error.with_key(claim.key().clone());
    let identity = layout.identity(claim.key())?;
    let deployment = records.deployment(claim, budget).await?;
    let filter = layout.if_held_by_another(target_filter(layout, identity, if_missing), attempt, ticket);
    let pipeline = layout.take_ticket(attempt, ticket);
    let reading = records.server_clock.reading();
    let options = ChangeOptions::attempt(deployment, claim, budget);
    match records.change::<AcquireReply>(filter, pipeline, layout.ticket_taken(attempt), options).await {
        Ok(Some(answer)) => {
            reading.shows(millis(answer.now));
            mark_use(records, claim, &answer);
            reply(attempt, &answer).map(Some).map_err(with_key)
        }
        Ok(None) => {
            claim_state(claim).ticket_refused.store(true, Ordering::Relaxed);
            recent_use.mark_crowded(claim.key().as_str(), false);
            Ok(None)
        }
        // The full path decides, or says what is wrong.
        Err(Failure::Late) => Ok(None),
        Err(Failure::Driver(error)) if is_unauthorized(&error) || rejection(&error).is_some() => Ok(None),
        Err(failure) => Err(with_key(failure.into())),
    }
}

/// Remembers that the key is in use, and whether the caller has others before it or beside it.
fn mark_use(records: &Records, claim: &Claim, answer: &AcquireReply) {
    let key = claim.key().as_str();
    records.recent_use.mark_in_use(key);
    // What the fast path has just refused, it would refuse again.
    let may_be_short = !claim_state(claim).ticket_refused.load(Ordering::Relaxed);
    records.recent_use.mark_crowded(key, may_be_short && (answer.at > 0 || answer.others > 0));
}

/// Goes the full path. With a grant the document, if requested, is kept in the claim's state.
///
/// One that lost the race for a new record goes again: it may share the key with the winner. So
/// does one that was late by an outdated reading of the server's clock (R31).
async fn acquire(
    records: &Records,
    attempt: &Attempt,
    if_missing: &IfMissing,
    with_document: bool,
    budget: Budget,
) -> Result<Reply> {
    for is_last in [false, true] {
        if let Some(reply) = acquire_once(records, attempt, if_missing, with_document, is_last, budget).await? {
            return Ok(reply);
        }
    }
    // The new record was removed at once, and another one made.
    Ok(retry_at_once())
}

/// Sends one command. Returns `None` if it lost the race for a new record, or was late and may be
/// sent again.
async fn acquire_once(
    records: &Records,
    attempt: &Attempt,
    if_missing: &IfMissing,
    with_document: bool,
    is_last: bool,
    budget: Budget,
) -> Result<Option<Reply>> {
    let Records { layout, recent_use, .. } = records;
    let claim = &attempt.claim;
    let with_key = |error: LockError| error.with_key(claim.key().clone());
    let identity = layout.identity(claim.key())?;
    let deployment = records.deployment(claim, budget).await?;
    let default = match if_missing {
        IfMissing::InsertDefault(default) | IfMissing::InsertOwned { default, .. } => Some(default),
        IfMissing::InsertRecord | IfMissing::Fail => None,
    };
    let mut pipeline = layout.preparation(default);
    pipeline.extend(layout.acquire(attempt, records.clock(deployment)));
    let upsert = !matches!(if_missing, IfMissing::Fail);
    let options = ChangeOptions { upsert, ..ChangeOptions::attempt(deployment, claim, budget) };
    let projection = layout.acquisition(attempt, with_document);
    let reading = records.server_clock.reading();
    // A document that is no record is not matched, and the insertion collides with it (R22).
    let filter = target_filter(layout, identity.clone(), if_missing);
    match records.change::<AcquireReply>(filter, pipeline, projection, options).await {
        Ok(Some(mut answer)) => {
            reading.shows(millis(answer.now));
            mark_use(records, claim, &answer);
            if !claim.mode().is_exclusive() {
                recent_use.mark_modes(claim.key().as_str());
            }
            let was_alone = answer.granted && answer.waiting == 0 && answer.others == 0;
            claim_state(claim).was_alone.store(was_alone, Ordering::Relaxed);
            if with_document && answer.granted {
                let document = answer.document.take().ok_or_else(|| with_key(unmarked()))?;
                records.document_len.store(document.as_bytes().len(), Ordering::Relaxed);
                keep_document(claim, document);
            }
            reply(attempt, &answer).map(Some).map_err(with_key)
        }
        Ok(None) if upsert => Err(with_key(unmarked())),
        Ok(None) => Err(with_key(no_document())),
        Err(Failure::Late) if !is_last => Ok(None),
        Err(Failure::Driver(error)) if is_lost_race(&error) => match if_missing {
            IfMissing::InsertRecord => {
                after_collision(records, attempt, identity, deployment, budget).await.map_err(with_key)
            }
            IfMissing::InsertOwned { filter, .. } => {
                refuse_other(records, owned_filter(identity.clone(), filter), identity, budget)
                    .await
                    .map_err(with_key)?;
                Ok(None)
            }
            IfMissing::InsertDefault(_) | IfMissing::Fail => Ok(None),
        },
        Err(Failure::Driver(error)) if is_unauthorized(&error) => {
            Err(with_key(Box::pin(privileges::explain(records, if_missing, &error, budget)).await))
        }
        Err(Failure::Driver(error)) if failed_with(&error, NOT_A_LOCK) => {
            let message = format!(
                "the field {:?} of the document is no lock, and is left as it is: name another field for the locks \
                 (`DocumentLocksBuilder::field`)",
                layout.field()
            );
            Err(with_key(LockError::new(ErrorKind::Corrupt, message)))
        }
        // The validator of an application's collection, or a unique index that the default
        // violates.
        Err(Failure::Driver(error)) if layout.is_within() => {
            Err(with_key(rejection(&error).map_or_else(|| Failure::Driver(error).into(), |(_, rejected)| rejected)))
        }
        Err(failure) => Err(with_key(failure.into())),
    }
}

/// Handles a collision: another acquisition has inserted the record, or the document is none (R22).
/// Returns `None` if it is a record now.
async fn after_collision(
    records: &Records,
    attempt: &Attempt,
    identity: Bson,
    deployment: Deployment,
    budget: Budget,
) -> Result<Option<Reply>> {
    let Records { layout, adopts_foreign, .. } = records;
    let Some(found) = found(records, identity.clone(), budget).await?.filter(|found| !found.is_record()) else {
        return Ok(None);
    };
    let respected = found.respected_for().filter(|_| *adopts_foreign).ok_or_else(|| refusal(&found))?;
    if !respected.is_zero() {
        return Ok(Some(Reply::Busy(BusyReply::new().with_holder_remaining(respected))));
    }
    let (filter, pipeline) = (layout.expired_foreign(identity), layout.adopt(attempt, records.clock(deployment)));
    let options = ChangeOptions::attempt(deployment, &attempt.claim, budget);
    let answer = records.change::<AcquireReply>(filter, pipeline, layout.acquisition(attempt, false), options).await?;
    answer.map(|answer| reply(attempt, &answer)).transpose()
}

/// Returns the filter of the document that an acquisition changes.
fn target_filter(layout: &Layout, identity: Bson, if_missing: &IfMissing) -> Document {
    match if_missing {
        IfMissing::InsertRecord => layout.record(identity),
        IfMissing::InsertOwned { filter, .. } => owned_filter(identity, filter),
        IfMissing::InsertDefault(_) | IfMissing::Fail => Layout::document(identity),
    }
}

/// Returns the filter of the document, if it is one of the library's own.
fn owned_filter(identity: Bson, filter: &Document) -> Document {
    let mut own = Layout::document(identity);
    own.extend(filter.clone());
    own
}

/// Fails if the insertion has collided with a document of another program (R22, O12).
async fn refuse_other(records: &Records, own: Document, identity: Bson, budget: Budget) -> Result<()> {
    let is_own = records.find_one::<Found>(own, records.layout.found(), budget).await?.is_some();
    if is_own || found(records, identity, budget).await?.is_none() { Ok(()) } else { Err(not_once()) }
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
        if answer.remaining == 0 || answer.now.saturating_add(answer.remaining) >= LATEST {
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
