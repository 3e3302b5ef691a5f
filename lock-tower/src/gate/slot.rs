//! Where the guard of a request lies while the request is served.

use std::fmt;
use std::slice;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use distlock_api::{AllGuard, FencingToken, LockGuard, LockKey, Loss, LostSignal};
use tokio::time::Instant;
use tracing::Span;

use super::Gate;
use super::tally::Tally;
use super::{millis, record};
use crate::refusal::Reason;

/// One guard or several.
#[derive(Debug)]
pub(crate) enum Guards {
    One(LockGuard),
    All(AllGuard),
}

impl Guards {
    fn as_slice(&self) -> &[LockGuard] {
        match self {
            Self::One(guard) => slice::from_ref(guard),
            Self::All(all) => all.guards(),
        }
    }

    /// Releases them, in the background where that takes time.
    fn release(self) {
        match self {
            // So it can keep what the next guard is made of.
            Self::One(guard) => drop(guard.release()),
            Self::All(all) => drop(all),
        }
    }

    fn loss(&self) -> Option<Loss> {
        self.as_slice().iter().find_map(LockGuard::loss)
    }

    fn lost(&self) -> LostSignal {
        match self {
            Self::One(guard) => guard.lost(),
            Self::All(all) => all.lost(),
        }
    }
}

/// Why a hold ended before its request was served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    Lost(Loss),
    TooLong,
}

impl Ending {
    pub(crate) fn reason(self) -> Reason {
        match self {
            Self::Lost(_) => Reason::Lost,
            Self::TooLong => Reason::HeldTooLong,
        }
    }
}

/// What is known of a grant for ever.
#[derive(Clone, Debug)]
pub(crate) enum Grants {
    One((LockKey, FencingToken)),
    Several(Vec<(LockKey, FencingToken)>),
}

impl Grants {
    pub(crate) fn as_slice(&self) -> &[(LockKey, FencingToken)] {
        match self {
            Self::One(grant) => slice::from_ref(grant),
            Self::Several(grants) => grants,
        }
    }

    fn of(guards: &Guards) -> Self {
        let grant = |guard: &LockGuard| (guard.key().clone(), guard.fencing_token());
        match guards {
            Guards::One(guard) => Self::One(grant(guard)),
            Guards::All(all) => Self::Several(all.guards().iter().map(grant).collect()),
        }
    }
}

/// The guards, until the hold ends: at the end of the request, or earlier by whoever watches over it.
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
    /// `loss` is how the locks had been lost by then, whatever ended the hold: a loss is final (C4).
    Ended {
        ending: Option<Ending>,
        loss: Option<Loss>,
    },
}

impl Slot {
    /// For a request that the gate counts as a holder, until the hold has [ended](Self::end).
    #[inline]
    pub(super) fn new(gate: Arc<Gate>, guards: Guards, span: Span) -> Arc<Self> {
        let (grants, since) = (Grants::of(&guards), Instant::now());
        let deadline = gate.config.max_hold.and_then(|max_hold| since.checked_add(max_hold));
        Arc::new(Self { gate, grants, since, deadline, span, state: Mutex::new(State::Held(guards)) })
    }

    pub(crate) fn gate(&self) -> &Arc<Gate> {
        &self.gate
    }

    pub(crate) fn grants(&self) -> &Grants {
        &self.grants
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

    /// Ends the hold, if nobody has: the locks are released, in the background where that takes time.
    pub(crate) fn end(&self, outcome: &'static str, ending: Option<Ending>) {
        let mut state = self.lock();
        let loss = match (&*state, ending) {
            (State::Ended { .. }, _) => return,
            (State::Held(_), Some(Ending::Lost(loss))) => Some(loss),
            // Looked at under the lock: what anybody has seen lost until now stays lost.
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
        record::contained(|| {
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
