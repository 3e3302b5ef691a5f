//! Transactions that only the present holder can commit.
//!
//! The first operation of the transaction stamps a *fence record*, one per lock, with the token and
//! counts up. So every two transactions of one lock write to one record. Those that overlap
//! conflict at the server, which lets one of them commit; the other one begins again, and then sees
//! the commit or is fenced off.
//!
//! The count is what makes this sound for a holder with many transactions. Its token is in the
//! record already, and an update that changes nothing is no write. It would conflict with none, and
//! a late transaction could commit after one of a later holder.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use distlock_api::{Disposition, ErrorKind, LockError, Phase, Result};
use mongodb::bson::{Bson, Document, doc};
use mongodb::error::{
    Error, ErrorKind as DriverKind, TRANSIENT_TRANSACTION_ERROR, UNKNOWN_TRANSACTION_COMMIT_RESULT, WriteFailure,
};
use mongodb::options::{ReadConcern, ReadPreference, SelectionCriteria, UpdateModifications, WriteConcern};
use mongodb::{ClientSession, Collection};
use tokio::time::{Instant, sleep, timeout_at};

use super::answer::Fenced;
use super::check_inserts;
use super::fence::{Fence, FenceState, read};
use crate::error::{DUPLICATE_KEY, Effect, command_code, translate};
use crate::topology::{ended_before, translate_for};

/// The field that counts the transactions.
const COUNT: &str = "transactions";
/// The server's code for a time limit.
const TIME_LIMIT: i32 = 50;
/// The server's code for an operation that transactions cannot have.
const NOT_IN_A_TRANSACTION: i32 = 263;

/// The work of a [`FencedTransaction`]. Box an `async move` block.
pub type TransactionWork<'s, R> = Pin<Box<dyn Future<Output = mongodb::error::Result<R>> + Send + 's>>;

/// Transactions of several documents that only the present holder can commit. Made by
/// [`Fence::transaction`].
///
/// The first operation of each transaction checks the holder's token against a *fence record*, and
/// stamps it. If a later holder has committed, the answer is [`Fenced::FencedOff`], and nothing is
/// written. No document of the application needs a field for it.
///
/// ```no_run
/// use distlock_api::{LockError, LockProvider, LockProviderExt};
/// use distlock_mongo::mongodb::Database;
/// use distlock_mongo::mongodb::bson::{Document, doc};
/// use distlock_mongo::{Fence, Fenced, TransactionError};
///
/// async fn transfer(locks: &dyn LockProvider, bank: &Database) -> Result<(), TransactionError> {
///     let guard = locks.acquire("accounts").await?;
///     let accounts = bank.collection::<Document>("accounts");
///     let fence = Fence::of(&guard)?.transaction(&bank.collection::<Document>("fences"), "accounts");
///     let transferred = fence.run(|session| {
///         let accounts = accounts.clone();
///         Box::pin(async move {
///             for (id, amount) in [("a", -10), ("b", 10)] {
///                 let change = doc! { "$inc": { "balance": amount } };
///                 accounts.update_one(doc! { "_id": id }, change).session(&mut *session).await?;
///             }
///             Ok(())
///         })
///     });
///     match transferred.await? {
///         Fenced::FencedOff { newest } => println!("the lock was lost to token {newest}"),
///         _ => println!("transferred"),
///     }
///     guard.release().await?;
///     Ok(())
/// }
/// ```
///
/// # Conditions
/// * **A replica set** or a sharded cluster: a standalone server has no transactions.
/// * **A record of its own.** All transactions under one lock use the same record, and no others
///   do. Never use the record of the lock itself: an open transaction would delay its renewals. The
///   record is inserted by its first use, and must never be deleted: without it an earlier holder
///   could commit.
/// * **All writers use the record.** A plain write, or a write through a [`Fence`] of a document,
///   is not checked against it. It conflicts only with transactions that change the same document.
///
/// # Transactions that overlap
/// Transactions of one record are serialized, also those that only read, and several of one holder.
/// One of two that overlap is refused at its stamp, before it has done anything, and tries again
/// until the other one has ended.
///
/// So a later holder waits for the commit of an earlier one that was in time, and then sees what it
/// has written. An earlier holder that comes later is fenced off. A holder that is killed or paused
/// inside a transaction delays its successor until the server ends the transaction. That is
/// `transactionLifetimeLimitSeconds` after its beginning, 60 s by default, and up to half as long
/// again until the server looks for it. The [default limit](Self::DEFAULT_LIMIT) covers both.
///
/// # Concerns
/// Read concern `snapshot`, write concern `majority` and the primary, regardless of the options of
/// the client: a stamp that is rolled back would stop no late holder. Anything weaker is refused by
/// this type, because it cannot be set.
#[derive(Clone, Debug)]
#[must_use]
pub struct FencedTransaction {
    fence: Fence,
    records: Collection<Document>,
    id: Bson,
    limit: Duration,
}

impl Fence {
    /// Makes transactions that are checked against the fence record with this `_id` in the
    /// collection `records`. The field of the token is the same as of the fence. See
    /// [`FencedTransaction`].
    pub fn transaction<T: Send + Sync>(&self, records: &Collection<T>, id: impl Into<Bson>) -> FencedTransaction {
        let (records, limit) = (records.clone_with_type(), FencedTransaction::DEFAULT_LIMIT);
        FencedTransaction { fence: self.clone(), records, id: id.into(), limit }
    }
}

impl FencedTransaction {
    /// The default limit of [`within`](Self::within): 120 s. It is twice the server's default
    /// `transactionLifetimeLimitSeconds`, so that the successor of a holder that was killed inside
    /// a transaction still succeeds.
    pub const DEFAULT_LIMIT: Duration = Duration::from_secs(120);

    /// Sets how long [`run`](Self::run) may take, all attempts included. Defaults to
    /// [`DEFAULT_LIMIT`](Self::DEFAULT_LIMIT).
    ///
    /// With less than one and a half times the server's `transactionLifetimeLimitSeconds` (60 s by
    /// default), it can fail with [`Timeout`](ErrorKind::Timeout) behind the open transaction of a
    /// holder that was killed. It can then be repeated.
    pub fn within(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// Checks and stamps the record in a transaction of the caller's own, for transactions that
    /// [`run`](Self::run) does not fit. It must be the first operation of the transaction, which
    /// must be aborted unless the answer is [`Fenced::Accepted`]. [`Fenced::NoDocument`] means that
    /// the record must be inserted first, outside of the transaction: [`prepare`](Self::prepare).
    ///
    /// Start the transaction with read concern `snapshot` and write concern `majority`.
    ///
    /// # Errors
    /// Those of the driver, with its labels. What the fence refuses is a
    /// [custom error](Error::get_custom) with a [`LockError`].
    ///
    /// # Cancel safety
    /// The transaction must be aborted, as the drop of the session does.
    pub async fn stamp(&self, session: &mut ClientSession) -> mongodb::error::Result<Fenced<()>> {
        let filter = doc! { "_id": { "$eq": &self.id } };
        let update = self.update().map_err(Error::custom)?;
        let stamped = self.records.update_one(self.fence.filter(filter.clone()), update);
        if stamped.session(&mut *session).await?.matched_count > 0 {
            return Ok(Fenced::Accepted(()));
        }
        let found = self.records.find_one(filter).projection(doc! { "_id": 0, &self.fence.field: 1 });
        let Some(record) = found.session(session).await? else { return Ok(Fenced::NoDocument) };
        match read(record.get(&self.fence.field), self.fence.token) {
            Ok(FenceState::Newer(newest)) => Ok(Fenced::FencedOff { newest }),
            Ok(FenceState::Open) => {
                let message = "the fence record changed between its stamp and its check: begin a transaction first";
                Err(Error::custom(LockError::new(ErrorKind::Unavailable, message)))
            }
            Err(error) => Err(Error::custom(error)),
        }
    }

    /// Inserts the fence record if there is none. [`run`](Self::run) does so itself. It stops no
    /// holder.
    ///
    /// # Errors
    /// [`Unsupported`](ErrorKind::Unsupported) for a collection that removes documents by itself,
    /// such as a capped one; any error of MongoDB.
    ///
    /// # Cancel safety
    /// When the future is dropped, the record may be inserted nevertheless.
    pub async fn prepare(&self, session: &mut ClientSession) -> Result<()> {
        check_inserts(&self.records).await?;
        let insert = doc! { "$setOnInsert": { COUNT: 0_i64 } };
        let inserted = self.records.update_one(doc! { "_id": { "$eq": &self.id } }, insert).upsert(true);
        match inserted.write_concern(WriteConcern::majority()).session(session).await {
            Ok(_) => Ok(()),
            Err(error) if is_duplicate(&error) => Ok(()),
            Err(error) => Err(translate_for(self.records.client(), &error, Effect::None)),
        }
    }

    /// Runs `work` in a transaction that commits only if no later holder has committed one.
    ///
    /// The transaction is begun again, and `work` called again, when the server reports a conflict
    /// or a fail-over (`TransientTransactionError`); a commit whose outcome is unknown is repeated.
    /// The answer is never [`Fenced::NoDocument`].
    ///
    /// `work` must pass the session to each of its operations, return each error of the driver
    /// unchanged, and neither commit nor abort. What it does elsewhere may happen several times.
    ///
    /// # Errors
    /// * [`TransactionError::Work`] with the error of `work`: the transaction was aborted. For
    ///   errors of your own use [`Error::custom`].
    /// * [`TransactionError::Failed`] otherwise:
    ///   [`InvalidOptions`](ErrorKind::InvalidOptions) before any I/O;
    ///   [`Unsupported`](ErrorKind::Unsupported) on a standalone server, and for the insertion of
    ///   the record into a collection that removes documents by itself;
    ///   [`Corrupt`](ErrorKind::Corrupt) for a record whose fence is no number;
    ///   [`Timeout`](ErrorKind::Timeout) when the limit has passed; any error of MongoDB. Nothing
    ///   was written unless the outcome of the commit is
    ///   [unknown](LockError::is_outcome_unknown).
    ///
    /// # Cancel safety
    /// When the future is dropped, the transaction is aborted in the background, unless its commit
    /// has begun: then the outcome is unknown.
    pub async fn run<R>(
        &self,
        mut work: impl for<'s> FnMut(&'s mut ClientSession) -> TransactionWork<'s, R>,
    ) -> Result<Fenced<R>, TransactionError> {
        self.update()?;
        if self.limit.is_zero() {
            return Err(LockError::invalid_options("the limit of a transaction must not be zero").into());
        }
        let deadline = Instant::now() + self.limit;
        let mut session = match timeout_at(deadline, self.records.client().start_session().into_future()).await {
            Ok(session) => session.map_err(|error| translate(&error, Effect::None))?,
            Err(_) => return Err(self.out_of_time(None).into()),
        };
        let mut last = None;
        for attempt in 0.. {
            // A drop of the session aborts the transaction.
            let done = match timeout_at(deadline, self.before_commit(&mut session, &mut work, deadline)).await {
                Ok(done) => done,
                Err(_) => return Err(self.out_of_time(last.as_ref()).into()),
            };
            let failed = match done {
                Ok(Before::Answered(answer)) => return Ok(answer),
                Ok(Before::ReadyToCommit(value)) => match self.commit(&mut session, deadline).await? {
                    None => return Ok(Fenced::Accepted(value)),
                    Some(conflict) => conflict,
                },
                Ok(Before::Inserted) => continue,
                Err(Stop::Again(error)) => error,
                Err(Stop::Error(error)) => return Err(error),
            };
            last = Some(failed);
            if timeout_at(deadline, sleep(pause(attempt, fastrand::f64()))).await.is_err() {
                break;
            }
        }
        Err(self.out_of_time(last.as_ref()).into())
    }

    /// One attempt, up to its commit.
    async fn before_commit<R>(
        &self,
        session: &mut ClientSession,
        work: &mut impl for<'s> FnMut(&'s mut ClientSession) -> TransactionWork<'s, R>,
        deadline: Instant,
    ) -> Result<Before<R>, Stop> {
        let begun = session
            .start_transaction()
            .read_concern(ReadConcern::snapshot())
            .write_concern(WriteConcern::majority())
            .selection_criteria(SelectionCriteria::ReadPreference(ReadPreference::Primary))
            .max_commit_time(deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1)));
        begun.await.map_err(|error| Stop::failed(not_begun(&error)))?;
        let stamped = match self.stamp(session).await {
            Ok(stamped) => stamped,
            Err(error) => {
                abort(session).await;
                return Err(match error.get_custom::<LockError>() {
                    Some(refused) => Stop::failed(refused.clone()),
                    None if is_transient(&error) => match ended_before(self.records.client(), &error) {
                        Some(ended) => Stop::failed(ended),
                        None => Stop::Again(error),
                    },
                    // Such as a write to a capped collection.
                    None if is_not_for_transactions(&error) => {
                        let refused = check_inserts(&self.records).await.err();
                        Stop::failed(refused.unwrap_or_else(|| translate(&error, Effect::None)))
                    }
                    None => Stop::failed(not_supported(&error).unwrap_or_else(|| translate(&error, Effect::None))),
                });
            }
        };
        match stamped {
            Fenced::Accepted(()) => {}
            Fenced::FencedOff { newest } => {
                abort(session).await;
                return Ok(Before::Answered(Fenced::FencedOff { newest }));
            }
            Fenced::NoDocument => {
                abort(session).await;
                self.prepare(session).await.map_err(Stop::failed)?;
                return Ok(Before::Inserted);
            }
        }
        match work(session).await {
            Ok(value) => Ok(Before::ReadyToCommit(value)),
            Err(error) => {
                abort(session).await;
                Err(if is_transient(&error) { Stop::Again(error) } else { Stop::Error(TransactionError::Work(error)) })
            }
        }
    }

    /// Commits, and repeats that while the outcome is unknown. Returns the error of a transaction
    /// that was not committed and can be begun again.
    async fn commit(&self, session: &mut ClientSession, deadline: Instant) -> Result<Option<Error>> {
        for attempt in 0.. {
            let error = match timeout_at(deadline, session.commit_transaction().into_future()).await {
                Ok(Ok(())) => return Ok(None),
                Ok(Err(error)) => error,
                Err(_) => break,
            };
            let is_unknown = error.contains_label(UNKNOWN_TRANSACTION_COMMIT_RESULT);
            let is_over = match after_commit(is_unknown, is_transient(&error), command_code(&error) == Some(TIME_LIMIT))
            {
                AfterCommit::Repeat => timeout_at(deadline, sleep(pause(attempt, fastrand::f64()))).await.is_err(),
                AfterCommit::Begin => return Ok(Some(error)),
                AfterCommit::Fail => true,
            };
            if is_over {
                return Err(translate(&error, Effect::Write).outcome_unknown());
            }
        }
        Err(self.out_of_time(None).outcome_unknown())
    }

    fn update(&self) -> Result<UpdateModifications> {
        self.fence.stamped(doc! { "$inc": { COUNT: 1_i64 } })
    }

    fn out_of_time(&self, last: Option<&Error>) -> LockError {
        let message = format!(
            "the transaction was not committed within {:?}: another transaction of this fence record is open, or \
             MongoDB does not answer",
            self.limit
        );
        let error = LockError::timeout(Phase::Request, message);
        match last {
            Some(last) => error.with_source(translate(last, Effect::None)),
            None => error,
        }
    }
}

/// What an attempt has come to before its commit.
enum Before<R> {
    ReadyToCommit(R),
    Answered(Fenced<R>),
    /// The record did not exist, and does now.
    Inserted,
}

/// Why an attempt has ended before its commit. The transaction was aborted.
enum Stop {
    Again(Error),
    Error(TransactionError),
}

impl Stop {
    fn failed(error: LockError) -> Self {
        Self::Error(TransactionError::Failed(error))
    }
}

/// What follows a commit that failed.
#[derive(Debug, PartialEq, Eq)]
enum AfterCommit {
    Repeat,
    Begin,
    /// The outcome is unknown, even if this error does not say so. An earlier call may have
    /// committed, one of the driver's own repetition, too, of which it returns the last error.
    Fail,
}

/// The rules of the drivers' specification.
fn after_commit(is_unknown: bool, is_transient: bool, is_time_limit: bool) -> AfterCommit {
    match (is_unknown, is_transient) {
        (true, _) if !is_time_limit => AfterCommit::Repeat,
        (_, true) => AfterCommit::Begin,
        _ => AfterCommit::Fail,
    }
}

/// Returns the pause before the next attempt: 5 ms growing by a half to 500 ms, shortened by a
/// random part, which is uniform in `0.0..1.0`.
fn pause(attempt: i32, random: f64) -> Duration {
    Duration::from_millis(5).mul_f64(1.5_f64.powi(attempt.min(12))).min(Duration::from_millis(500)).mul_f64(random)
}

fn is_transient(error: &Error) -> bool {
    error.contains_label(TRANSIENT_TRANSACTION_ERROR)
}

fn is_duplicate(error: &Error) -> bool {
    matches!(&*error.kind, DriverKind::Write(WriteFailure::WriteError(failed)) if failed.code == DUPLICATE_KEY)
}

/// Ends a transaction of which nothing is to be kept. If that fails, the server ends it.
async fn abort(session: &mut ClientSession) {
    let _ = session.abort_transaction().await;
}

fn unsupported() -> LockError {
    let message = "this MongoDB deployment has no transactions: a replica set or a sharded cluster is needed";
    LockError::new(ErrorKind::Unsupported, message).with_disposition(Disposition::Permanent)
}

fn not_begun(error: &Error) -> LockError {
    match &*error.kind {
        DriverKind::Transaction { .. } => unsupported(),
        _ => translate(error, Effect::None),
    }
}

/// Returns whether the server does not allow the stamp in a transaction.
fn is_not_for_transactions(error: &Error) -> bool {
    match &*error.kind {
        DriverKind::Write(WriteFailure::WriteError(refused)) => refused.code == NOT_IN_A_TRANSACTION,
        _ => command_code(error) == Some(NOT_IN_A_TRANSACTION),
    }
}

/// A standalone server refuses the first operation: "Transaction numbers are only allowed on a
/// replica set member or mongos".
fn not_supported(error: &Error) -> Option<LockError> {
    (matches!(&*error.kind, DriverKind::Transaction { .. }) || command_code(error) == Some(20)).then(unsupported)
}

/// Why a [`FencedTransaction`] was not committed.
#[derive(Debug)]
#[non_exhaustive]
pub enum TransactionError {
    /// The work has failed with this error, and the transaction was aborted.
    Work(Error),
    /// The transaction has failed. Nothing was written unless the
    /// [outcome is unknown](LockError::is_outcome_unknown).
    Failed(LockError),
}

impl From<LockError> for TransactionError {
    fn from(error: LockError) -> Self {
        Self::Failed(error)
    }
}

impl fmt::Display for TransactionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Work(_) => f.write_str("the work of the transaction has failed, and the transaction was aborted"),
            Self::Failed(error) => fmt::Display::fmt(error, f),
        }
    }
}

impl std::error::Error for TransactionError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Work(error) => Some(error),
            Self::Failed(error) => error.source(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_commit_is_repeated_begun_again_or_final() {
        for (is_unknown, is_transient, is_time_limit, expected) in [
            (true, false, false, AfterCommit::Repeat),
            (true, true, false, AfterCommit::Repeat),
            (false, true, false, AfterCommit::Begin),
            (true, false, true, AfterCommit::Fail),
            (false, false, false, AfterCommit::Fail),
        ] {
            assert_eq!(after_commit(is_unknown, is_transient, is_time_limit), expected);
        }
    }

    #[test]
    fn pauses_grow_to_half_a_second() {
        let full: Vec<_> = (0..20).map(|attempt| pause(attempt, 1.0)).collect();
        assert!(full.is_sorted() && full[0] == Duration::from_millis(5) && full[19] == Duration::from_millis(500));
        assert_eq!(pause(3, 0.0), Duration::ZERO);
        assert_eq!(pause(i32::MAX, 1.0), full[19]);
    }
}
