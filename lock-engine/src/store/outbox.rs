//! Bounds how many calls a store takes at once, and decides which go first.
//!
//! A slow store must not delay urgent calls. Without lanes, a thousand acquisitions queue up before
//! one renewal, and healthy leases expire although the store still answers (C14). So each request
//! of the engine stands in one [`queue`] until a permit is free for its call. The queue decides,
//! without I/O and without a clock of its own.

mod queue;

use std::any::Any;
use std::fmt;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, MutexGuard};

use distlock_api::style::contained;
use tokio::time::Instant;

use self::queue::{Batch, Ended, Enter, Queue, Rank};
pub(crate) use self::queue::{Entry, Home, Lane, Overload};
use crate::metrics;
use crate::store::ProviderId;

/// The permits for the calls that a store takes at once, and the lines of the requests that wait
/// for one.
///
/// A store with a bounded number of connections returns its lanes from
/// [`RemoteStore::lanes`](super::RemoteStore::lanes). Clones share everything: stores that share
/// connections return clones of one.
///
/// * Renewals go first and may use all permits; then go refreshes of tickets, then releases, then
///   acquisitions. Acquisitions never use the last quarter of the permits, at least one. All that
///   are no renewals together never use the last eighth, at least one. While acquisitions wait,
///   releases leave them a quarter. With a single permit all take turns.
/// * A request in line is removed when its caller leaves. It is not sent if its answer would come
///   too late for its caller: if less time is left than the recent duration of such calls and a
///   quarter of it, at most 250 ms more.
///   Callers with less than a second left go before those that came earlier.
/// * An acquisition whose turn in the line would come too late, by the line's recent pace, fails at
///   once with [`ErrorKind::Overloaded`](distlock_api::ErrorKind::Overloaded). One call may serve
///   many of those before it.
///
/// `Debug` shows how many calls are in flight, and how many requests are in line.
#[derive(Clone)]
pub struct Lanes(Arc<Mutex<State>>);

struct State {
    queue: Queue<Job>,
    /// Whether a thread gives free permits to requests in line.
    is_passing: bool,
}

/// A request in line, and what sends it.
pub(crate) struct Job {
    pub(crate) request: Box<dyn Any + Send>,
    /// Sends requests of one home in one call.
    pub(crate) send: fn(Vec<Box<dyn Any + Send>>, Permit),
}

/// What becomes of a request that enters.
pub(crate) enum Entered {
    /// It goes at once.
    Start(Permit),
    InLine(InLine),
    Refused(Overload),
}

impl Lanes {
    /// Creates lanes for a store that takes `at_once` calls at once.
    #[must_use]
    pub fn new(at_once: NonZeroUsize) -> Self {
        Self(Arc::new(Mutex::new(State { queue: Queue::new(at_once.get()), is_passing: false })))
    }

    /// Creates the lanes of a store that has none.
    pub(crate) fn unbounded() -> Self {
        Self::new(NonZeroUsize::MAX)
    }

    /// Returns how many calls the store takes at once, without those set aside.
    #[must_use]
    pub fn at_once(&self) -> usize {
        self.state().queue.at_once()
    }

    /// Reduces the number of calls at once by one until the value is dropped, but never to zero.
    /// For a connection that the store uses for something else, such as a stream of events. Calls
    /// in flight continue.
    pub fn set_aside(&self) -> SetAside {
        self.state().queue.set_aside();
        SetAside(self.clone())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("no code in here panics")
    }

    /// A request enters. `job` is called if it waits.
    pub(crate) fn enter(&self, entry: Entry, job: impl FnOnce() -> Job) -> Entered {
        let Entry { lane, home, deadline, in_group, .. } = entry;
        let entered = self.state().queue.enter(entry, Instant::now(), job);
        match entered {
            Enter::Start => Entered::Start(Permit::new(self, lane, home)),
            Enter::InLine { rank, due } => {
                metrics::in_line(lane.name(), 1.0);
                let in_line = InLine { lanes: self.clone(), lane, home, rank, due, deadline };
                if !in_group {
                    self.pass_on();
                }
                Entered::InLine(in_line)
            }
            Enter::Refused(overload) => Entered::Refused(overload),
        }
    }

    /// Returns a permit, if one is free and no request of the lane waits for it.
    pub(crate) fn try_permit(&self, lane: Lane, home: Home) -> Option<Permit> {
        self.state().queue.try_start(lane, home, Instant::now()).then(|| Permit::new(self, lane, home))
    }

    /// Returns how many requests of one kind and provider wait.
    pub(crate) fn waiting(&self, lane: Lane, provider: ProviderId, kind: &str) -> usize {
        self.state().queue.waiting(lane, provider, kind)
    }

    /// Gives free permits to requests in line. Does nothing if a thread does so already, such as
    /// this one: it goes on until there is nothing left to do.
    fn pass_on(&self) {
        let mut state = self.state();
        if std::mem::replace(&mut state.is_passing, true) {
            return;
        }
        loop {
            let next = state.queue.next(Instant::now());
            state.is_passing = next.is_some();
            drop(state);
            let Some(Batch { lane, home, jobs, late }) = next else { return };
            // Outside the lock: dropping a request wakes its caller, and a waker is foreign code.
            late.into_iter().for_each(|late| contained(|| drop(late)));
            if let Some(send) = jobs.first().map(|job| job.send) {
                let requests = jobs.into_iter().map(|job| job.request).collect();
                contained(|| send(requests, Permit::new(self, lane, home)));
            }
            state = self.state();
        }
    }
}

impl fmt::Debug for Lanes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let State { queue, .. } = &*self.state();
        let mut lanes = f.debug_struct("Lanes");
        lanes.field("at_once", &queue.at_once());
        for lane in Lane::ALL {
            let (in_flight, in_line) = queue.load(lane);
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
        self.0.state().queue.return_set_aside();
        self.0.pass_on();
    }
}

/// The right to have one call in flight. Dropping it passes it on, as one without a call.
pub(crate) struct Permit {
    lanes: Option<Lanes>,
    lane: Lane,
    home: Home,
    since: Instant,
}

impl Permit {
    fn new(lanes: &Lanes, lane: Lane, home: Home) -> Self {
        Self { lanes: Some(lanes.clone()), lane, home, since: Instant::now() }
    }

    fn pass_on(&mut self, call: Ended) {
        if let Some(lanes) = self.lanes.take() {
            lanes.state().queue.ended(self.lane, self.home, call);
            lanes.pass_on();
        }
    }

    /// The call has been answered.
    pub(crate) fn answered(mut self) {
        self.pass_on(Ended::After(self.since.elapsed()));
    }

    /// The caller has left before the answer.
    pub(crate) fn unanswered(mut self) {
        self.pass_on(Ended::Unanswered(self.since.elapsed()));
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.pass_on(Ended::Unused);
    }
}

/// The position of a request in line. Dropping it leaves the line.
pub(crate) struct InLine {
    lanes: Lanes,
    lane: Lane,
    home: Home,
    rank: Rank,
    /// When the request has waited for long enough for company.
    pub(crate) due: Instant,
    /// When its answer is of no more use.
    pub(crate) deadline: Option<Instant>,
}

impl InLine {
    /// The requests that the caller makes with this one have arrived.
    pub(crate) fn arrived(&self) {
        self.lanes.state().queue.arrived(self.lane, self.home);
        self.lanes.pass_on();
    }

    /// The request has waited for long enough for company.
    pub(crate) fn overdue(&self) {
        self.lanes.state().queue.overdue(self.lane, self.home, self.rank);
        self.lanes.pass_on();
    }

    /// Leaves the line. Returns whether the request was still there.
    pub(crate) fn leave(&self) -> bool {
        let job = self.lanes.state().queue.leave(self.lane, self.home, self.rank);
        // Outside the lock: dropping it wakes the caller.
        let left = job.is_some();
        contained(|| drop(job));
        if left {
            // Releases may use what was kept for the last acquisition in line.
            self.lanes.pass_on();
        }
        left
    }

    /// Returns how the request stands, or would stand if it were still in line.
    pub(crate) fn overload(&self) -> Overload {
        self.lanes.state().queue.overload(self.lane, self.home, self.rank, Instant::now())
    }
}

impl Drop for InLine {
    fn drop(&mut self) {
        metrics::in_line(self.lane.name(), -1.0);
        self.leave();
    }
}
