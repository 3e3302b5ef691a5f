//! Bounds how many calls a store takes at once, and decides which go first.
//!
//! A slow store must not delay urgent calls. Without lanes, a thousand acquisitions queue up before
//! one renewal, and healthy leases expire although the store still answers (C14). So the engine
//! takes a permit here before each call. [`state`] decides, without I/O and without a clock of its
//! own.

mod state;

use std::fmt;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until};

pub(crate) use self::state::{Lane, Overload};
use self::state::{NextInLine, PermitDecision, State, WaiterId};
use crate::record;

/// The permits for the calls that a store takes at once, and the lines of the calls that wait for
/// one.
///
/// A store with a bounded number of connections returns its lanes from
/// [`LeaseStore::lanes`](super::LeaseStore::lanes). Clones share everything: stores that share
/// connections return clones of one.
///
/// * Renewals go first and may use all permits; releases go before acquisitions. Acquisitions never
///   use the last quarter of the permits, at least one. Acquisitions and releases together never
///   use the last eighth, at least one. While acquisitions wait, releases leave them a quarter.
///   With a single permit all take turns.
/// * A call in line is removed when its caller leaves. It is not sent if its answer would come too
///   late for its caller: if less time is left than 1.25 × the recent duration of such calls.
/// * An acquisition whose turn in the line would come too late, by the line's recent pace, fails at
///   once with [`ErrorKind::Overloaded`](distlock_api::ErrorKind::Overloaded).
///
/// `Debug` shows how many calls are in flight and in line.
#[derive(Clone)]
pub struct Lanes(Arc<Mutex<State<Permit>>>);

impl Lanes {
    /// Creates lanes for a store that takes `at_once` calls at once.
    #[must_use]
    pub fn new(at_once: NonZeroUsize) -> Self {
        Self(Arc::new(Mutex::new(State::new(at_once.get()))))
    }

    /// Returns how many calls the store takes at once, without those set aside.
    #[must_use]
    pub fn at_once(&self) -> usize {
        self.state().at_once()
    }

    /// Reduces the number of calls at once by one until the value is dropped, but never to zero.
    /// For a connection that the store uses for something else, such as a stream of events. Calls
    /// in flight continue.
    pub fn set_aside(&self) -> SetAside {
        self.state().set_aside();
        SetAside(self.clone())
    }

    fn state(&self) -> MutexGuard<'_, State<Permit>> {
        self.0.lock().expect("no code in here panics")
    }

    /// Returns a permit for a call whose caller leaves at `deadline`, or a position in the line for
    /// one.
    ///
    /// With `admission`, a caller whose turn would come too late is refused instead.
    pub(crate) fn enter(&self, lane: Lane, deadline: Option<Instant>, admission: bool) -> PermitReply {
        let entry = self.state().enter(lane, deadline, admission, Instant::now());
        match entry {
            PermitDecision::Permitted => PermitReply::Now(Permit::new(self, lane)),
            PermitDecision::InLine(id, permit) => {
                record::in_line(lane.name(), 1.0);
                let position = LinePosition { lanes: self.clone(), lane, id };
                PermitReply::Later(InLine { position, deadline, permit })
            }
            PermitDecision::Refused(overload) => PermitReply::Refused(overload),
        }
    }

    /// Returns a permit, if one is free and no call of the lane waits for it.
    pub(crate) fn try_enter(&self, lane: Lane) -> Option<Permit> {
        self.state().try_enter(lane, Instant::now()).then(|| Permit::new(self, lane))
    }

    /// Returns why a call would be refused that comes behind the line and `more` calls.
    pub(crate) fn refusal(&self, lane: Lane, more: usize, deadline: Instant) -> Option<Overload> {
        self.state().refusal(lane, more, Some(deadline), Instant::now())
    }

    /// Returns how a call stands that comes behind the line and `more` calls.
    pub(crate) fn overload(&self, lane: Lane, more: usize) -> Overload {
        self.state().overload(lane, more, Instant::now())
    }

    /// Returns how long before its deadline a call must be sent, so that its answer comes in time.
    pub(crate) fn needs(&self, lane: Lane) -> Duration {
        self.state().needs(lane)
    }

    /// Gives free permits to calls in line.
    fn pass_on(&self) {
        loop {
            // Outside the lock: sending and dropping wake the receiver, and a waker is the caller's
            // code.
            let next = self.state().next(Instant::now());
            match next {
                None => return,
                Some(NextInLine::Expired(waiter)) => drop(waiter),
                Some(NextInLine::Starts(lane, waiter)) => {
                    if let Err(mut unclaimed) = waiter.send(Permit::new(self, lane)) {
                        unclaimed.give_back(None);
                    }
                }
            }
        }
    }
}

impl fmt::Debug for Lanes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state();
        let mut lanes = f.debug_struct("Lanes");
        lanes.field("at_once", &state.at_once());
        for lane in Lane::ALL {
            let (in_flight, in_line) = state.load(lane);
            lanes.field(lane.name(), &format_args!("{in_flight} in flight, {in_line} in line"));
        }
        lanes.finish()
    }
}

/// The call that [`Lanes::set_aside`] took away. Dropping it gives the call back.
#[derive(Debug)]
#[must_use]
pub struct SetAside(Lanes);

impl Drop for SetAside {
    fn drop(&mut self) {
        self.0.state().return_set_aside();
        self.0.pass_on();
    }
}

/// The answer to a request for a permit.
pub(crate) enum PermitReply {
    Now(Permit),
    Later(InLine),
    Refused(Overload),
}

/// The right to have one call in flight. Dropping it passes it on.
pub(crate) struct Permit {
    lanes: Option<Lanes>,
    lane: Lane,
    since: Instant,
}

impl Permit {
    fn new(lanes: &Lanes, lane: Lane) -> Self {
        Self { lanes: Some(lanes.clone()), lane, since: Instant::now() }
    }

    /// Gives the permit back. `took` is the duration of the call, `None` if there was no call.
    fn give_back(&mut self, took: Option<Duration>) -> Option<Lanes> {
        let lanes = self.lanes.take()?;
        lanes.state().ended(self.lane, took);
        Some(lanes)
    }

    /// Passes the permit on without a call, which says nothing about how long calls take.
    pub(crate) fn unused(mut self) {
        if let Some(lanes) = self.give_back(None) {
            lanes.pass_on();
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let took = self.since.elapsed();
        if let Some(lanes) = self.give_back(Some(took)) {
            lanes.pass_on();
        }
    }
}

/// A position in a line.
#[derive(Clone)]
pub(crate) struct LinePosition {
    lanes: Lanes,
    lane: Lane,
    id: WaiterId,
}

impl LinePosition {
    /// Leaves the line. Returns the load that it leaves, or `None` if the permit was given already.
    pub(crate) fn leave(&self) -> Option<Overload> {
        let (waiter, overload) = {
            let mut state = self.lanes.state();
            (state.leave(self.lane, self.id)?, state.overload(self.lane, 0, Instant::now()))
        };
        // Outside the lock: dropping the sender wakes the receiver.
        drop(waiter);
        // Releases may use what was kept for the last acquisition in line.
        self.lanes.pass_on();
        Some(overload)
    }

    pub(crate) fn overload(&self) -> Overload {
        self.lanes.overload(self.lane, 0)
    }
}

/// A call in line. Dropping it leaves the line.
pub(crate) struct InLine {
    position: LinePosition,
    deadline: Option<Instant>,
    permit: oneshot::Receiver<Permit>,
}

impl InLine {
    pub(crate) fn position(&self) -> LinePosition {
        self.position.clone()
    }

    /// Waits for the permit; `None` once it would come too late, or after [`LinePosition::leave`].
    pub(crate) async fn permit(mut self) -> Option<Permit> {
        let deadline = self.deadline;
        tokio::select! {
            biased;
            permit = &mut self.permit => permit.ok(),
            () = async { sleep_until(deadline.expect("guarded")).await }, if deadline.is_some() => None,
        }
    }
}

impl Drop for InLine {
    fn drop(&mut self) {
        record::in_line(self.position.lane.name(), -1.0);
        let _ = self.position.leave();
    }
}

#[cfg(test)]
mod tests;
