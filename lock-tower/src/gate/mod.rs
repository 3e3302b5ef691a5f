//! What both layers do: let a request in when it holds its locks.
//!
//! A [`Gate`] asks the provider and answers with a [`Hold`](hold::Hold) or a refusal. It knows nothing of requests. What the services of
//! one layer share is its [`Tally`](tally::Tally).

mod arrival;
mod config;
mod flow;
mod guarded;
mod hold;
mod pace;
mod record;
mod slot;
mod tally;
mod waiters;

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use distlock_api::{Acquired, Busy, ErrorKind, LockError, LockKey, LockProvider, LockProviderExt, Wait};
use tokio::time::Instant;
use tracing::Instrument;

pub use config::OnLoss;
pub(crate) use config::{Config, common_setters};
pub(crate) use guarded::Guarded;
pub(crate) use hold::Hold;
pub(crate) use slot::{Ending, Slot};
pub use tally::Monitor;
pub(crate) use tally::Tally;

use crate::keys::KeySet;
use crate::refusal::{KeyRejection, Reason, Refusal};
use arrival::Arrival;
use slot::Guards;

/// What is suggested when nothing is known of how long a lock is held.
const RETRY_UNKNOWN: Duration = Duration::from_secs(1);
/// What is suggested when the lock service is not available.
const RETRY_OUTAGE: Duration = Duration::from_secs(5);

/// How a request may go on.
pub(crate) enum Admission {
    Held(Hold),
    /// Without a lock, because the lock service is out of reach and the layer fails open.
    Unlocked,
}

/// Whether a request may go on, once that is known.
pub(crate) type Admitting = Pin<Box<dyn Future<Output = Result<Admission, Refusal>> + Send>>;

/// The answer to a request: at once, or when it is known.
pub(crate) enum Answer {
    Now(Result<Admission, Refusal>),
    Later(Admitting),
}

pub(crate) struct Gate {
    provider: Arc<dyn LockProvider>,
    config: Config,
    class: Arc<str>,
    tally: Arc<Tally>,
}

impl Gate {
    pub(crate) fn new(provider: Arc<dyn LockProvider>, config: Config, class: &str, tally: Arc<Tally>) -> Self {
        let class = config.class.clone().unwrap_or_else(|| class.into());
        Self { provider, config, class, tally }
    }

    /// Takes the locks: at once, if that takes neither waiting nor I/O; else it waits no longer than the caller's own `deadline`. Dropped, it leaves no waiter and no lock (C11).
    #[inline]
    pub(crate) fn admit(self: &Arc<Self>, keys: KeySet, deadline: impl FnOnce() -> Option<Duration>) -> Answer {
        let arrival = Arrival::new(self);
        let answer = arrival.span.in_scope(|| {
            tracing::debug!(lock.class = %self.class, lock.keys = ?keys.as_slice(), "acquiring");
            self.acquire_now(&keys)
        });
        match answer {
            Some(answer) => Answer::Now(arrival.end(answer, Duration::ZERO)),
            None => Answer::Later(Self::acquire_later(arrival, keys, self.config.wait(deadline()))),
        }
    }

    /// The answer, if there is one without a question.
    fn acquire_now(&self, keys: &KeySet) -> Option<Result<Guards, Refusal>> {
        if self.tally.waiters.is_full(keys, self.config.limits) {
            return Some(Err(self.full(keys)));
        }
        let [key] = keys.as_slice() else { return None };
        match self.provider.acquire_now(key, &self.config.options)? {
            Ok(Acquired::Held(guard)) => Some(Ok(Guards::One(guard))),
            answer => Some(self.judge(keys, self.config.options.wait(), answer.map(one))),
        }
    }

    fn acquire_later(arrival: Arrival, keys: KeySet, wait: Wait) -> Admitting {
        Box::pin(async move {
            let started = Instant::now();
            let answer = arrival.gate().acquire(&keys, wait).instrument(arrival.span.clone()).await;
            arrival.end(answer, started.elapsed())
        })
    }

    async fn acquire(&self, keys: &KeySet, wait: Wait) -> Result<Guards, Refusal> {
        let mut asking = pin!(self.ask(keys, wait));
        // Who is let in at once has not waited.
        let first = poll_fn(|cx| Poll::Ready(asking.as_mut().poll(cx))).await;
        let answer = match first {
            Poll::Ready(answer) => answer,
            Poll::Pending => {
                let waiting = self.tally.waiters.enter(keys, self.config.limits);
                let _waiting = waiting.ok_or_else(|| self.full(keys))?;
                let _queued = record::Queued::enter(&self.class);
                asking.await
            }
        };
        self.judge(keys, wait, answer)
    }

    async fn ask(&self, keys: &KeySet, wait: Wait) -> Result<Result<Guards, Busy>, LockError> {
        let options = self.config.options.clone().with_wait(wait);
        if let [key] = keys.as_slice() {
            return Ok(one(self.provider.acquire_with(key.clone(), options).await?));
        }
        let keys: Vec<LockKey> = keys.as_slice().to_vec();
        Ok(self.provider.acquire_all(keys).options(options).await?.map(Guards::All).ok_or_else(Busy::new))
    }

    fn judge(
        &self,
        keys: &KeySet,
        wait: Wait,
        answer: Result<Result<Guards, Busy>, LockError>,
    ) -> Result<Guards, Refusal> {
        match answer {
            Ok(Ok(guards)) => Ok(guards),
            Ok(Err(busy)) => {
                let reason = if wait == Wait::Try { Reason::Busy } else { Reason::Timeout };
                Err(Refusal::new(reason).with_retry_after(Some(self.retry_after(keys, busy))))
            }
            Err(error) => Err(self.failed(keys, error)),
        }
    }

    /// The hold of a request has ended before the request was served.
    pub(crate) fn aborted(&self, ending: Ending) -> Refusal {
        let retry_after = self.tally.pace().estimate(1).unwrap_or(RETRY_UNKNOWN);
        let refusal = Refusal::new(ending.reason()).with_retry_after(Some(retry_after));
        let refusal = match ending {
            Ending::Lost(loss) => refusal.with_source(LockError::new(ErrorKind::Lost, loss.to_string())),
            Ending::TooLong => refusal,
        };
        tracing::warn!(lock.class = %self.class, lock.outcome = refusal.reason().as_str(), "request aborted");
        self.count(&refusal);
        refusal
    }

    /// What had to serve the request was stopped from outside.
    pub(crate) fn stopped(&self) -> Refusal {
        let refusal = Refusal::new(Reason::Unavailable).with_retry_after(Some(RETRY_OUTAGE));
        self.count(&refusal);
        refusal
    }

    /// No key could be made of a request.
    pub(crate) fn rejected(&self, rejection: KeyRejection) -> Refusal {
        if rejection.is_misconfigured() {
            tracing::error!(lock.class = %self.class, error = %rejection, "the lock layer is misconfigured");
        }
        let refusal = Refusal::from(rejection);
        self.count(&refusal);
        refusal
    }

    fn failed(&self, keys: &KeySet, error: LockError) -> Refusal {
        let refusal = Refusal::from(error);
        let retry_after = match refusal.reason() {
            Reason::BadKey | Reason::NotFound | Reason::Rejected | Reason::Misconfigured => None,
            Reason::Unavailable => Some(RETRY_OUTAGE),
            _ => Some(self.retry_after(keys, Busy::new())),
        };
        if refusal.reason() == Reason::Misconfigured {
            let error = refusal.lock_error().map(tracing::field::display);
            tracing::error!(lock.class = %self.class, error, "the lock layer is misconfigured");
        }
        refusal.with_retry_after(retry_after)
    }

    fn full(&self, keys: &KeySet) -> Refusal {
        Refusal::new(Reason::Full).with_retry_after(Some(self.retry_after(keys, Busy::new())))
    }

    /// The observed hold time times the queue with its holder; or what the store says; or a second.
    fn retry_after(&self, keys: &KeySet, busy: Busy) -> Duration {
        let elsewhere = busy.ahead.map_or(0, |ahead| usize::try_from(ahead).unwrap_or(usize::MAX));
        let ahead = self.tally.waiters.ahead(keys).max(elsewhere).saturating_add(1);
        self.tally.pace().estimate(ahead).or(busy.retry_after).unwrap_or(RETRY_UNKNOWN)
    }

    fn count(&self, refusal: &Refusal) {
        let reason = refusal.reason().as_str();
        self.tally.refused(refusal.reason());
        record::refusal(&self.class, refusal.reason());
        let error = std::error::Error::source(refusal).map(tracing::field::display);
        tracing::debug!(lock.class = %self.class, lock.outcome = reason, error, "request refused");
    }
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gate").field("provider", &self.provider).field("config", &self.config).finish_non_exhaustive()
    }
}

fn one(acquired: Acquired) -> Result<Guards, Busy> {
    match acquired {
        Acquired::Held(guard) => Ok(Guards::One(guard)),
        Acquired::Busy(busy) => Err(busy),
    }
}

/// Whether nobody answered. Every answer counts, whatever it says; and a closed provider is not out of reach: nothing that it would have guarded should begin.
fn is_outage(refusal: &Refusal) -> bool {
    refusal.lock_error().is_some_and(|error| matches!(error.kind(), ErrorKind::Timeout | ErrorKind::Unavailable))
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
