//! Acquisitions, releases and withdrawals of several keys by one command (R23, R24).
//!
//! A statement is for all keys with equal terms, because most of the server's work is per
//! statement: 128 of them took twice as long as one. No statement both inserts and updates, so keys
//! that have no record yet go by a command of their own. The commands go by hand, because the
//! driver numbers no update of several documents, and retries none that goes by hand. So each batch
//! is sent once.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::Ordering;
use std::time::Duration;

use distlock_api::{ErrorKind, LockError, ReleaseOutcome, Result};
use distlock_engine::store::{Attempt, BusyReply, Claim, Release, Reply, Used};
use futures_util::future::{OptionFuture, join, join_all};
use mongodb::bson::{Bson, Document, doc};
use serde::Deserialize;

use super::acquire::{grant, keep_document, try_acquire};
use super::release::{batch_ends, has_ended, release, withdraw};
use crate::budget::Budget;
use crate::calls::WriteReply;
use crate::claim::claim_state;
use crate::error::{Effect, failed_with, is_answer, is_unauthorized, refused, rejection, translate};
use crate::lease::plan::ConfirmedBy;
use crate::lease::{
    BatchTokens, Held, LATE, Leaving, Marked, NextHolders, TakenTogether, block, identity_index, last_of, token_at,
};
use crate::numbers::millis;
use crate::records::{IfMissing, Records};

/// How many keys go in one command. Twice as many took twice as long, and delayed other writes.
pub(crate) const KEYS: usize = 128;

/// The documents that a batch brings are this long at most, as far as is known. Longer ones would
/// make all callers of a batch wait for all of them.
const DOCUMENT_LEN: usize = 1 << 14;

/// Returns whether an attempt gains by going in a batch: of a key that is probably free, in a store
/// that knows its server's clock. Where a floor is ahead of the clock, a batch would take no key
/// twice. A batch inserts no document of the application's.
pub(crate) fn may_gather(records: &Records, attempt: &Attempt, if_missing: &IfMissing) -> bool {
    let known = records.key_memory.known(attempt.claim.key().as_str());
    records.server_clock.not_before().is_some_and(|now| records.token_floor <= token_at(now))
        && known.was_free
        && (matches!(if_missing, IfMissing::InsertRecord | IfMissing::Fail) || known.was_seen)
}

/// Makes attempts in one batch. Those that find their keys in use have done nothing, and are made
/// again one by one.
pub(crate) async fn try_acquire_many(records: &Records, attempts: &[Attempt]) -> Vec<Result<Reply>> {
    if let [attempt] = attempts
        && !wants_document(attempt)
    {
        return vec![try_acquire(records, attempt).await];
    }
    let Some(now) = records.server_clock.not_before() else {
        return attempts.iter().map(|_| Ok(undecided())).collect();
    };
    let budget = Budget::new(attempts.iter().map(limit).max().unwrap_or_default());
    let mut taking = Taking { records, budget, replies: attempts.iter().map(|_| None).collect() };
    if let Err(error) = taking.take(attempts, now).await {
        taking.fill(|| Err(error.clone()));
    }
    let missing = || Err(LockError::new(ErrorKind::Other, "an attempt of a batch without an answer").outcome_unknown());
    let replies = taking.replies.into_iter().zip(attempts);
    replies
        .map(|(reply, attempt)| {
            let reply = reply.unwrap_or_else(missing);
            if !reply.as_ref().is_err_and(LockError::is_outcome_unknown) {
                ended(attempt);
            }
            reply.map_err(|error| error.with_key(attempt.claim.key().clone()))
        })
        .collect()
}

/// Returns how long an attempt may act. It is of no use after the lease that it would bring.
fn limit(attempt: &Attempt) -> Duration {
    attempt.timeout.min(attempt.ttl)
}

/// Returns whether an attempt gains by bringing its document in a batch.
pub(crate) fn may_gather_document(records: &Records, attempt: &Attempt, if_missing: &IfMissing) -> bool {
    claim_state(&attempt.claim).wants_document.store(true, Ordering::Relaxed);
    records.document_len.load(Ordering::Relaxed) <= DOCUMENT_LEN && may_gather(records, attempt, if_missing)
}

fn wants_document(attempt: &Attempt) -> bool {
    claim_state(&attempt.claim).wants_document.load(Ordering::Relaxed)
}

/// Records that the batch of an attempt can no longer take effect.
fn ended(attempt: &Attempt) {
    claim_state(&attempt.claim).batch_ends.store(0, Ordering::Relaxed);
}

/// Returns how much longer the batch of the claim's attempt may take effect.
pub(crate) fn may_act_for(records: &Records, claim: &Claim) -> Duration {
    let ends = batch_ends(claim);
    ends.saturating_sub(records.server_clock.reached().unwrap_or(ends))
}

/// The answer of an attempt that did nothing, and is made again alone.
fn undecided() -> Reply {
    Reply::Busy(BusyReply::undecided())
}

/// A batch of attempts under way.
struct Taking<'a> {
    records: &'a Records,
    budget: Budget,
    replies: Vec<Option<Result<Reply>>>,
}

/// Attempts of a batch with equal terms: one statement.
struct Equal<'a> {
    attempts: Vec<&'a Attempt>,
    identities: Vec<Bson>,
    /// Whether the keys probably have no records.
    are_new: bool,
}

/// What has become of new records.
enum Inserted {
    All,
    /// The batch was late (R24).
    Late,
    /// Some keys have records, or the server refuses new ones. It may have inserted others.
    Unclear,
}

impl Taking<'_> {
    /// Answers all attempts, or returns what those without an answer failed with. `now` is a time
    /// that the server's clock has not passed.
    async fn take(&mut self, attempts: &[Attempt], now: Duration) -> Result<()> {
        let Self { records, budget, .. } = *self;
        let Records { layout, key_memory, .. } = records;
        // A collection that cannot be used is refused.
        let deployment = records.deployment_within(budget).await?;
        // In documents a query follows, which brings the tokens, too.
        let tokens = match records.if_missing {
            IfMissing::InsertRecord => BatchTokens::From(token_at(now).max(records.token_floor).max(1)),
            _ => BatchTokens::Clock(records.clock(deployment)),
        };
        let terms = Terms { tokens, now };
        let mut groups = Vec::<Equal<'_>>::new();
        // The numbers of the attempts that are sent.
        let mut sent = Vec::with_capacity(attempts.len());
        for (number, attempt) in attempts.iter().enumerate() {
            let identity = match layout.identity(attempt.claim.key()) {
                Ok(identity) => identity,
                Err(error) => {
                    self.replies[number] = Some(Err(error));
                    continue;
                }
            };
            let known = key_memory.begin_use(attempt.claim.key().as_str());
            let is_new = matches!(records.if_missing, IfMissing::InsertRecord) && !known.was_seen;
            sent.push(number);
            let fits = |group: &&mut Equal<'_>| group.are_new == is_new && have_equal_terms(group.attempts[0], attempt);
            match groups.iter_mut().find(fits) {
                Some(group) => {
                    group.attempts.push(attempt);
                    group.identities.push(identity);
                }
                None => groups.push(Equal { attempts: vec![attempt], identities: vec![identity], are_new: is_new }),
            }
        }
        if groups.is_empty() {
            return Ok(());
        }
        for attempt in sent.iter().map(|number| &attempts[*number]) {
            let state = claim_state(&attempt.claim);
            state.attempted.store(true, Ordering::Relaxed);
            // The statement's last instant, the longest stall, and the skew of the clocks.
            let ends = now + limit(attempt) + budget.limit() + attempt.margin;
            state.batch_ends.store(u64::try_from(ends.as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
        }
        let count = take_all(records, &groups, terms, budget).await?;
        // The server has answered: it executes nothing of it any more.
        sent.iter().for_each(|number| ended(&attempts[*number]));
        records.ensure_indexes();
        if count == Some(sent.len())
            && let BatchTokens::From(first) = terms.tokens
            && records.server_clock.was_read_recently()
        {
            for number in sent {
                let attempt = &attempts[number];
                self.granted(number, attempt, last_of(first, attempt), attempt.ttl);
            }
            return Ok(());
        }
        if count == Some(0) {
            self.fill(|| Ok(undecided()));
            return Ok(());
        }
        let sent_attempts: Vec<&Attempt> = sent.iter().map(|number| &attempts[*number]).collect();
        let mut taken = found(records, &sent_attempts, budget).await?;
        let (found, mut longest) = (taken.len(), None);
        for number in sent {
            let attempt = &attempts[number];
            if let Some(taken) = taken.remove(attempt.claim.id().as_str()) {
                if let Some(document) = taken.document {
                    longest = longest.max(Some(document.as_bytes().len()));
                    keep_document(&attempt.claim, document);
                }
                self.granted(number, attempt, taken.token, millis(taken.remaining));
            }
        }
        if let Some(longest) = longest {
            records.document_len.store(longest, Ordering::Relaxed);
        }
        if count.is_some_and(|count| count != found) {
            // Granted, and gone before the query.
            let message = "a lease that a batch has taken was not found afterwards";
            return Err(LockError::new(ErrorKind::Unavailable, message).outcome_unknown());
        }
        // In use, no record, or refused for a reason that the next attempt reports.
        self.fill(|| Ok(undecided()));
        Ok(())
    }

    /// Answers an attempt that was granted a block with this last token.
    fn granted(&mut self, number: usize, attempt: &Attempt, last: i64, remaining: Duration) {
        claim_state(&attempt.claim).was_alone.store(true, Ordering::Relaxed);
        self.replies[number] = Some(grant(last, block(attempt), remaining).map(Reply::Granted));
    }

    fn fill(&mut self, reply: impl Fn() -> Result<Reply>) {
        for missing in self.replies.iter_mut().filter(|reply| reply.is_none()) {
            *missing = Some(reply());
        }
    }
}

/// Returns whether one statement can take the leases of both.
fn have_equal_terms<'a>(one: &'a Attempt, other: &'a Attempt) -> bool {
    let terms =
        |attempt: &'a Attempt| (attempt.claim.mode(), attempt.ttl, attempt.tokens, &attempt.holder, limit(attempt));
    terms(one) == terms(other)
}

/// What the statements of a batch have in common.
#[derive(Clone, Copy)]
struct Terms {
    tokens: BatchTokens,
    /// A time that the server's clock has not passed.
    now: Duration,
}

/// Takes the leases of those keys that are free. Returns how many it took, if that is known.
async fn take_all(records: &Records, groups: &[Equal<'_>], terms: Terms, budget: Budget) -> Result<Option<usize>> {
    let (new, known): (Vec<_>, Vec<_>) = groups.iter().partition(|group| group.are_new);
    let inserting = join_all(new.iter().map(|group| insert(records, group, terms, budget)));
    let updating = OptionFuture::from((!known.is_empty()).then_some(async {
        match take(records, &known, terms, budget).await {
            // The server examines privileges before it does anything. The attempts that follow say
            // which one is missing.
            Err(error) if error.kind() == ErrorKind::PermissionDenied => Ok(Some(0)),
            taken => taken,
        }
    }));
    let (inserted, updated) = join(inserting, updating).await;
    // If one of several commands failed, another may have taken its leases.
    let is_single = new.len() + usize::from(updated.is_some()) == 1;
    let failed = |error: LockError| if is_single { error } else { error.outcome_unknown() };
    let mut count = updated.transpose().map_err(failed)?.unwrap_or(Some(0));
    let mut unclear = Vec::new();
    for (group, inserted) in new.into_iter().zip(inserted) {
        match inserted.map_err(failed)? {
            Inserted::All => count = count.map(|count| count + group.attempts.len()),
            Inserted::Late => {}
            Inserted::Unclear => unclear.push(group),
        }
    }
    if !unclear.is_empty() {
        // With this one the majority also has what was inserted.
        take(records, &unclear, terms, budget).await.map_err(LockError::outcome_unknown)?;
        count = None;
    }
    Ok(count)
}

/// Inserts records with their leases.
async fn insert(records: &Records, group: &Equal<'_>, terms: Terms, budget: Budget) -> Result<Inserted> {
    let Equal { attempts, identities, .. } = group;
    let bound = terms.now + limit(attempts[0]);
    let pipeline = records.layout.take_new(attempts, identities, terms.tokens, bound, records.collection.name());
    let command = doc! {
        "aggregate": 1,
        "pipeline": pipeline,
        "cursor": {},
        "writeConcern": { "w": "majority" },
        "maxTimeMS": budget.max_time_ms(),
    };
    let call = async { records.database.run_command(command).await };
    match records.attempt(budget, Effect::Write, call).await? {
        Ok(reply) => match WriteReply::read(reply)?.write_concern_error {
            None => Ok(Inserted::All),
            Some(refusal) => Err(refused(&refusal, true)),
        },
        Err(error) if failed_with(&error, LATE) => Ok(Inserted::Late),
        Err(error) if rejection(&error).is_some() || is_unauthorized(&error) => Ok(Inserted::Unclear),
        // Interrupted after some of them.
        Err(error) if is_answer(&error) => Err(translate(&error, Effect::Write).outcome_unknown()),
        Err(error) => Err(translate(&error, Effect::Write)),
    }
}

/// Takes the leases of those records that are free, by one command. Returns how many, if all
/// statements were carried out.
async fn take(records: &Records, groups: &[&Equal<'_>], terms: Terms, budget: Budget) -> Result<Option<usize>> {
    let layout = &records.layout;
    let statements = groups.iter().map(|Equal { attempts, identities, .. }| {
        doc! {
            "q": layout.all_unused(identities, terms.tokens, terms.now + limit(attempts[0])),
            "u": layout.take_together(attempts, identities, terms.tokens),
            "multi": true,
            "hint": identity_index(),
        }
    });
    let updated = update(records, statements.collect(), ConfirmedBy::Majority, budget).await?;
    match &updated.write_concern_error {
        Some(refusal) => Err(refused(refusal, true)),
        None if updated.write_errors.is_empty() => updated.found().map(Some),
        None => Ok(None),
    }
}

/// Returns what the acquisitions have, by their ids.
async fn found(records: &Records, attempts: &[&Attempt], budget: Budget) -> Result<HashMap<String, TakenTogether>> {
    let layout = &records.layout;
    let identities = attempts.iter().map(|attempt| layout.identity(attempt.claim.key())).collect::<Result<Vec<_>>>()?;
    let ids: Vec<&str> = attempts.iter().map(|attempt| attempt.claim.id().as_str()).collect();
    let reading = records.server_clock.reading();
    let filter = layout.held_by_any(identities, &ids);
    let wanting = attempts.iter().filter(|attempt| wants_document(attempt));
    let wanting: Vec<&str> = wanting.map(|attempt| attempt.claim.id().as_str()).collect();
    let projection = layout.taken_together(&ids, &wanting);
    let taken: Vec<Marked<TakenTogether>> = match records.find_all(filter, projection, budget).await {
        Ok(taken) => taken,
        // The leases may be there. If the documents were too long, the next ones go one by one.
        Err(error) => {
            if !wanting.is_empty() {
                records.document_len.store(usize::MAX, Ordering::Relaxed);
            }
            return Err(error.outcome_unknown());
        }
    };
    let taken: Vec<TakenTogether> = taken.into_iter().filter_map(|marked| marked.answer).collect();
    if let Some(taken) = taken.first() {
        reading.shows(millis(taken.now));
    }
    Ok(taken.into_iter().map(|taken| (taken.id.clone(), taken)).collect())
}

/// Sends one update of several statements, in no order.
async fn update(
    records: &Records,
    statements: Vec<Document>,
    confirmed_by: ConfirmedBy,
    budget: Budget,
) -> Result<WriteReply> {
    let write_concern: Bson = match confirmed_by {
        ConfirmedBy::Majority => "majority".into(),
        ConfirmedBy::Primary => 1.into(),
    };
    let command = doc! {
        "update": records.collection.name(),
        "updates": statements,
        "ordered": false,
        "writeConcern": { "w": write_concern },
        "maxTimeMS": budget.max_time_ms(),
    };
    // If the server answers with an error, some statements may have been carried out.
    WriteReply::read(records.run_once(command, budget).await?.map_err(LockError::outcome_unknown)?)
}

/// Returns whether a release gains by going in a batch: of a lease that had no waiter, and no other
/// holder, when it was granted.
pub(crate) fn may_gather_release(release: &Release) -> bool {
    release.hold_at_least.is_none() && claim_state(&release.claim).was_alone.load(Ordering::Relaxed)
}

/// Releases in one batch, by the fast path. What it does not free, and no earlier one has freed, is
/// released again, alone: it may have a waiter, another holder, or a minimum hold, which the fast
/// path does not keep (C25).
pub(crate) async fn release_many(records: &Records, releases: &[Release]) -> Vec<Result<ReleaseOutcome>> {
    if let [single] = releases {
        return vec![release(records, single).await];
    }
    let budget = Budget::new(releases.iter().map(|release| release.timeout).min().unwrap_or_default());
    let together: Vec<&Release> = releases.iter().filter(|release| release.hold_at_least.is_none()).collect();
    let freed = free(records, &together, budget).await;
    let outcome = |release: &Release| match &freed {
        Ok(freed) if freed.contains(release.claim.id().as_str()) => Ok(ReleaseOutcome::Released),
        Err(error) if release.hold_at_least.is_none() => Err(error.clone()),
        _ => Err(LockError::new(ErrorKind::Unavailable, "a batch did not release the lease: release it alone")),
    };
    let with_key = |release: &Release| outcome(release).map_err(|error| error.with_key(release.claim.key().clone()));
    releases.iter().map(with_key).collect()
}

/// Frees the leases that the claims hold and that have no waiter and no other holder. Returns
/// whose.
async fn free(records: &Records, releases: &[&Release], budget: Budget) -> Result<HashSet<String>> {
    if releases.is_empty() {
        return Ok(HashSet::new());
    }
    let Records { layout, key_memory, .. } = records;
    releases.iter().for_each(|release| claim_state(&release.claim).release_sent.store(true, Ordering::Relaxed));
    // Those whose last token is known go in one statement, and of the others those with the same
    // knowledge: see `Layout::free_together`.
    let known = |used: Used| if matches!(used, Used::UpTo(_)) { None } else { Some(used) };
    let mut groups = Vec::<((Held, Option<Used>), Vec<&Claim>)>::new();
    for Release { claim, .. } in releases.iter().copied() {
        let of = (Held::of(claim.mode()), known(claim.used()));
        match groups.iter_mut().find(|(group, _)| *group == of) {
            Some((_, claims)) => claims.push(claim),
            None => groups.push((of, vec![claim])),
        }
    }
    let statements = groups.iter().map(|((held, _), claims)| {
        let identities = claims.iter().map(|claim| layout.identity(claim.key())).collect::<Result<Vec<_>>>()?;
        let ids: Vec<&str> = claims.iter().map(|claim| claim.id().as_str()).collect();
        let used: Vec<_> = claims.iter().map(|claim| (claim.id(), claim.used())).collect();
        Ok(doc! {
            "q": layout.all_held_without_waiters(*held, identities, &ids),
            "u": layout.free_together(*held, &used),
            "multi": true,
            "hint": identity_index(),
        })
    });
    let statements = statements.collect::<Result<Vec<_>>>()?;
    let updated = update(records, statements, ConfirmedBy::Primary, budget).await?;
    let claims = || releases.iter().map(|release| &release.claim);
    let freed: HashSet<String> = if updated.found()? == releases.len() {
        claims().map(|claim| claim.id().as_str().to_owned()).collect()
    } else {
        // What the update has freed stays free.
        released_by(records, claims(), budget).await.map_err(LockError::outcome_unknown)?
    };
    let keys = claims().filter(|claim| freed.contains(claim.id().as_str())).map(Claim::key);
    keys.for_each(|key| key_memory.end_use(key.as_str()));
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
        ids: Vec<Bson>,
    }
    let layout = &records.layout;
    let identities = claims.map(|claim| layout.identity(claim.key())).collect::<Result<Vec<_>>>()?;
    let found: Vec<Remembered> =
        records.find_all(layout.records(identities), layout.releases_remembered(), budget).await?;
    let ids = found.into_iter().flat_map(|remembered| remembered.ids);
    // What is no id was written by another program.
    Ok(ids.filter_map(|id| if let Bson::String(id) = id { Some(id) } else { None }).collect())
}

/// Returns whether a withdrawal may go in a batch: of a claim that has numbered no write. Without a
/// number it would not refuse the straggler of a numbered attempt (R11). A call that has the
/// session now is such an attempt.
pub(crate) fn may_gather_withdrawal(claim: &Claim) -> bool {
    claim_state(claim).session.try_lock().is_ok_and(|session| session.is_none())
}

/// Withdraws several claims in one batch, by the full path of a release. Withdrawals carry no
/// number, and no bound (R31).
pub(crate) async fn withdraw_many(records: &Records, claims: &[Claim], timeout: Duration) -> Vec<Result<()>> {
    if let [single] = claims {
        return vec![withdraw(records, single, timeout).await];
    }
    let budget = Budget::new(timeout);
    claims.iter().for_each(|claim| claim_state(claim).release_sent.store(true, Ordering::Relaxed));
    let ends: Vec<Duration> = claims.iter().map(batch_ends).collect();
    // R24: of the server's clock before the withdrawal.
    let now = OptionFuture::from(ends.iter().any(|ends| !ends.is_zero()).then(|| records.read_server_clock(budget)));
    let now = now.await.unwrap_or(Ok(Duration::ZERO));
    let answers = match withdraw_all(records, claims, budget).await {
        Ok(answers) => answers,
        Err(error) => vec![Err(error); claims.len()],
    };
    let answers = answers.into_iter().zip(claims).zip(ends).map(|((answer, claim), ends)| {
        let answer = answer.and_then(|()| {
            if ends.is_zero() {
                return Ok(());
            }
            // It was free when the batch was sent.
            records.key_memory.end_use(claim.key().as_str());
            now.clone().and_then(|now| has_ended(claim, ends, now))
        });
        answer.map_err(|error| error.with_key(claim.key().clone()))
    });
    answers.collect()
}

/// Claims of different keys that one statement can withdraw, with their numbers.
struct Withdrawn<'a> {
    numbers: Vec<usize>,
    claims: Vec<&'a Claim>,
    identities: Vec<Bson>,
}

/// Ends the leases and the tickets of the claims. Those of a statement that fails are withdrawn
/// again, alone: one record's refusal ends it.
async fn withdraw_all(records: &Records, claims: &[Claim], budget: Budget) -> Result<Vec<Result<()>>> {
    let layout = &records.layout;
    let clock = records.clock(records.deployment_within(budget).await?);
    let mut answers = vec![Ok(()); claims.len()];
    let known = |used: Used| if matches!(used, Used::UpTo(_)) { None } else { Some(used) };
    let mut groups = Vec::<Withdrawn<'_>>::new();
    for (number, claim) in claims.iter().enumerate() {
        let identity = match layout.identity(claim.key()) {
            Ok(identity) => identity,
            Err(error) => {
                answers[number] = Err(error);
                continue;
            }
        };
        let fits = |group: &&mut Withdrawn<'_>| {
            let first = group.claims[0];
            (first.mode(), known(first.used())) == (claim.mode(), known(claim.used()))
                && group.claims.iter().all(|other| other.key() != claim.key())
        };
        match groups.iter_mut().find(fits) {
            Some(group) => {
                group.numbers.push(number);
                group.claims.push(claim);
                group.identities.push(identity);
            }
            None => {
                groups.push(Withdrawn { numbers: vec![number], claims: vec![claim], identities: vec![identity] });
            }
        }
    }
    if groups.is_empty() {
        return Ok(answers);
    }
    let statements = groups.iter().map(|Withdrawn { claims, identities, .. }| {
        let ids: Vec<&str> = claims.iter().map(|claim| claim.id().as_str()).collect();
        doc! {
            "q": layout.records_with(identities.clone(), &ids),
            "u": layout.release(&Leaving::together(claims, identities), NextHolders::OfAnyMode, clock),
            "multi": true,
            "hint": identity_index(),
        }
    });
    let updated = update(records, statements.collect(), ConfirmedBy::Majority, budget).await?;
    if let Some(refusal) = &updated.write_concern_error {
        return Err(refused(refusal, true));
    }
    let failed = updated.write_errors.iter().filter_map(|refusal| groups.get(refusal.index));
    let again = failed.flat_map(|group| &group.numbers);
    // One after the other: this batch has one place in the lanes, and may not take more connections
    // from renewals than that.
    for number in again {
        answers[*number] = withdraw(records, &claims[*number], budget.left()).await;
    }
    Ok(answers)
}
