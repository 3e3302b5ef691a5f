//! Acquisitions and releases of several keys by one command (R23, R24).
//!
//! The commands go by hand, because the driver numbers no update of several statements, and retries
//! none that goes by hand. So each batch is sent once.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::Ordering;
use std::time::Duration;

use distlock_api::{ErrorKind, LockError, ReleaseOutcome, Result};
use distlock_engine::store::{Attempt, BusyReply, Claim, Release, Reply};
use futures_util::future::join_all;
use mongodb::bson::{Bson, Document, doc};
use serde::Deserialize;

use super::acquire::{grant, try_acquire};
use super::release::release;
use crate::budget::Budget;
use crate::calls::ConfirmedBy;
use crate::claim::claim_state;
use crate::error::{DUPLICATE_KEY, Refusal, refused, unreadable};
use crate::lease::{Marked, TakenTogether, block};
use crate::numbers::millis;
use crate::records::{Absent, Records};

/// How many statements one command has. Twice as many took twice as long, and delayed other writes.
pub(crate) const STATEMENTS: usize = 128;

/// The reply to an update of several statements.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Updated {
    /// How many statements matched or inserted a document.
    n: usize,
    #[serde(default)]
    write_errors: Vec<Failed>,
    write_concern_error: Option<Refusal>,
}

/// A statement that failed.
#[derive(Deserialize)]
struct Failed {
    index: usize,
    #[serde(flatten)]
    refusal: Refusal,
}

/// Whether an attempt gains by going in a batch: a key that is probably free, in a store that knows
/// its server's clock.
pub(crate) fn may_gather(records: &Records, attempt: &Attempt) -> bool {
    matches!(records.absent, Absent::Record)
        && records.topology.known().is_some()
        && records.server_clock.is_known()
        && records.recent_use.was_free(attempt.claim.key().as_str())
}

/// Makes attempts in one batch. Those that find their keys in use have done nothing, and are made
/// again one by one.
pub(crate) async fn try_acquire_many(records: &Records, attempts: &[Attempt]) -> Vec<Result<Reply>> {
    let (Some(now), [_, _, ..]) = (records.server_clock.not_before(), attempts) else {
        return join_all(attempts.iter().map(|attempt| try_acquire(records, attempt))).await;
    };
    let budget = Budget::new(attempts.iter().map(limit).max().unwrap_or_default());
    let mut taking = Taking { records, budget, replies: attempts.iter().map(|_| None).collect() };
    if let Err(error) = taking.take(attempts, now).await {
        taking.fill(|| error.clone());
    }
    let missing = || Err(LockError::new(ErrorKind::Other, "an attempt of a batch without an answer").outcome_unknown());
    let replies = taking.replies.into_iter().zip(attempts);
    replies
        .map(|(reply, attempt)| {
            let reply = reply.unwrap_or_else(missing);
            if !reply.as_ref().is_err_and(LockError::is_outcome_unknown) {
                claim_state(&attempt.claim).batch_ends.store(0, Ordering::Relaxed);
            }
            reply.map_err(|error| error.with_key(attempt.claim.key().clone()))
        })
        .collect()
}

/// How long an attempt may act. It is of no use after the lease that it would bring.
fn limit(attempt: &Attempt) -> Duration {
    attempt.timeout.min(attempt.ttl)
}

/// Returns how much longer the batch of the claim's attempt may take effect.
pub(crate) fn may_act_for(records: &Records, claim: &Claim) -> Duration {
    let ends = Duration::from_millis(claim_state(claim).batch_ends.load(Ordering::Relaxed));
    ends.saturating_sub(records.server_clock.not_before().unwrap_or(ends))
}

/// A batch of attempts under way.
struct Taking<'a> {
    records: &'a Records,
    budget: Budget,
    replies: Vec<Option<Result<Reply>>>,
}

impl Taking<'_> {
    /// Answers all attempts, or returns what those without an answer failed with. `now` is a time
    /// that the server's clock has not passed.
    async fn take(&mut self, attempts: &[Attempt], now: Duration) -> Result<()> {
        let Self { records, budget, .. } = *self;
        let Records { layout, recent_use, .. } = records;
        let deployment = records.deployment_within(budget).await?;
        let clock = records.clock(deployment);
        let mut statements = Vec::with_capacity(attempts.len());
        // The number of a statement's attempt.
        let mut numbers = Vec::with_capacity(attempts.len());
        for (number, attempt) in attempts.iter().enumerate() {
            let (claim, key) = (&attempt.claim, attempt.claim.key());
            match layout.identity(key) {
                Ok(identity) => {
                    let bound = now + limit(attempt);
                    let take = layout.take_until(attempt, clock, bound);
                    statements.push(doc! { "q": layout.if_unused(identity), "u": take, "upsert": true });
                    numbers.push(number);
                    recent_use.mark_in_use(key.as_str());
                    let state = claim_state(claim);
                    state.attempted.store(true, Ordering::Relaxed);
                    // The statement's last instant, the longest stall, and the skew of the clocks.
                    let ends = bound + budget.limit() + attempt.margin;
                    state.batch_ends.store(u64::try_from(ends.as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
                }
                Err(error) => self.replies[number] = Some(Err(error)),
            }
        }
        let updated = update(records, statements, ConfirmedBy::Majority, budget).await?;
        for Failed { index, refusal } in &updated.write_errors {
            let Some(number) = numbers.get(*index) else { continue };
            // There is a record that is in use, or a document that is none.
            let in_use = refusal.code == DUPLICATE_KEY;
            self.replies[*number] = Some(if in_use { Ok(again_alone()) } else { Err(refused(refusal, false)) });
        }
        if let Some(refusal) = &updated.write_concern_error {
            return Err(refused(refusal, true));
        }
        let granted: Vec<&Attempt> =
            numbers.iter().filter(|number| self.replies[**number].is_none()).map(|number| &attempts[*number]).collect();
        if granted.is_empty() {
            return Ok(());
        }
        let taken = found(records, &granted, budget).await?;
        for number in numbers {
            let claim = &attempts[number].claim;
            if self.replies[number].is_none()
                && let Some(taken) = taken.get(claim.id().as_str())
            {
                claim_state(claim).had_no_waiter.store(true, Ordering::Relaxed);
                let tokens = block(&attempts[number]);
                self.replies[number] = Some(grant(taken.token, tokens, millis(taken.remaining)).map(Reply::Granted));
            }
        }
        // Granted, and gone before the query; or the batch came after its bound.
        self.fill(|| {
            let message = "a lease that a batch has taken was not found afterwards";
            LockError::new(ErrorKind::Unavailable, message).outcome_unknown()
        });
        Ok(())
    }

    fn fill(&mut self, error: impl Fn() -> LockError) {
        for reply in self.replies.iter_mut().filter(|reply| reply.is_none()) {
            *reply = Some(Err(error()));
        }
    }
}

/// Returns what the acquisitions have, by their ids.
async fn found(records: &Records, attempts: &[&Attempt], budget: Budget) -> Result<HashMap<String, TakenTogether>> {
    let layout = &records.layout;
    let identities = attempts.iter().map(|attempt| layout.identity(attempt.claim.key())).collect::<Result<Vec<_>>>()?;
    let ids: Vec<&str> = attempts.iter().map(|attempt| attempt.claim.id().as_str()).collect();
    let reading = records.server_clock.reading();
    let filter = layout.held_by_any(identities, &ids);
    let taken: Vec<Marked<TakenTogether>> = match records.find_all(filter, layout.taken_together(), budget).await {
        Ok(taken) => taken,
        // The leases may be there.
        Err(error) => return Err(error.outcome_unknown()),
    };
    let taken: Vec<TakenTogether> = taken.into_iter().filter_map(|marked| marked.answer).collect();
    if let Some(taken) = taken.first() {
        reading.shows(millis(taken.now));
    }
    Ok(taken.into_iter().map(|taken| (taken.id.clone(), taken)).collect())
}

/// The answer of an attempt that found its key in use and did nothing: it is made again, alone.
fn again_alone() -> Reply {
    Reply::Busy(BusyReply::new().with_holder_remaining(Duration::ZERO))
}

/// Sends one update of several statements, in no order.
async fn update(
    records: &Records,
    statements: Vec<Document>,
    confirmed_by: ConfirmedBy,
    budget: Budget,
) -> Result<Updated> {
    let write_concern: Bson = match confirmed_by {
        ConfirmedBy::Majority => "majority".into(),
        ConfirmedBy::Primary => 1.into(),
    };
    let reply = records
        .run_update(
            doc! {
                "update": records.collection.name(),
                "updates": statements,
                "ordered": false,
                "writeConcern": { "w": write_concern },
                "maxTimeMS": budget.max_time_ms(),
            },
            budget,
        )
        .await?;
    mongodb::bson::from_document(reply).map_err(unreadable)
}

/// Whether a release gains by going in a batch: of a lease that had no waiter when it was granted.
pub(crate) fn may_gather_release(release: &Release) -> bool {
    let state = claim_state(&release.claim);
    release.hold_at_least.is_none()
        && state.had_no_waiter.load(Ordering::Relaxed)
        && !state.release_sent.load(Ordering::Relaxed)
}

/// Releases in one batch, by the short way. What it does not find is released one by one.
pub(crate) async fn release_many(records: &Records, releases: &[Release]) -> Vec<Result<ReleaseOutcome>> {
    let limit = releases.iter().map(|release| release.timeout).min().unwrap_or_default();
    let one_by_one =
        |releases: Vec<Release>| async move { join_all(releases.iter().map(|it| release(records, it))).await };
    let [_, _, ..] = releases else { return one_by_one(releases.to_vec()).await };
    match free(records, releases, Budget::new(limit)).await {
        Ok(freed) if freed.len() == releases.len() => releases.iter().map(|_| Ok(ReleaseOutcome::Released)).collect(),
        Ok(freed) => {
            let left = releases.iter().filter(|it| !freed.contains(it.claim.id().as_str())).cloned().collect();
            let mut left = one_by_one(left).await.into_iter();
            let answers = releases.iter().map(|it| match freed.contains(it.claim.id().as_str()) {
                true => Ok(ReleaseOutcome::Released),
                false => left.next().unwrap_or_else(|| Err(LockError::new(ErrorKind::Other, "no answer"))),
            });
            answers.collect()
        }
        Err(error) => releases.iter().map(|it| Err(error.clone().with_key(it.claim.key().clone()))).collect(),
    }
}

/// Frees the leases that the claims hold and that have no waiter. Returns whose.
async fn free(records: &Records, releases: &[Release], budget: Budget) -> Result<HashSet<String>> {
    let Records { layout, recent_use, .. } = records;
    let mut statements = Vec::with_capacity(releases.len());
    for Release { claim, .. } in releases {
        claim_state(claim).release_sent.store(true, Ordering::Relaxed);
        let filter = layout.held_without_waiters(layout.identity(claim.key())?, claim.id());
        statements.push(doc! { "q": filter, "u": layout.free(claim.id(), claim.used()) });
    }
    let updated = update(records, statements, ConfirmedBy::Primary, budget).await?;
    let claims = || releases.iter().map(|release| &release.claim);
    let freed: HashSet<String> = if updated.n == releases.len() {
        claims().map(|claim| claim.id().as_str().to_owned()).collect()
    } else {
        released_by(records, claims(), budget).await?
    };
    let keys = claims().filter(|claim| freed.contains(claim.id().as_str())).map(Claim::key);
    keys.for_each(|key| recent_use.mark_free(key.as_str()));
    Ok(freed)
}

/// Returns which claims the records remember as released.
async fn released_by<'a>(
    records: &Records,
    claims: impl Iterator<Item = &'a Claim> + Clone,
    budget: Budget,
) -> Result<HashSet<String>> {
    #[derive(Deserialize)]
    struct Remembered {
        #[serde(rename = "distlock")]
        ids: Vec<String>,
    }
    let layout = &records.layout;
    let identities = claims.map(|claim| layout.identity(claim.key())).collect::<Result<Vec<_>>>()?;
    let found: Vec<Remembered> =
        records.find_all(layout.records(identities), layout.releases_remembered(), budget).await?;
    Ok(found.into_iter().flat_map(|remembered| remembered.ids).collect())
}
