//! Recognizes a request that would wait for itself, because a layer outside holds the lock that it
//! waits for.

use std::future::{Future, pending, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;

use distlock_api::{AcquisitionId, LockInfo, LockKey, LockProvider};

use super::shared::{Claims, Gate};
use crate::refusal::Refusal;

impl Gate {
    /// Waits for an answer of the provider, but no longer than until the request turns out to wait
    /// for itself.
    pub(super) async fn unless_held_outside<T>(
        &self,
        claims: &Claims,
        mut answer: Pin<&mut impl Future<Output = T>>,
    ) -> Result<T, Refusal> {
        let mut refusal = pin!(async {
            match self.held_outside(claims).await {
                Some(refusal) => refusal,
                None => pending().await,
            }
        });
        poll_fn(|cx| match answer.as_mut().poll(cx) {
            Poll::Ready(answer) => Poll::Ready(Ok(answer)),
            Poll::Pending => refusal.as_mut().poll(cx).map(Err),
        })
        .await
    }

    /// Returns the refusal of a request for which a layer outside holds a lock that this layer
    /// wants, in a mode that excludes it. `None` as well if the stores cannot tell.
    pub(super) async fn held_outside(&self, claims: &Claims) -> Option<Refusal> {
        for (key, outer) in &claims.outside {
            if is_same_lock(&self.provider, &outer.provider, key).await {
                return Some(self.waits_for_itself(outer));
            }
        }
        None
    }
}

/// Returns whether a key that one of the providers holds is the same lock at the other one.
///
/// The name of a provider is no identity, and two providers of one store have the same locks. But
/// no two acquisitions have the same id (C7). If both stores say that one acquisition holds the
/// key, it is one lock, however many wrappers, clones and connections are in between.
async fn is_same_lock(one: &Arc<dyn LockProvider>, other: &Arc<dyn LockProvider>, key: &LockKey) -> bool {
    if Arc::ptr_eq(one, other) {
        return true;
    }
    let (Some(one), Some(other)) = (one.admin(), other.admin()) else { return false };
    let Ok(Some(one)) = one.inspect(key).await else { return false };
    let Ok(Some(other)) = other.inspect(key).await else { return false };
    holders(&one).any(|id| holders(&other).any(|same| same == id))
}

fn holders(info: &LockInfo) -> impl Iterator<Item = &AcquisitionId> {
    info.id.iter().chain(info.holders.iter().map(|holder| &holder.id))
}
