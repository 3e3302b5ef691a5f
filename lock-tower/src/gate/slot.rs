//! The place of a request's guards while the request is served, and how their hold ends.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use distlock_api::{FencingToken, LockKey, Loss, LostSignal};
use tokio::time::Instant;
use tracing::Span;

use super::config::OnLoss;
use super::contained::contained;
use super::ending::Ending;
use super::guards::{Grants, Guards};
use super::record::{self, millis};
use super::shared::Gate;
use super::tally::Tally;

/// The guards, until the hold ends: at the end of the request, or earlier by the deadline of the
/// hold.
pub(crate) struct Slot {
    gate: Arc<Gate>,
    grants: Grants,
    since: Instant,
    deadline: Option<Instant>,
    span: Span,
    state: Mutex<State>,
}

enum State {
    Held(Guards),
    /// `loss` is how the locks had been lost by the end of the hold, even if something else ended
    /// it: a loss is final (C4).
    Ended {
        ending: Option<Ending>,
        loss: Option<Loss>,
    },
}

impl Slot {
    /// Makes the slot of a request that the gate counts as a holder until its [end](Self::end).
    #[inline]
    pub(super) fn new(gate: Arc<Gate>, guards: Guards, span: Span) -> Arc<Self> {
        let (grants, since) = (Grants::of(&guards), Instant::now());
        let deadline = gate.config.max_hold.and_then(|max_hold| since.checked_add(max_hold));
        Arc::new(Self { gate, grants, since, deadline, span, state: Mutex::new(State::Held(guards)) })
    }

    /// Whether a lost lock ends the hold.
    pub(super) fn aborts_on_loss(&self) -> bool {
        self.gate.config.on_loss == OnLoss::Abort
    }

    pub(crate) fn grants(&self) -> &[(LockKey, FencingToken)] {
        self.grants.as_slice()
    }

    /// When the hold must have ended.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// How the locks were lost, if they were before the hold ended.
    pub(crate) fn loss(&self) -> Option<Loss> {
        match &*self.lock() {
            State::Held(guards) => guards.loss(),
            State::Ended { loss, .. } => *loss,
        }
    }

    pub(crate) fn lost(&self) -> LostSignal {
        match &*self.lock() {
            State::Held(guards) => guards.lost(),
            State::Ended { loss: Some(loss), .. } => LostSignal::new(std::future::ready(*loss)),
            State::Ended { loss: None, .. } => LostSignal::never(),
        }
    }

    /// Why the hold must end, or has ended, early.
    pub(crate) fn check(&self, abort_on_loss: bool) -> Option<Ending> {
        match &*self.lock() {
            State::Held(guards) if abort_on_loss => guards.loss().map(Ending::Lost),
            State::Held(_) => None,
            State::Ended { ending, .. } => *ending,
        }
    }

    /// Ends the hold unless it has ended: the locks are released, in the background where that
    /// takes time.
    pub(crate) fn end(&self, outcome: &'static str, ending: Option<Ending>) {
        let mut state = self.lock();
        let loss = match (&*state, ending) {
            (State::Ended { .. }, _) => return,
            (State::Held(_), Some(Ending::Lost(loss))) => Some(loss),
            // Read under the mutex: a lock that was seen as lost stays lost.
            (State::Held(guards), _) => guards.loss(),
        };
        let State::Held(guards) = std::mem::replace(&mut *state, State::Ended { ending, loss }) else { return };
        drop(state);
        let hold = self.since.elapsed();
        let outcome = if loss.is_some() { "lost" } else { outcome };
        // Counted at the end, even if the release panics.
        let _released = Released(&self.gate.tally, hold);
        guards.release();
        let class = &self.gate.class;
        record::hold(class, outcome, hold);
        contained(|| {
            self.span.record("lock.hold_ms", millis(hold));
            self.span.record("lock.outcome", outcome);
            self.span.in_scope(|| {
                tracing::debug!(
                    lock.class = %class,
                    lock.outcome = outcome,
                    lock.hold_ms = millis(hold),
                    "lock hold ended"
                );
            });
        });
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Counts a hold as released when it is dropped.
struct Released<'a>(&'a Tally, Duration);

impl Drop for Released<'_> {
    fn drop(&mut self) {
        self.0.released(self.1);
    }
}

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slot").field("grants", &self.grants).finish_non_exhaustive()
    }
}
