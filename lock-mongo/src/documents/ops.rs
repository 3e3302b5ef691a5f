//! The operations of this style, which replace those of the store. They keep the parts of an answer
//! that the engine does not use.

use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use distlock_api::Result;
use distlock_engine::store::{AcquireOp, Attempt, Reply, Write, WriteOp, Written};
use mongodb::bson::{Document, RawDocumentBuf};

use crate::records::IfMissing;
use crate::requests::acquire::try_acquire_document;
use crate::requests::batch::may_gather_document;
use crate::requests::write::{DocumentChange, write};
use crate::store::MongoStore;

/// An attempt that returns the document.
pub(super) struct AcquireDocument {
    pub(super) store: Arc<MongoStore>,
    pub(super) if_missing: IfMissing,
}

#[async_trait]
impl AcquireOp for AcquireDocument {
    async fn try_acquire(&self, attempt: &Attempt) -> Result<Reply> {
        try_acquire_document(&self.store.records, attempt, &self.if_missing).await
    }

    fn may_gather(&self, attempt: &Attempt) -> bool {
        may_gather_document(&self.store.records, attempt, &self.if_missing)
    }
}

/// A change of the document, with or without the release.
pub(super) struct WriteDocument {
    store: Arc<MongoStore>,
    change: DocumentChange,
    /// The server's code of the last rejection; 0 for none.
    code: AtomicI32,
    document: Mutex<Option<RawDocumentBuf>>,
}

impl WriteDocument {
    pub(super) fn new(store: Arc<MongoStore>, stages: Vec<Document>, number: i64, releases: bool) -> Self {
        let change = DocumentChange { stages, number, releases };
        Self { store, change, code: AtomicI32::new(0), document: Mutex::default() }
    }

    /// Returns the server's code, if it has rejected the change.
    pub(super) fn code(&self) -> Option<i32> {
        Some(self.code.load(Ordering::Relaxed)).filter(|code| *code != 0)
    }

    /// Returns the document after the change, if the lock was kept.
    pub(super) fn take_document(&self) -> Option<RawDocumentBuf> {
        self.document.lock().expect("no code in here panics").take()
    }
}

#[async_trait]
impl WriteOp for WriteDocument {
    async fn write(&self, request: &Write) -> Result<Written> {
        match write(&self.store.records, request, &self.change).await {
            Ok(Some(wrote)) => {
                *self.document.lock().expect("no code in here panics") = wrote.document;
                Ok(Written::Applied)
            }
            Ok(None) => Ok(Written::AlreadyLost),
            Err(not_written) => {
                if let Some(code) = not_written.code {
                    self.code.store(code, Ordering::Relaxed);
                }
                Err(not_written.error)
            }
        }
    }
}
