//! The run of a candidate: it campaigns, leads, resigns, and campaigns again.
//!
//! One future owns everything, in this order: the guard, then the task. So a drop at any await
//! drops the task before the guard, whose drop releases (L7). Nothing is spawned.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;

use tokio::time::{Instant, sleep};
use tracing::field::Empty;
use tracing::{Instrument, info, info_span, warn};

use distlock_api::style::{record_failure, until_lost};
use distlock_api::{
    AcquireOptions, Acquired, ErrorKind, LockGuard, LockKey, LockProvider, ReleaseOutcome, Result, Wait,
};

use super::backoff::{Backoff, random};
use super::health::Reporter;
use super::term::{Led, Term};

/// How long a campaign waits at most while the last step has failed.
const PROBE: Duration = Duration::from_secs(5);

/// A candidate whose terms are valid.
pub(super) struct Candidate<'a, P: ?Sized> {
    pub(super) provider: &'a P,
    pub(super) key: LockKey,
    pub(super) options: AcquireOptions,
    pub(super) round: Duration,
    pub(super) backoff: Backoff,
    pub(super) reporter: Reporter,
}

/// How a term ended.
enum End<T, E> {
    Finished(T),
    Failed {
        error: E,
        /// How long the task has worked.
        worked: Duration,
    },
    Stopped,
    Lost,
}

impl<P: LockProvider + ?Sized> Candidate<'_, P> {
    pub(super) async fn run<T, E, F>(mut self, shutdown: impl Future, mut task: impl FnMut(Term) -> F) -> Result<Led<T>>
    where
        F: Future<Output = Result<T, E>>,
        E: fmt::Display,
    {
        let mut shutdown = pin!(shutdown);
        loop {
            let Some(answer) = unless(shutdown.as_mut(), self.campaign()).await else { return Ok(Led::Stopped) };
            match answer {
                Ok(Acquired::Held(guard)) => match self.lead(guard, shutdown.as_mut(), &mut task).await {
                    End::Finished(value) => return Ok(Led::Finished(value)),
                    End::Stopped => return Ok(Led::Stopped),
                    End::Lost => {
                        self.succeeded();
                        continue;
                    }
                    End::Failed { error, worked } => {
                        if self.backoff.is_long(worked) {
                            self.backoff.reset();
                        }
                        self.reporter.failing(&error);
                    }
                },
                Ok(Acquired::Busy(_)) => {
                    self.succeeded();
                    continue;
                }
                Err(error) if ends_candidacy(error.kind()) => return Err(error),
                Err(error) => {
                    warn!(lock.key = %self.key, %error, "campaign failed");
                    self.reporter.failing(&error);
                }
            }
            let pause = self.backoff.next(random());
            if unless(shutdown.as_mut(), sleep(pause)).await.is_none() {
                return Ok(Led::Stopped);
            }
        }
    }

    /// Waits in the queue for one round.
    fn campaign(&self) -> impl Future<Output = Result<Acquired>> + use<'_, P> {
        let round = if self.backoff.is_failing() { self.round.min(PROBE) } else { self.round };
        let options = self.options.clone().with_wait(Wait::UpTo(round));
        self.provider.acquire_with(self.key.clone(), options)
    }

    /// Runs the task for one term, and resigns.
    async fn lead<T, E, F>(
        &mut self,
        guard: LockGuard,
        shutdown: Pin<&mut impl Future>,
        task: &mut impl FnMut(Term) -> F,
    ) -> End<T, E>
    where
        F: Future<Output = Result<T, E>>,
        E: fmt::Display,
    {
        let term = Term::new(self.key.clone(), guard.fencing_token());
        let span = info_span!(
            "distlock.term",
            lock.key = %self.key,
            lock.token = term.fencing_token().get(),
            lock.outcome = Empty,
            otel.status_code = Empty,
            error = Empty,
        );
        info!(lock.key = %self.key, term = term.fencing_token().get(), "leading");
        self.reporter.leading(term.fencing_token());
        let began = Instant::now();
        // The task has been dropped when this has a value (L3, L4).
        let work = span.in_scope(|| task(term)).instrument(span.clone());
        let ended = until_lost(guard.lost(), unless(shutdown, work)).await;
        let (end, outcome) = match ended {
            // What is left of a lost lease is released by the drop of the guard.
            Err(loss) => {
                warn!(lock.key = %self.key, %loss, "leadership lost");
                span.record("lock.outcome", "lost");
                record_failure(&span, &loss);
                self.reporter.term_ended("lost");
                return End::Lost;
            }
            Ok(Some(Ok(value))) => (End::Finished(value), "finished"),
            Ok(Some(Err(error))) => {
                warn!(lock.key = %self.key, %error, "the leader's task failed");
                record_failure(&span, &error);
                // Without the release: a slow store is no success of the task.
                (End::Failed { error, worked: began.elapsed() }, "failed")
            }
            Ok(None) => (End::Stopped, "stopped"),
        };
        span.record("lock.outcome", outcome);
        drop(span);
        self.reporter.term_ended(outcome);
        // No longer leading from here on, whatever the release takes.
        self.reporter.following();
        match guard.release().await {
            Ok(ReleaseOutcome::Released) => info!(lock.key = %self.key, "resigned"),
            Ok(ReleaseOutcome::AlreadyLost) => {
                warn!(lock.key = %self.key, "the leadership was lost before the release");
            }
            Err(error) => warn!(lock.key = %self.key, %error, "resignation not confirmed"),
        }
        end
    }

    fn succeeded(&mut self) {
        self.backoff.reset();
        self.reporter.following();
    }
}

/// Whether no later campaign can succeed (L5).
fn ends_candidacy(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::InvalidKey | ErrorKind::InvalidOptions | ErrorKind::Unsupported | ErrorKind::Closed)
}

/// Drives `future`, unless `stop` resolves before: then it returns `None`, and `future` has been
/// dropped.
async fn unless<F: Future>(mut stop: Pin<&mut impl Future>, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    poll_fn(|cx| {
        if stop.as_mut().poll(cx).is_ready() {
            return Poll::Ready(None);
        }
        future.as_mut().poll(cx).map(Some)
    })
    .await
}
