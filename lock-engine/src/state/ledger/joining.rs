//! Shared leases that readers of this process may join, and the accounting of their guards (C23).
//!
//! A join or leave changes the lease and the counts under the ledger's lock. So each guard is
//! counted once, whatever becomes of the lease at the same moment.

use std::sync::Arc;

use distlock_api::{FencingToken, LockKey};

use super::{End, Ledger, count};
use crate::options::HandOff;
use crate::state::lease::Lease;
use crate::state::local_queue::CarriedLease;
use crate::state::sharing::{Leaving, Refusal};
use crate::state::time::Now;

impl<C: CarriedLease> Ledger<C> {
    /// Returns the shared lease of the key that was granted last, if it may be joined.
    pub(crate) fn joinable(&self, key: &LockKey) -> Option<&Arc<Lease<C>>> {
        self.joinable.get(key)
    }

    /// Lets one more guard have a shared lease. Returns its token.
    pub(crate) fn join(
        &mut self,
        lease: &Lease<C>,
        now: &Now,
        limits: &HandOff,
        in_transit: bool,
    ) -> Result<FencingToken, Refusal> {
        let Some(record) = self.leases.get_mut(lease.claim().id()) else { return Err(Refusal::NotNow) };
        let token = match lease.join(now, limits, in_transit) {
            Ok(token) => token,
            Err(refusal) => {
                if refusal == Refusal::NoTokens {
                    self.used_tokens(lease);
                }
                return Err(refusal);
            }
        };
        record.guards += 1;
        self.further_guards += 1;
        self.counts.acquired += 1;
        Ok(token)
    }

    /// Takes a shared lease from one of its guards, which ends so. With the last one the release of
    /// the lease has begun, and the caller must call [`notify_changed`](Lease::notify_changed)
    /// after the ledger is unlocked.
    pub(crate) fn leave(
        &mut self,
        lease: &Lease<C>,
        (token, in_transit): (FencingToken, bool),
        end: End,
        now: &Now,
    ) -> Leaving {
        let leaving = lease.leave(token, in_transit);
        match leaving {
            Leaving::Left => {
                if let Some(record) = self.leases.get_mut(lease.claim().id()) {
                    record.guards -= 1;
                    self.further_guards -= 1;
                    count(&mut self.counts, end, 1);
                }
            }
            Leaving::Last => self.release_begun(lease, now),
            Leaving::Lost => {}
        }
        leaving
    }

    /// Renews the shared lease of the key soon, because an event reported the key as free.
    pub(crate) fn renew_shared_soon(&mut self, key: &LockKey, now: &Now) {
        if let Some(id) = self.joinable.get(key).map(|lease| lease.claim().id().clone()) {
            self.renew_soon(&id, now);
        }
    }

    /// Keeps readers from a lease whose release has begun, or that has ended.
    pub(super) fn end_joining(&mut self, lease: &Lease<C>) {
        if !lease.is_joinable() {
            return;
        }
        if self.joinable.get(lease.key()).is_some_and(|present| std::ptr::eq(&**present, lease)) {
            self.joinable.remove(lease.key());
        }
    }
}
