//! A request that needs its locks, until it has them or is refused.

use std::sync::Arc;
use std::time::Duration;

use tracing::Span;

use super::guards::Guards;
use super::hold::Hold;
use super::record::{self, millis};
use super::shared::Gate;
use super::slot::Slot;
use crate::refusal::{Refusal, is_outage};

/// How a request may continue.
pub(crate) enum Admission {
    Held(Hold),
    /// Without a lock, because the lock service cannot be reached and the layer fails open.
    Unlocked,
}

/// If this is dropped before its [end](Self::end), it is counted as a request that went away.
pub(super) struct Arrival {
    active: Active,
    pub(super) span: Span,
}

impl Arrival {
    pub(super) fn new(gate: &Arc<Gate>) -> Self {
        let span = tracing::info_span!(
            "distlock.request",
            lock.class = %gate.class,
            lock.wait_ms = tracing::field::Empty,
            lock.hold_ms = tracing::field::Empty,
            lock.outcome = tracing::field::Empty,
        );
        Self { active: Active::new(gate), span }
    }

    pub(super) fn gate(&self) -> &Gate {
        self.active.gate()
    }

    /// Admits the request or refuses it.
    pub(super) fn end(self, answer: Result<Guards, Refusal>, wait: Duration) -> Result<Admission, Refusal> {
        let Self { active, span } = self;
        span.record("lock.wait_ms", millis(wait));
        match answer {
            Ok(guards) => {
                record::wait(&active.gate().class, "held", wait);
                Ok(Admission::Held(Hold::new(Slot::new(active.hold(), guards, span))))
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
