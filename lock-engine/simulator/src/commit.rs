//! Commits: writes that release the lease in the same step. Each is applied at most once, and only
//! by the holder.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use distlock_api::{ErrorKind, LockError, LockKey, ReleaseOutcome, Result};
use distlock_engine::LeaseStore;
use distlock_engine::store::{AcquireOp, Attempt, Release, Reply, Write, WriteOp, Written};

use crate::network::{Carry, Link, Order};

/// What commits have written, as the store has it.
#[derive(Default)]
pub(crate) struct Documents(Mutex<Contents>);

#[derive(Default)]
struct Contents {
    commits: u64,
    applied: HashSet<u64>,
    last_tokens: HashMap<LockKey, u64>,
    stale: Vec<String>,
    answers: Vec<(u64, bool)>,
}

impl Documents {
    fn change<T>(&self, change: impl FnOnce(&mut Contents) -> T) -> T {
        change(&mut self.0.lock().expect("one thread"))
    }

    /// Records what the caller of a commit was told.
    pub(crate) fn told(&self, commit: &Commit, applied: bool) {
        self.change(|contents| contents.answers.push((commit.id, applied)));
    }

    /// Returns what is wrong: a write with a token that is not greater than the one before, or a
    /// commit whose caller was told something else.
    pub(crate) fn complaints(&self) -> Vec<String> {
        self.change(|contents| {
            let untrue = contents.answers.iter().filter(|(id, told)| contents.applied.contains(id) != *told);
            let untrue =
                untrue.map(|(id, told)| format!("commit {id} was reported as applied: {told}, which is untrue"));
            contents.stale.iter().cloned().chain(untrue).collect()
        })
    }
}

impl Contents {
    fn apply(&mut self, id: u64, key: &LockKey, token: u64) {
        self.applied.insert(id);
        let last = self.last_tokens.insert(key.clone(), token).unwrap_or_default();
        if token <= last {
            self.stale.push(format!("commit {id} wrote {key} with token {token} after {last}"));
        }
    }
}

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
        let id = link.network().documents.change(|contents| {
            contents.commits += 1;
            contents.commits
        });
        Self { link, id, token, refused }
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
                if network.documents.change(|contents| contents.applied.contains(&id)) {
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
                        network.documents.change(|contents| contents.apply(id, claim.key(), token));
                        Ok(Written::Applied)
                    }
                    _ => Ok(Written::AlreadyLost),
                }
            })
        });
        self.link.send(what, of_claim, write.timeout, carry).await
    }
}
