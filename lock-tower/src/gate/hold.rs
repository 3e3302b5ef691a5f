//! The hold of one request: its guards, what ends it early, and a future that runs under it.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::slice;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use distlock_api::style::{Client, Counted, contained, record_failure};
use distlock_api::{AllGuard, FencingToken, LockGuard, LockKey, Loss, LostSignal, Mode};
use pin_project_lite::pin_project;
use tokio::task::coop::{Unconstrained, unconstrained};
use tokio::time::{Instant, Sleep, sleep_until};
use tracing::Span;

use super::config::OnLoss;
use super::record::{self, millis};
use super::shared::{Ending, Gate};
use super::tally::{HoldPlace, Tally};

/// The locks of a request. They are released when this is dropped.
#[derive(Debug)]
pub(crate) struct Hold {
    slot: Arc<Slot>,
    /// Made at the first pending poll, so that a request that is served at once does not pay for
    /// it.
    watch: Option<Box<Watch>>,
    stage: Stage,
}

/// How far the request is. It decides what dropping the hold means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Nothing runs under the hold. If it is dropped now, the request was cancelled.
    Paused,
    /// The inner service runs under the hold. If it is dropped now, that service has panicked.
    Running,
    Served,
    Aborted(Ending),
}

/// The sources of an early end.
#[derive(Default)]
struct Watch {
    lost: Option<LostSignal>,
    timer: Option<Pin<Box<Sleep>>>,
    backstop: Option<Pin<Box<Unconstrained<Sleep>>>>,
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch").finish_non_exhaustive()
    }
}

impl Hold {
    #[inline]
    pub(super) fn new(slot: Arc<Slot>) -> Self {
        Self { slot, watch: None, stage: Stage::Paused }
    }

    pub(crate) fn slot(&self) -> &Arc<Slot> {
        &self.slot
    }

    /// Runs code of the inner service under the hold.
    pub(crate) fn run<T>(&mut self, inner: impl FnOnce() -> T) -> T {
        self.stage = Stage::Running;
        let done = inner();
        self.stage = Stage::Paused;
        done
    }

    /// Returns why the hold must end now, if it must.
    pub(crate) fn check(&self) -> Option<Ending> {
        if self.slot.deadline().is_some_and(|deadline| deadline <= Instant::now()) {
            return Some(Ending::TooLong);
        }
        self.slot.check(self.slot.aborts_on_loss())
    }

    /// Resolves when the hold must end.
    pub(crate) fn poll_ended(&mut self, cx: &mut Context<'_>) -> Poll<Ending> {
        let aborts_on_loss = self.slot.aborts_on_loss();
        let watch = self.watch.get_or_insert_default();
        if let Some(deadline) = self.slot.deadline() {
            let timer = watch.timer.get_or_insert_with(|| Box::pin(sleep_until(deadline)));
            if timer.as_mut().poll(cx).is_ready() {
                return Poll::Ready(Ending::TooLong);
            }
        }
        if aborts_on_loss {
            let lost = watch.lost.get_or_insert_with(|| self.slot.lost());
            return Pin::new(lost).poll(cx).map(Ending::Lost);
        }
        Poll::Pending
    }

    /// Enforces the deadline from now on even without polls: a server does not poll a body whose
    /// reader is slow. The timer's waker ends the hold, so that no task is needed for it.
    pub(crate) fn keep_deadline_unpolled(&mut self) {
        if let Some(deadline) = self.slot.deadline() {
            let mut timer = Box::pin(unconstrained(sleep_until(deadline)));
            let waker = Waker::from(self.slot.clone());
            if timer.as_mut().poll(&mut Context::from_waker(&waker)).is_ready() {
                waker.wake();
            }
            self.watch.get_or_insert_default().backstop = Some(timer);
        }
    }

    /// The request was served.
    pub(crate) fn release(mut self) {
        self.stage = Stage::Served;
    }

    /// The request is aborted. What served it must have been dropped.
    pub(crate) fn abort(mut self, ending: Ending) {
        self.stage = Stage::Aborted(ending);
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        match self.stage {
            Stage::Paused => self.slot.end("cancelled", None),
            Stage::Running => self.slot.end("panicked", None),
            Stage::Served => self.slot.end("released", None),
            Stage::Aborted(ending) => self.slot.end(ending.reason().as_str(), Some(ending)),
        }
    }
}

pin_project! {
    /// Resolves with the output and the hold, or with the reason why the hold ended early. When
    /// this is dropped, it drops the future and then releases the locks.
    #[derive(Debug)]
    pub(crate) struct Guarded<F> {
        // The order of the fields is the order in which they are dropped.
        #[pin]
        future: Option<F>,
        hold: Option<Hold>,
    }
}

impl<F> Guarded<F> {
    pub(crate) fn new(future: F, hold: Hold) -> Self {
        Self { future: Some(future), hold: Some(hold) }
    }
}

impl<F: Future> Future for Guarded<F> {
    type Output = Result<(F::Output, Hold), Ending>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let hold = this.hold.as_mut().expect("polled after completion");
        let mut end = hold.check();
        if end.is_none() {
            let future = this.future.as_mut().as_pin_mut().expect("there as long as the hold is");
            end = match hold.run(|| future.poll(cx)) {
                Poll::Ready(output) => {
                    this.future.set(None);
                    let hold = this.hold.take().expect("looked at above");
                    return Poll::Ready(Ok((output, hold)));
                }
                Poll::Pending => match hold.poll_ended(cx) {
                    Poll::Ready(ending) => Some(ending),
                    Poll::Pending => return Poll::Pending,
                },
            };
        }
        this.future.set(None);
        let (hold, ending) = (this.hold.take(), end.expect("all other cases have returned"));
        hold.expect("looked at above").abort(ending);
        Poll::Ready(Err(ending))
    }
}

/// The guards, until the hold ends: at the end of the request, or earlier by the deadline of the
/// hold.
pub(crate) struct Slot {
    gate: Arc<Gate>,
    grants: Grants,
    mode: Mode,
    since: Instant,
    deadline: Option<Instant>,
    span: Span,
    state: Mutex<State>,
}

/// What a hold counts in until it ends: the share of its client, and the bound on holds.
pub(super) type Places = (Option<Counted<Client>>, Option<HoldPlace>);

enum State {
    Held(Guards, Places),
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
    pub(super) fn new(gate: Arc<Gate>, guards: Guards, mode: Mode, places: Places, span: Span) -> Arc<Self> {
        let (grants, since) = (Grants::of(&guards), Instant::now());
        let deadline = gate.config.max_hold.and_then(|max_hold| since.checked_add(max_hold));
        Arc::new(Self { gate, grants, mode, since, deadline, span, state: Mutex::new(State::Held(guards, places)) })
    }

    /// Whether a lost lock ends the hold.
    pub(super) fn aborts_on_loss(&self) -> bool {
        self.gate.config.on_loss == OnLoss::Abort
    }

    pub(crate) fn gate(&self) -> &Arc<Gate> {
        &self.gate
    }

    pub(crate) fn mode(&self) -> Mode {
        self.mode
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
            State::Held(guards, _) => guards.loss(),
            State::Ended { loss, .. } => *loss,
        }
    }

    pub(crate) fn lost(&self) -> LostSignal {
        match &*self.lock() {
            State::Held(guards, _) => guards.lost(),
            State::Ended { loss: Some(loss), .. } => LostSignal::new(std::future::ready(*loss)),
            State::Ended { loss: None, .. } => LostSignal::never(),
        }
    }

    /// Why the hold must end, or has ended, early.
    pub(crate) fn check(&self, abort_on_loss: bool) -> Option<Ending> {
        match &*self.lock() {
            State::Held(guards, _) if abort_on_loss => guards.loss().map(Ending::Lost),
            State::Held(..) => None,
            State::Ended { ending, .. } => *ending,
        }
    }

    /// Ends the hold unless it has ended: the locks are released, in the background where that
    /// takes time.
    pub(crate) fn end(&self, outcome: &'static str, ending: Option<Ending>) {
        let mut state = self.lock();
        let loss = match (&*state, ending) {
            (State::Ended { .. }, _) => return,
            (State::Held(..), Some(Ending::Lost(loss))) => Some(loss),
            // Read under the mutex: a lock that was seen as lost stays lost.
            (State::Held(guards, _), _) => guards.loss(),
        };
        let State::Held(guards, places) = std::mem::replace(&mut *state, State::Ended { ending, loss }) else { return };
        drop(state);
        drop(places);
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
            match (loss, ending) {
                (Some(loss), _) => record_failure(&self.span, &loss),
                (None, Some(_)) => record_failure(&self.span, &Loss::HeldTooLong),
                (None, None) if outcome == "panicked" => record_failure(&self.span, &"the inner service has panicked"),
                (None, None) => {}
            }
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

/// Wakes when the deadline of the hold has come, which then ends.
impl Wake for Slot {
    fn wake(self: Arc<Self>) {
        if self.deadline.is_some_and(|deadline| deadline <= Instant::now()) {
            self.end(Ending::TooLong.reason().as_str(), Some(Ending::TooLong));
        }
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

/// One guard or several.
#[derive(Debug)]
pub(super) enum Guards {
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
    pub(super) fn release(self) {
        match self {
            // So the provider can use its memory for the next guard.
            Self::One(guard) => drop(guard.release()),
            Self::All(all) => drop(all),
        }
    }

    pub(super) fn loss(&self) -> Option<Loss> {
        self.as_slice().iter().find_map(LockGuard::loss)
    }

    pub(super) fn lost(&self) -> LostSignal {
        match self {
            Self::One(guard) => guard.lost(),
            Self::All(all) => all.lost(),
        }
    }
}

/// The keys and fencing tokens of a grant. Unlike the guards they outlive the hold.
#[derive(Clone, Debug)]
pub(super) enum Grants {
    One((LockKey, FencingToken)),
    Several(Vec<(LockKey, FencingToken)>),
}

impl Grants {
    pub(super) fn as_slice(&self) -> &[(LockKey, FencingToken)] {
        match self {
            Self::One(grant) => slice::from_ref(grant),
            Self::Several(grants) => grants,
        }
    }

    pub(super) fn of(guards: &Guards) -> Self {
        let grant = |guard: &LockGuard| (guard.key().clone(), guard.fencing_token());
        match guards {
            Guards::One(guard) => Self::One(grant(guard)),
            Guards::All(all) => Self::Several(all.guards().iter().map(grant).collect()),
        }
    }
}
