//! The hints of one provider.

use distlock_api::{ErrorKind, LockError, Result};
use distlock_engine::store::{EventStream, ProviderId};

use crate::budget::Budget;
use crate::lease::Subject;
use crate::store::MongoStore;
use crate::streams;
use crate::topology::Deployment;

/// Subscribes to the change stream that the stores of the client share: when this returns, the
/// server has it, and what happens from then on is reported. It ends when the collection is dropped
/// or renamed, and when the shared stream does.
pub(crate) async fn watch(store: &MongoStore, provider: ProviderId) -> Result<EventStream> {
    let budget = Budget::new(store.request_timeout);
    if store.deployment_within(budget).await? == Deployment::Standalone {
        return Err(LockError::new(ErrorKind::Unsupported, "a standalone MongoDB server has no change streams"));
    }
    // A subscription also begins again after the collection was dropped, and its indexes with it.
    store.indexes.forget();
    let shared = store.shared_within(budget).await?;
    let subject = Subject::new(store.records.name(), store.layout.clone(), provider);
    streams::subscribe(&shared.streams, &store.database, &store.records, subject, budget).await.map_err(refused)
}

/// A user who may not watch does without (C16), and need not try again.
fn refused(error: LockError) -> LockError {
    if error.kind() != ErrorKind::PermissionDenied {
        return error;
    }
    let message = "the MongoDB user may watch neither the database nor the lock collection: \
                   the privilege changeStream is missing";
    LockError::new(ErrorKind::Unsupported, message).with_source(error)
}
