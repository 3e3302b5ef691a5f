//! Commits: writes that release the lease in the same step. Each is applied at most once, and only
//! by the holder.

use std::sync::Arc;

use async_trait::async_trait;
use distlock_api::{ErrorKind, LockError, ReleaseOutcome, Result};
use distlock_engine::LeaseStore;
use distlock_engine::store::{AcquireOp, Attempt, Release, Reply, Write, WriteOp, Written};

use crate::network::{Carry, Link, Order};

/// An acquisition whose guard can commit.
pub(crate) struct ForCommit(pub(crate) Arc<Link>);

#[async_trait]
impl AcquireOp for ForCommit {
    async fn try_acquire(&self, attempt: &Attempt) -> Result<Reply> {
        self.0.try_acquire(attempt).await
    }
}

/// One commit. It may be sent several times.
pub(crate) struct Commit {
    link: Arc<Link>,
    id: u64,
    token: u64,
    /// Whether the document refuses it.
    refused: bool,
}

impl Commit {
    pub(crate) fn new(link: Arc<Link>, token: u64, refused: bool) -> Self {
        let id = link.network().documents.next_commit();
        Self { link, id, token, refused }
    }

    /// Records the answer that the caller got.
    pub(crate) fn answered(&self, applied: bool) {
        self.link.network().documents.answered(self.id, applied);
    }
}

#[async_trait]
impl WriteOp for Commit {
    async fn write(&self, write: &Write) -> Result<Written> {
        let (network, id, token, refused) = (self.link.network().clone(), self.id, self.token, self.refused);
        let (claim, hold_at_least) = (write.claim.clone(), write.hold_at_least);
        let of_claim = Order::OfClaim(claim.id().clone());
        let what = format!("commit {id} {claim:?}");
        let carry: Carry<Written> = Arc::new(move |store| {
            let (network, claim) = (network.clone(), claim.clone());
            Box::pin(async move {
                if network.documents.has(id) {
                    return Ok(Written::Applied);
                }
                let holder = store.peek(claim.key()).and_then(|info| info.id);
                if holder.as_ref() != Some(claim.id()) {
                    return Ok(Written::AlreadyLost);
                }
                if refused {
                    return Err(LockError::new(ErrorKind::Rejected, "the simulated document refuses the write"));
                }
                let mut release = Release::new(claim.clone());
                release.hold_at_least = hold_at_least;
                // One step: the store answers at once, and there is one thread.
                match store.release(&release).await? {
                    ReleaseOutcome::Released => {
                        network.documents.apply(id, claim.key(), token);
                        Ok(Written::Applied)
                    }
                    _ => Ok(Written::AlreadyLost),
                }
            })
        });
        self.link.send(what, of_claim, write.timeout, carry).await
    }
}
