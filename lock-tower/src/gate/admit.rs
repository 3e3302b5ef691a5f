//! A request on its way in: admits it when it has its locks, at once or after a limited wait.

use std::borrow::Cow;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use distlock_api::style::{Client, Counted, is_outage, record_error};
use distlock_api::{AcquireOptions, Acquired, Busy, LockError, LockKey, LockProviderExt, Mode, Wait};
use tokio::time::Instant;
use tracing::{Instrument, Span};

use super::hold::{Guards, Hold, Slot};
use super::record::{self, millis};
use super::shared::{Claims, Gate};
use crate::refusal::Refusal;

/// How a request may continue.
pub(crate) enum Admission {
    Held(Hold),
    /// Without a lock, because the lock service cannot be reached and the layer fails open.
    Unlocked,
}

/// If this is dropped before its [end](Self::end), it is counted as a request that went away.
pub(super) struct Arrival {
    active: Active,
    mode: Mode,
    /// The request in the share of its client.
    place: Option<Counted<Client>>,
    pub(super) span: Span,
}

impl Arrival {
    fn new(gate: &Arc<Gate>, claims: &mut Claims) -> Self {
        let span = tracing::info_span!(
            "distlock.request",
            lock.class = %gate.class,
            lock.wait_ms = tracing::field::Empty,
            lock.hold_ms = tracing::field::Empty,
            lock.outcome = tracing::field::Empty,
            otel.status_code = tracing::field::Empty,
            error = tracing::field::Empty,
        );
        Self { active: Active::new(gate), mode: claims.mode, place: claims.place.take(), span }
    }

    fn gate(&self) -> &Gate {
        self.active.gate()
    }

    /// Admits the request or refuses it.
    fn end(self, answer: Result<Guards, Refusal>, wait: Duration) -> Result<Admission, Refusal> {
        let Self { active, mode, place, span } = self;
        span.record("lock.wait_ms", millis(wait));
        let answer = answer.and_then(|guards| {
            let gate = active.gate();
            let hold = gate.tally.enter_hold(gate.config.limits).ok_or_else(|| gate.holds_are_full())?;
            Ok((guards, (place, hold)))
        });
        match answer {
            Ok((guards, places)) => {
                record::wait(&active.gate().class, "held", wait);
                Ok(Admission::Held(Hold::new(Slot::new(active.hold(), guards, mode, places, span))))
            }
            Err(refusal) => refused(&active, &span, refusal, wait),
        }
    }
}

#[cold]
fn refused(active: &Active, span: &Span, refusal: Refusal, wait: Duration) -> Result<Admission, Refusal> {
    let gate = active.gate();
    record::wait(&gate.class, refusal.reason().as_str(), wait);
    span.record("lock.outcome", refusal.reason().as_str());
    if let Some(error) = refusal.lock_error() {
        record_error(span, error);
    }
    if gate.config.fail_open && refusal.lock_error().is_some_and(is_outage) {
        gate.tally.failed_open();
        record::failed_open(&gate.class);
        let error = refusal.lock_error().map(tracing::field::display);
        span.in_scope(|| tracing::warn!(lock.class = %gate.class, error, "serving WITHOUT a lock (fail-open)"));
        return Ok(Admission::Unlocked);
    }
    span.in_scope(|| gate.count(&refusal));
    Err(refusal)
}

/// Counts a request as present until this is dropped. Afterwards its hold counts.
struct Active(Option<Arc<Gate>>);

impl Active {
    fn new(gate: &Arc<Gate>) -> Self {
        gate.tally.arrived();
        Self(Some(gate.clone()))
    }

    fn gate(&self) -> &Gate {
        self.0.as_ref().expect("taken only by `hold`")
    }

    fn hold(mut self) -> Arc<Gate> {
        let gate = self.0.take().expect("taken only here");
        gate.tally.held();
        gate
    }
}

impl Drop for Active {
    fn drop(&mut self) {
        if let Some(gate) = &self.0 {
            gate.tally.left();
        }
    }
}

/// Resolves when the request may continue or is refused.
pub(crate) type Admitting = Pin<Box<dyn Future<Output = Result<Admission, Refusal>> + Send>>;

/// The answer to a request, now or later.
pub(crate) enum Answer {
    Now(Result<Admission, Refusal>),
    Later(Admitting),
}

impl Gate {
    /// Takes the locks, at once if that needs neither a wait nor I/O. Otherwise it waits no longer
    /// than the caller's `deadline`. A dropped future leaves no waiter and no lock (C11).
    #[inline]
    pub(crate) fn admit(self: &Arc<Self>, mut claims: Claims, deadline: impl FnOnce() -> Option<Duration>) -> Answer {
        let arrival = Arrival::new(self, &mut claims);
        let answer = arrival.span.in_scope(|| {
            tracing::debug!(lock.class = %self.class, lock.keys = ?claims.keys.as_slice(), lock.mode = %claims.mode, "acquiring");
            self.acquire_now(&claims)
        });
        match answer {
            Some(answer) => Answer::Now(arrival.end(answer, Duration::ZERO)),
            None => Answer::Later(Self::acquire_later(arrival, claims, self.config.wait(deadline()))),
        }
    }

    /// Returns the answer if there is one without a wait and without I/O.
    fn acquire_now(&self, claims: &Claims) -> Option<Result<Guards, Refusal>> {
        if self.tally.holds_are_full(self.config.limits) {
            return Some(Err(self.holds_are_full()));
        }
        if let [key] = claims.keys.as_slice() {
            match self.provider.acquire_now(key, &self.options(claims)) {
                None => {}
                Some(Ok(Acquired::Held(guard))) => return Some(Ok(Guards::One(guard))),
                // Whether the request would wait for itself takes I/O.
                Some(Ok(Acquired::Busy(_))) if !claims.outside.is_empty() => return None,
                Some(answer) => return Some(self.judge(claims, self.config.options.wait(), answer.map(one))),
            }
        }
        self.tally
            .waiters
            .is_full(&claims.keys, claims.client.as_ref(), self.config.limits)
            .then(|| Err(self.full(claims)))
    }

    /// Returns the options of an acquisition. Those of an exclusive one are not copied.
    fn options(&self, claims: &Claims) -> Cow<'_, AcquireOptions> {
        if claims.mode.is_exclusive() {
            return Cow::Borrowed(&self.config.options);
        }
        Cow::Owned(self.config.options.clone().with_mode(claims.mode))
    }

    fn acquire_later(arrival: Arrival, claims: Claims, wait: Wait) -> Admitting {
        Box::pin(async move {
            let started = Instant::now();
            let answer = arrival.gate().acquire(&claims, wait).instrument(arrival.span.clone()).await;
            arrival.end(answer, started.elapsed())
        })
    }

    async fn acquire(&self, claims: &Claims, wait: Wait) -> Result<Guards, Refusal> {
        let mut acquisition = pin!(self.acquire_from_provider(claims, wait));
        // A request that is admitted at the first poll has not waited.
        let first = poll_fn(|cx| Poll::Ready(acquisition.as_mut().poll(cx))).await;
        let answer = match first {
            Poll::Ready(answer) => answer,
            Poll::Pending => {
                let waiting = self.tally.waiters.enter(&claims.keys, claims.client.as_ref(), self.config.limits);
                let _waiting = waiting.ok_or_else(|| self.full(claims))?;
                let _queued = record::Queued::enter(&self.class);
                self.unless_held_outside(claims, acquisition).await?
            }
        };
        if wait == Wait::Try
            && matches!(answer, Ok(Err(_)))
            && let Some(refusal) = self.held_outside(claims).await
        {
            return Err(refusal);
        }
        self.judge(claims, wait, answer)
    }

    async fn acquire_from_provider(&self, claims: &Claims, wait: Wait) -> Result<Result<Guards, Busy>, LockError> {
        let options = self.options(claims).into_owned().with_wait(wait);
        if let [key] = claims.keys.as_slice() {
            return Ok(one(self.provider.acquire_with(key.clone(), options).await?));
        }
        let keys: Vec<LockKey> = claims.keys.as_slice().to_vec();
        match self.provider.acquire_all(keys).options(options).await {
            Ok(all) => Ok(Ok(Guards::All(all))),
            Err(error) if error.is_not_granted() => Ok(Err(Busy::new())),
            Err(error) => Err(error),
        }
    }

    fn judge(
        &self,
        claims: &Claims,
        wait: Wait,
        answer: Result<Result<Guards, Busy>, LockError>,
    ) -> Result<Guards, Refusal> {
        match answer {
            Ok(Ok(guards)) => Ok(guards),
            Ok(Err(busy)) => Err(self.stayed_locked(claims, wait, busy)),
            Err(error) => Err(self.failed(claims, error)),
        }
    }
}

fn one(acquired: Acquired) -> Result<Guards, Busy> {
    match acquired {
        Acquired::Held(guard) => Ok(Guards::One(guard)),
        Acquired::Busy(busy) => Err(busy),
    }
}
