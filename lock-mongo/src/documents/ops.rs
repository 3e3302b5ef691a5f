//! The operations that take the place of the store's.

use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use distlock_api::{LockError, Result};
use distlock_engine::store::{AcquireOp, Attempt, Reply, Write, WriteOp, Written};
use mongodb::bson::{Document, RawDocumentBuf};
use mongodb::options::ReturnDocument;

use crate::budget::Budget;
use crate::error::{Effect, rejection, says};
use crate::lease::{Marked, NO_SUB_DOCUMENT, WriteId, Wrote};
use crate::store::{Absent, Change, Failure, MongoStore};

/// An attempt that brings the document.
pub(super) struct AcquireDocument {
    pub(super) store: Arc<MongoStore>,
    pub(super) absent: Absent,
}

#[async_trait]
impl AcquireOp for AcquireDocument {
    async fn try_acquire(&self, attempt: &Attempt) -> Result<Reply> {
        self.store.acquire(attempt, &self.absent, true, Budget::new(attempt.timeout)).await
    }
}

/// A change of the document, and its release with it or not.
pub(super) struct WriteDocument {
    store: Arc<MongoStore>,
    change: Vec<Document>,
    number: i64,
    releases: bool,
    /// The server's code of the last rejection; 0 if there was none.
    code: AtomicI32,
    document: Mutex<Option<RawDocumentBuf>>,
}

impl WriteDocument {
    pub(super) fn new(store: Arc<MongoStore>, change: Vec<Document>, number: i64, releases: bool) -> Self {
        Self { store, change, number, releases, code: AtomicI32::new(0), document: Mutex::default() }
    }

    /// The server's code, if it has rejected the change.
    pub(super) fn code(&self) -> Option<i32> {
        Some(self.code.load(Ordering::Relaxed)).filter(|code| *code != 0)
    }

    /// The document as it was after the change, if the lock was kept.
    pub(super) fn take_document(&self) -> Option<RawDocumentBuf> {
        self.document.lock().expect("no code in here panics").take()
    }

    fn made(&self, wrote: Wrote) -> Written {
        if wrote.applied {
            *self.document.lock().expect("no code in here panics") = wrote.document;
            return Written::Applied;
        }
        Written::AlreadyLost
    }
}

#[async_trait]
impl WriteOp for WriteDocument {
    /// One command. A second one only if the document could not be written: then it is either lost, or the write had been made before and its reply
    /// got lost.
    async fn write(&self, write: &Write) -> Result<Written> {
        let Write { claim, hold_at_least, timeout, .. } = write;
        let MongoStore { layout, .. } = &*self.store;
        let about = |error: LockError| error.with_key(claim.key().clone());
        let identity = layout.identity(claim.key())?;
        let budget = Budget::new(*timeout);
        let deployment = self.store.deployment(claim, &budget).await?;
        let id = WriteId { acquisition: claim.id(), number: self.number };
        let mut pipeline = self.change.clone();
        pipeline.extend(match self.releases {
            true => layout.committed(id, *hold_at_least, self.store.clock(deployment)),
            false => layout.written(id),
        });
        let filter = layout.writable(identity.clone(), id);
        let how = Change { upsert: false, returning: ReturnDocument::After, deployment, session: Some(claim), budget };
        match self.store.change::<Wrote>(filter, pipeline, layout.wrote(!self.releases), how).await {
            Ok(Some(wrote)) => return Ok(self.made(wrote)),
            Ok(None) => {}
            Err(Failure::Driver(error)) => {
                return Err(about(match rejection(&error) {
                    Some((code, rejected)) => {
                        self.code.store(code, Ordering::Relaxed);
                        if says(&error, NO_SUB_DOCUMENT) { led_astray() } else { rejected }
                    }
                    None => Failure::Driver(error).into(),
                }));
            }
            Err(failure) => return Err(about(failure.into())),
        }
        let records = self.store.records.clone_with_type::<Marked<Wrote>>();
        let (filter, projection) = (layout.record(identity), layout.wrote_before(id, !self.releases));
        let find = async move { records.find_one(filter).projection(projection).max_time(budget.on_server()).await };
        // A failure to look says nothing of the write.
        let found =
            self.store.run(budget, Effect::Write, find).await.map_err(|error| about(error.outcome_unknown()))?;
        Ok(found.and_then(|found| found.answer).map_or(Written::AlreadyLost, |wrote| self.made(wrote)))
    }
}

fn led_astray() -> LockError {
    let message = "a path of the change leads through something else than sub-documents";
    LockError::new(distlock_api::ErrorKind::Rejected, message)
}
