//! Changing a locked document under its lease: committing, which also releases, and saving.

use distlock_api::{ErrorKind, LockError};
use distlock_engine::store::Write;
use mongodb::bson::Document;

use crate::budget::Budget;
use crate::calls::{Change, Failure};
use crate::error::{rejection, says};
use crate::lease::{NO_SUB_DOCUMENT, WriteId, Wrote};
use crate::records::Records;

/// A change of a locked document.
pub(crate) struct DocumentChange {
    pub(crate) stages: Vec<Document>,
    /// Of an acquisition's writes each has a greater one than those before it.
    pub(crate) number: i64,
    pub(crate) releases: bool,
}

/// Why a change is not known to have been made.
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

/// Makes the change, and returns its answer; `None` if the lease had been lost before.
///
/// One command. A second one only if the document could not be written: then it is either lost, or
/// the write had been made before and its reply got lost.
pub(crate) async fn write(
    records: &Records,
    write: &Write,
    change: &DocumentChange,
) -> Result<Option<Wrote>, NotWritten> {
    let Write { claim, hold_at_least, timeout, .. } = write;
    let DocumentChange { stages, number, releases } = change;
    let layout = &records.layout;
    let about = |error: LockError| error.with_key(claim.key().clone());
    let identity = layout.identity(claim.key())?;
    let budget = Budget::new(*timeout);
    let deployment = records.deployment(claim, budget).await?;
    let id = WriteId { acquisition: claim.id(), number: *number };
    let mut pipeline = stages.clone();
    pipeline.extend(match releases {
        true => layout.committed(id, *hold_at_least, records.clock(deployment)),
        false => layout.written(id),
    });
    let filter = layout.writable(identity.clone(), id);
    let how = Change::new(deployment, Some(claim), budget);
    match records.change::<Wrote>(filter, pipeline, layout.wrote(!releases), how).await {
        Ok(Some(wrote)) => return Ok(Some(wrote).filter(|wrote| wrote.applied)),
        Ok(None) => {}
        Err(Failure::Driver(error)) => {
            return Err(match rejection(&error) {
                Some((code, rejected)) => {
                    let error = if says(&error, NO_SUB_DOCUMENT) { led_astray() } else { rejected };
                    NotWritten { error: about(error), code: Some(code) }
                }
                None => about(Failure::Driver(error).into()).into(),
            });
        }
        Err(failure) => return Err(about(failure.into()).into()),
    }
    let (filter, projection) = (layout.record(identity), layout.wrote_before(id, !releases));
    // A failure to look says nothing of the write.
    let found = records.find_one::<Wrote>(filter, projection, budget).await;
    let found = found.map_err(|error| about(error.outcome_unknown()))?;
    Ok(found.and_then(|found| found.answer).filter(|wrote| wrote.applied))
}

fn led_astray() -> LockError {
    let message = "a path of the change leads through something else than sub-documents";
    LockError::new(ErrorKind::Rejected, message)
}
