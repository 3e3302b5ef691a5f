//! What a candidate is doing, for readiness probes (L6) and metrics.

use distlock_api::FencingToken;
use std::fmt;
use std::sync::Arc;

use tokio::sync::watch;
use tokio::time::Instant;

use super::record;

/// What a candidate is doing ([L6]).
///
/// [L6]: crate::contract#l6
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum LeadStatus {
    /// No candidate reports: it has not begun, or it has ended. The status at the start.
    #[default]
    Idle,
    /// The candidate leads, and its task runs.
    Leading {
        /// The fencing token of the grant.
        term: FencingToken,
    },
    /// The candidate campaigns, and nothing has failed. Usually another one leads.
    Following,
    /// The last step has failed: an error of the store or of the task. The candidate pauses, and
    /// campaigns again.
    Failing {
        /// When the first failure since the last success was. On tokio's clock.
        since: Instant,
        /// The last error, as text.
        error: Arc<str>,
    },
}

/// A handle on the status of a candidate. Clones share it; they are cheap.
///
/// Make one, pass it to [`report_to`](super::Lead::report_to), and keep a clone for the probe. If
/// several candidates report to one handle, it has the last report of any of them.
///
/// ```
/// use distlock_api::{LockError, LockProvider};
/// use distlock_recipes::lead::{LeadExt, LeadHealth, LeadStatus};
///
/// /// Logs each change. Spawn it beside the candidate.
/// async fn log(mut health: LeadHealth) {
///     loop {
///         println!("{:?}", health.changed().await);
///     }
/// }
///
/// async fn mailer(locks: &dyn LockProvider, health: &LeadHealth) -> Result<(), LockError> {
///     locks.lead("mailer").report_to(health).run(async |_| Ok::<_, LockError>(())).await?;
///     assert_eq!(health.get(), LeadStatus::Idle);
///     Ok(())
/// }
/// ```
#[derive(Clone)]
pub struct LeadHealth {
    reports: Arc<watch::Sender<LeadStatus>>,
    seen: watch::Receiver<LeadStatus>,
}

impl LeadHealth {
    /// Makes a handle whose status is [`Idle`](LeadStatus::Idle).
    #[must_use]
    pub fn new() -> Self {
        let (reports, seen) = watch::channel(LeadStatus::Idle);
        Self { reports: Arc::new(reports), seen }
    }

    /// Returns the present status.
    #[must_use]
    pub fn get(&self) -> LeadStatus {
        self.seen.borrow().clone()
    }

    /// Whether the candidate leads.
    #[must_use]
    pub fn is_leading(&self) -> bool {
        matches!(*self.seen.borrow(), LeadStatus::Leading { .. })
    }

    /// Waits until the status has changed since the last call, for the first call since the handle
    /// was made or cloned. Returns the present status: of several changes, the last.
    ///
    /// # Cancel safety
    /// Cancel safe: a change is not missed.
    pub async fn changed(&mut self) -> LeadStatus {
        // Not an error: this handle itself keeps the sender.
        let _ = self.seen.changed().await;
        self.seen.borrow_and_update().clone()
    }
}

impl Default for LeadHealth {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for LeadHealth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LeadHealth").field(&*self.seen.borrow()).finish()
    }
}

/// Reports for one run. Its end, by return or drop, is the status `Idle`.
#[derive(Debug)]
pub(super) struct Reporter {
    health: LeadHealth,
    /// The name in metrics.
    name: Arc<str>,
    /// The status that the metrics have. The handle may have that of another candidate.
    counted: Option<&'static str>,
    /// When the present term began.
    term: Option<Instant>,
}

impl Reporter {
    pub(super) fn begin(health: LeadHealth, name: Arc<str>) -> Self {
        let mut reporter = Self { health, name, counted: None, term: None };
        reporter.following();
        reporter
    }

    pub(super) fn leading(&mut self, term: FencingToken) {
        self.term = Some(Instant::now());
        self.set(LeadStatus::Leading { term });
    }

    /// Reports how the term has ended. What the candidate does next is reported after that.
    pub(super) fn term_ended(&mut self, outcome: &'static str) {
        if let Some(began) = self.term.take() {
            record::term(&self.name, outcome, began.elapsed());
        }
    }

    pub(super) fn following(&mut self) {
        self.set(LeadStatus::Following);
    }

    pub(super) fn failing(&mut self, error: &dyn fmt::Display) {
        let since = match self.health.get() {
            LeadStatus::Failing { since, .. } => since,
            _ => Instant::now(),
        };
        self.set(LeadStatus::Failing { since, error: error.to_string().into() });
    }

    fn set(&mut self, status: LeadStatus) {
        let counted = match &status {
            LeadStatus::Idle => None,
            LeadStatus::Leading { .. } => Some("leading"),
            LeadStatus::Following => Some("following"),
            LeadStatus::Failing { .. } => Some("failing"),
        };
        if self.counted != counted {
            let before = std::mem::replace(&mut self.counted, counted);
            before.into_iter().for_each(|before| record::candidates(&self.name, before, -1.0));
            counted.into_iter().for_each(|now| record::candidates(&self.name, now, 1.0));
        }
        self.health.reports.send_if_modified(|present| {
            let is_new = *present != status;
            *present = status;
            is_new
        });
    }
}

impl Drop for Reporter {
    fn drop(&mut self) {
        self.term_ended("dropped");
        self.set(LeadStatus::Idle);
    }
}
