//! Decides which call goes next. Pure: the time is an argument.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

/// The purpose of a call, the most urgent first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Lane {
    /// Renewals of leases: they may use every permit.
    Renew,
    /// Refreshes of tickets, and queries for waiters.
    Refresh,
    /// Releases, withdrawals, and writes under a lease.
    Release,
    /// Acquisitions.
    Acquire,
}

impl Lane {
    pub(super) const ALL: [Self; 4] = [Self::Renew, Self::Refresh, Self::Release, Self::Acquire];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Renew => "renew",
            Self::Refresh => "refresh",
            Self::Release => "release",
            Self::Acquire => "acquire",
        }
    }
}

/// Why an acquisition was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Overload {
    /// The calls in line before it.
    pub(crate) in_line: usize,
    pub(crate) at_once: usize,
    /// How long it would have waited, by the line's recent pace.
    pub(crate) wait: Duration,
    /// How long calls take, by those that ended last.
    pub(crate) takes: Duration,
}

pub(super) type WaiterId = u64;
/// The channel on which a waiter gets its permit, `P`.
pub(super) type Waiter<P> = oneshot::Sender<P>;

/// The permits, and a line for each lane.
pub(super) struct State<P> {
    at_once: usize,
    /// How many of them are set aside.
    set_aside: usize,
    lines: [Line<P>; Lane::ALL.len()],
    last_id: WaiterId,
}

struct Line<P> {
    in_flight: usize,
    /// First come, first served.
    waiting: BTreeMap<WaiterId, Waiting<P>>,
    /// The duration of a call.
    duration: Average,
    /// The time from one start to the next while calls wait.
    interval: Average,
    last_start: Option<Instant>,
}

struct Waiting<P> {
    deadline: Option<Instant>,
    waiter: Waiter<P>,
}

/// A call that has just left the line.
pub(super) enum NextInLine<P> {
    /// It gets a permit.
    Starts(Lane, Waiter<P>),
    /// Its caller has left, or will have left before the answer can come. Dropping the waiter
    /// notifies it.
    Expired(Waiter<P>),
}

/// The answer to a request for a permit.
pub(super) enum PermitDecision<P> {
    Permitted,
    InLine(WaiterId, oneshot::Receiver<P>),
    Refused(Overload),
}

impl<P> Default for Line<P> {
    fn default() -> Self {
        let (duration, interval) = (Average::default(), Average::default());
        Self { in_flight: 0, waiting: BTreeMap::new(), duration, interval, last_start: None }
    }
}

impl<P> State<P> {
    pub(super) fn new(at_once: usize) -> Self {
        Self { at_once, set_aside: 0, lines: Default::default(), last_id: 0 }
    }

    /// Returns the number of permits, never zero: what is set aside does not stop the calls.
    pub(super) fn at_once(&self) -> usize {
        self.at_once.saturating_sub(self.set_aside).max(1)
    }

    pub(super) fn set_aside(&mut self) {
        self.set_aside += 1;
    }

    pub(super) fn return_set_aside(&mut self) {
        self.set_aside -= 1;
    }

    /// Returns how many calls of a lane are in flight, and how many wait.
    pub(super) fn load(&self, lane: Lane) -> (usize, usize) {
        let line = self.line(lane);
        (line.in_flight, line.waiting.len())
    }

    fn line(&self, lane: Lane) -> &Line<P> {
        &self.lines[lane as usize]
    }

    fn line_mut(&mut self, lane: Lane) -> &mut Line<P> {
        &mut self.lines[lane as usize]
    }

    /// Returns how many permits this lane and the less urgent ones may use together.
    fn share(&self, lane: Lane) -> usize {
        let reserved = match lane {
            Lane::Renew | Lane::Refresh => 0,
            Lane::Release => (self.at_once() / 8).max(1),
            Lane::Acquire => (self.at_once() / 4).max(1),
        };
        self.at_once().saturating_sub(reserved).max(1)
    }

    /// Returns how many permits releases may use. Waiting acquisitions get a quarter: withdrawals
    /// of those that timed out must not fill a server that has become fast again.
    fn releases_at_once(&self) -> usize {
        let for_acquisitions = match self.line(Lane::Acquire).waiting.is_empty() {
            true => 0,
            false => (self.at_once() / 4).max(1),
        };
        self.share(Lane::Release).saturating_sub(for_acquisitions).max(1)
    }

    /// Returns whether a call of this lane leaves the others their reserved permits.
    fn has_room(&self, lane: Lane) -> bool {
        if lane == Lane::Release && self.line(lane).in_flight >= self.releases_at_once() {
            return false;
        }
        let in_flight = |from: Lane| self.lines[from as usize..].iter().map(|line| line.in_flight).sum::<usize>();
        let lanes = Lane::ALL.into_iter().take_while(|other| *other <= lane);
        lanes.into_iter().all(|other| in_flight(other) < self.share(other))
    }

    pub(super) fn try_enter(&mut self, lane: Lane, now: Instant) -> bool {
        let free = self.line(lane).waiting.is_empty() && self.has_room(lane);
        if free {
            self.line_mut(lane).start(now);
        }
        free
    }

    pub(super) fn enter(
        &mut self,
        lane: Lane,
        deadline: Option<Instant>,
        admission: bool,
        now: Instant,
    ) -> PermitDecision<P> {
        // A free permit is always used: the answer shows how fast the store is now.
        if self.try_enter(lane, now) {
            return PermitDecision::Permitted;
        }
        if let Some(overload) = self.refusal(lane, 0, deadline.filter(|_| admission), now) {
            return PermitDecision::Refused(overload);
        }
        self.last_id += 1;
        let id = self.last_id;
        let (waiter, permit) = oneshot::channel();
        self.line_mut(lane).waiting.insert(id, Waiting { deadline, waiter });
        PermitDecision::InLine(id, permit)
    }

    /// Returns why a call would be refused that comes behind the line and `more` calls, if its turn
    /// would come too late. A free permit is never refused.
    pub(super) fn refusal(&self, lane: Lane, more: usize, deadline: Option<Instant>, now: Instant) -> Option<Overload> {
        let line = self.line(lane);
        if more == 0 && line.waiting.is_empty() && self.has_room(lane) {
            return None;
        }
        let overload = self.overload(lane, more, now);
        deadline.is_some_and(|deadline| now + overload.wait + line.needs() > deadline).then_some(overload)
    }

    /// Returns how long before its deadline a call of the lane must be sent.
    pub(super) fn needs(&self, lane: Lane) -> Duration {
        self.line(lane).needs()
    }

    /// Returns how many calls are in line, with `more` that come behind it, and how long a newcomer
    /// then waits by the recent pace.
    pub(super) fn overload(&self, lane: Lane, more: usize, now: Instant) -> Overload {
        let line = self.line(lane);
        let in_line = line.waiting.len() + more;
        let share = u32::try_from(self.share(lane)).unwrap_or(u32::MAX);
        let interval = line.interval.mean.unwrap_or(line.duration.recent() / share);
        let ahead = u32::try_from(in_line).unwrap_or(u32::MAX);
        // A line that has not moved for some time adds at least that time.
        let stands = line.last_start.filter(|_| in_line > 0).map_or(Duration::ZERO, |start| now - start);
        let wait = interval.saturating_mul(ahead).saturating_add(stands.max(interval));
        Overload { in_line, at_once: self.at_once(), wait, takes: line.duration.recent() }
    }

    pub(super) fn leave(&mut self, lane: Lane, id: WaiterId) -> Option<Waiter<P>> {
        self.line_mut(lane).waiting.remove(&id).map(|waiting| waiting.waiter)
    }

    /// Records that a call has ended, or that a permit was not used.
    pub(super) fn ended(&mut self, lane: Lane, took: Option<Duration>) {
        let line = self.line_mut(lane);
        line.in_flight -= 1;
        if let Some(took) = took {
            line.duration.add_warily(took);
        }
    }

    /// Takes the next call out of line, if there is a permit for it: of the most urgent lane that
    /// may have one.
    pub(super) fn next(&mut self, now: Instant) -> Option<NextInLine<P>> {
        let lane = Lane::ALL.into_iter().find(|lane| !self.line(*lane).waiting.is_empty() && self.has_room(*lane))?;
        let line = self.line_mut(lane);
        let (_, Waiting { deadline, waiter }) = line.waiting.pop_first()?;
        if waiter.is_closed() || deadline.is_some_and(|deadline| now + line.needs() > deadline) {
            return Some(NextInLine::Expired(waiter));
        }
        if let Some(last) = line.last_start {
            line.interval.add(now - last);
        }
        line.start(now);
        Some(NextInLine::Starts(lane, waiter))
    }
}

impl<P> Line<P> {
    /// Returns how long before its deadline a call must be sent: a quarter more than calls take. A
    /// call that just fails to be answered in time is wasted.
    fn needs(&self) -> Duration {
        self.duration.recent() * 5 / 4
    }

    fn start(&mut self, now: Instant) {
        self.in_flight += 1;
        self.last_start = Some(now);
    }
}

/// A moving average.
#[derive(Clone, Copy, Default)]
struct Average {
    mean: Option<Duration>,
    last: Duration,
}

impl Average {
    fn add(&mut self, value: Duration) {
        self.mix(value, 8);
    }

    /// Adds a value so that a rise counts more than a fall: each call that is sent before the store
    /// is known to be slow may be wasted.
    fn add_warily(&mut self, value: Duration) {
        let rises = self.mean.is_some_and(|mean| value > mean);
        self.mix(value, if rises { 2 } else { 8 });
    }

    fn mix(&mut self, value: Duration, parts: u32) {
        self.last = value;
        self.mean = Some(self.mean.map_or(value, |mean| (mean * (parts - 1) + value) / parts));
    }

    /// Returns the mean, or the last value if that is smaller: an improvement counts at once.
    fn recent(self) -> Duration {
        self.mean.map_or(Duration::ZERO, |mean| mean.min(self.last))
    }
}
