//! Closing a provider.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use distlock_api::{ErrorKind, LockError, Phase, Result};
use futures_util::future::{join, join_all};
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::run::call::guarded;
use crate::run::core::{Engine, current_home};
use crate::run::release::ReleaseJob;

/// What each lease, and each clean-up, adds to the bound of a shutdown. Stores release several
/// thousand leases per second.
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
        // Only so that waiting for the tasks can end; more may still begin.
        self.tasks.close();
        let total = jobs.len();
        // Each job has a token of the tasks, and so have the releases behind dropped guards.
        let open = u32::try_from(self.tasks.len()).unwrap_or(u32::MAX);
        let least = Instant::now() + 2 * self.options.request_timeout;
        let bound = least + PER_LEASE.saturating_mul(open);
        let confirmed = AtomicUsize::new(0);
        let releasing = jobs.into_iter().map(async |job| {
            let is_confirmed = job.run_until(bound).await;
            confirmed.fetch_add(usize::from(is_confirmed), Ordering::Relaxed);
        });
        let settling = async {
            join(join_all(releasing), self.withdraw_margins(bound)).await;
            self.tasks.wait().await;
        };
        let settled = tokio::select! {
            biased;
            () = settling => true,
            () = self.stands_still(least, bound) => false,
        };
        let unconfirmed = total - confirmed.into_inner();
        self.gone.cancel();
        let end = Instant::now() + self.options.request_timeout;
        // What has not ended is dropped now, with its calls. Only a task that its runtime does not
        // run is left.
        let _ = timeout_at(end, self.tasks.wait()).await;
        let closing = guarded(async {
            match self.outbox.store.extras().remote {
                Some(remote) => remote.close().await,
                None => Ok(()),
            }
        });
        let closed = match timeout_at(end, closing).await {
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

    /// Ends when a shutdown is given up: at `bound`, or after `least` once no lease has been
    /// released for a request timeout.
    async fn stands_still(&self, least: Instant, bound: Instant) {
        sleep_until(least).await;
        while Instant::now() < bound {
            let released = self.accounting().released;
            sleep_until(bound.min(Instant::now() + self.options.request_timeout)).await;
            if self.accounting().released == released {
                return;
            }
        }
    }
}
