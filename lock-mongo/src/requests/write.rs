//! Changing a locked document under its lease: committing, which also releases, and saving.

use distlock_api::{ErrorKind, LockError, Result};
use distlock_engine::store::{Claim, Write};
use mongodb::bson::Document;

use crate::budget::Budget;
use crate::calls::{ChangeOptions, Failure};
use crate::error::{failed_with, rejection};
use crate::lease::plan::Step;
use crate::lease::{NO_SUB_DOCUMENT, WriteId, Wrote};
use crate::records::Records;

/// A change of a locked document.
pub(crate) struct DocumentChange {
    pub(crate) stages: Vec<Document>,
    /// The number of this write among those of its acquisition, in ascending order.
    pub(crate) number: i64,
    pub(crate) releases: bool,
}

/// A change that failed, or may have failed.
pub(crate) struct NotWritten {
    pub(crate) error: LockError,
    /// The server's code, if it has rejected the change.
    pub(crate) code: Option<i32>,
}

impl From<LockError> for NotWritten {
    fn from(error: LockError) -> Self {
        Self { error, code: None }
    }
}

/// Refuses a change of a document under a lock that others may hold, too.
pub(crate) fn ensure_exclusive(claim: &Claim) -> Result<()> {
    if claim.mode().is_exclusive() {
        return Ok(());
    }
    let message = format!(
        "the document is locked in the mode \"{}\", beside others that read it: lock it exclusively to change it",
        claim.mode()
    );
    Err(LockError::invalid_options(message))
}

/// Makes the change, and returns its answer; `None` if the lease had been lost before.
///
/// This is one command. If it matches nothing, a query follows: either the lease is lost, or an
/// earlier try made the write and its reply was lost.
pub(crate) async fn write(
    records: &Records,
    write: &Write,
    change: &DocumentChange,
) -> Result<Option<Wrote>, NotWritten> {
    let Write { claim, hold_at_least, timeout, .. } = write;
    let DocumentChange { stages, number, releases } = change;
    let layout = &records.layout;
    let with_key = |error: LockError| error.with_key(claim.key().clone());
    ensure_exclusive(claim).map_err(with_key)?;
    let identity = layout.identity(claim.key())?;
    let budget = Budget::new(*timeout);
    let deployment = records.deployment(claim, budget).await?;
    let id = WriteId { acquisition: claim.id(), number: *number };
    let mut pipeline = stages.clone();
    pipeline.extend(match releases {
        true => layout.committed(id, claim.used(), *hold_at_least, records.clock(deployment)),
        false => layout.written(id),
    });
    let filter = layout.writable(identity.clone(), id);
    let options = ChangeOptions::new(deployment, Some(claim), budget);
    match records.change::<Wrote>(Step::new(filter, pipeline, layout.wrote(!releases)), options).await {
        Ok(Some(wrote)) => {
            if wrote.is_free {
                records.key_memory.end_use(claim.key().as_str());
            }
            return Ok(Some(wrote).filter(|wrote| wrote.applied));
        }
        Ok(None) => {}
        Err(Failure::Driver(error)) => {
            return Err(match rejection(&error) {
                Some((code, rejected)) => {
                    let error = if failed_with(&error, NO_SUB_DOCUMENT) { no_sub_document() } else { rejected };
                    NotWritten { error: with_key(error), code: Some(code) }
                }
                None => with_key(Failure::Driver(error).into()).into(),
            });
        }
        Err(failure) => return Err(with_key(failure.into()).into()),
    }
    let (filter, projection) = (layout.record(identity), layout.wrote_before(id, !releases));
    // After a failed query the outcome of the write is unknown.
    let found = records.find_one::<Wrote>(filter, projection, budget).await;
    let found = found.map_err(|error| with_key(error.outcome_unknown()))?;
    Ok(found.and_then(|found| found.answer).filter(|wrote| wrote.applied))
}

fn no_sub_document() -> LockError {
    let message = "a path of the change passes through a value that is no sub-document, such as an array, a string or \
                   null: set the value as a whole, or use a pipeline";
    LockError::new(ErrorKind::Rejected, message)
}
