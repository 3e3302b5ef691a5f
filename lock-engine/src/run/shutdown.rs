//! Closing a provider.

use std::sync::Arc;
use std::time::Duration;

use distlock_api::{ErrorKind, LockError, Phase, Result};
use futures_util::future::join_all;
use tokio::time::{Instant, timeout_at};

use crate::run::call::guarded;
use crate::run::core::{Engine, current_home};
use crate::run::release::ReleaseJob;

/// What each lease adds to the bound of a shutdown. Stores release several thousand per second.
const PER_LEASE: Duration = Duration::from_micros(500);

impl Engine {
    pub(crate) async fn close(self: &Arc<Self>) -> Result<()> {
        current_home()?;
        let (leases, waiting) = {
            let mut ledger = self.ledger();
            ledger.close();
            (ledger.leases(), ledger.take_tickets())
        };
        self.closed.cancel();
        self.withdraw_closed(waiting);
        let jobs: Vec<_> = leases.iter().filter_map(|lease| ReleaseJob::of_closed(self, lease)).collect();
        leases.iter().for_each(|lease| self.unpark(lease));
        drop(leases);
        let mut outcome = self.closing.lock().await;
        if let Some(outcome) = &*outcome {
            return outcome.clone();
        }
        let found = self.shut_down(jobs).await;
        outcome.insert(found).clone()
    }

    /// Releases what was held, each lease on its own, waits for everything that is under way, and
    /// closes the store.
    async fn shut_down(self: &Arc<Self>, jobs: Vec<ReleaseJob>) -> Result<()> {
        let total = jobs.len();
        let for_all = PER_LEASE.saturating_mul(u32::try_from(total).unwrap_or(u32::MAX));
        let bound = Instant::now() + 2 * self.options.request_timeout + for_all;
        let confirmed = join_all(jobs.into_iter().map(|job| job.run_until(bound))).await;
        let unconfirmed = confirmed.iter().filter(|confirmed| !**confirmed).count();
        self.tasks.close();
        let settled = timeout_at(bound, self.tasks.wait()).await.is_ok();
        self.gone.cancel();
        // What has not ended is dropped now, with its calls. Only a task that its runtime does not
        // run is left.
        let _ = timeout_at(bound + self.options.request_timeout, self.tasks.wait()).await;
        let closed = match timeout_at(bound + self.options.request_timeout, guarded(self.store.close())).await {
            Ok(closed) => closed,
            Err(_) => Err(LockError::timeout(Phase::Shutdown, "the store did not close")),
        };
        if unconfirmed > 0 {
            let message = format!("{unconfirmed} of {total} leases could not be released; they end by their ttl");
            return Err(LockError::new(ErrorKind::Unavailable, message).outcome_unknown());
        }
        if !settled {
            let message = "clean-ups of earlier calls have not ended; what they left in the store ends by its ttl";
            return Err(LockError::timeout(Phase::Shutdown, message).outcome_unknown());
        }
        closed
    }
}
