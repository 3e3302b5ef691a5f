//! Decides which requests go to the store next, and which of them together. Pure: the time is an
//! argument.
//!
//! A request stands here once, until a call takes it. The calls of a store are bounded by permits.
//! When one is free, the most urgent lane that may have it gets it: the request with the earliest
//! deadline, and those behind it from the same [`Home`], as many as one call takes.
//!
//! A request that finds a permit goes at once and alone. The exception is one that may go with
//! others while [`APART`] calls of its home are under way. It waits for company, until one of them
//! ends or it is [overdue](Queue::overdue). So batches grow with the load.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use foldhash::fast::FixedState;
use tokio::runtime;
use tokio::time::Instant;

use crate::store::ProviderId;

/// How many calls of one home are under way before its requests wait for company. With four, 16
/// tasks of one process acquired three quarters as often, and sent twice as many commands.
const APART: usize = 2;
/// The shortest and the longest time that a request waits for company, unless calls take seconds.
const COMPANY: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(50));
/// How much longer than usual a call may take to be in time, at most.
const RESERVE: Duration = Duration::from_millis(250);
/// A request with less time left than this goes before those that came earlier. Among the others
/// the first one goes first, so that none is overtaken again and again.
const HURRY: Duration = Duration::from_secs(1);

/// The purpose of a call, the most urgent first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Lane {
    /// Renewals of leases: they may use every permit.
    Renew,
    /// Refreshes of tickets, and queries for waiters, one for each lease that is handed on.
    Refresh,
    /// Releases, withdrawals, and writes under a lease.
    Release,
    /// Acquisitions.
    Acquire,
}

impl Lane {
    pub(crate) const ALL: [Self; 4] = [Self::Renew, Self::Refresh, Self::Release, Self::Acquire];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Renew => "renew",
            Self::Refresh => "refresh",
            Self::Release => "release",
            Self::Acquire => "acquire",
        }
    }
}

/// Where a request comes from. Only requests of one home go together. A request depends on no other
/// runtime, whose threads may do something else, or which may end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Home {
    pub(crate) provider: ProviderId,
    pub(crate) runtime: runtime::Id,
    /// What the requests are that go together; `None` for those that go alone.
    pub(crate) kind: Option<&'static str>,
}

/// How a request enters.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub(crate) lane: Lane,
    pub(crate) home: Home,
    /// How many requests one call takes.
    pub(crate) most: usize,
    /// When the answer is of no more use.
    pub(crate) deadline: Option<Instant>,
    /// Whether it is refused if its turn would come too late.
    pub(crate) is_refusable: bool,
    /// Whether it is one of several of one caller. They start no call before the others have
    /// [arrived](Queue::arrived).
    pub(crate) in_group: bool,
}

/// Why an acquisition was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Overload {
    /// The calls before it.
    pub(crate) in_line: usize,
    pub(crate) at_once: usize,
    /// How long it would have waited, by the line's recent pace.
    pub(crate) wait: Duration,
    /// How long calls take, by those that ended last.
    pub(crate) takes: Duration,
}

/// The order of the requests: the deadline, cut off after [`HURRY`], and a number.
pub(crate) type Rank = (Instant, u64);

/// How a call has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// It was answered after this time.
    After(Duration),
    /// Its caller left after this time. It says only that such calls take longer.
    Unanswered(Duration),
    /// Nothing was sent.
    Unused,
}

/// What becomes of a request that enters.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Enter {
    /// It goes at once and alone. [`Queue::ended`] must be called.
    Start,
    InLine {
        rank: Rank,
        /// When it has waited for long enough for company.
        due: Instant,
    },
    Refused(Overload),
}

/// The requests that have just left the line.
#[derive(Debug)]
pub(crate) struct Batch<J> {
    pub(crate) lane: Lane,
    pub(crate) home: Home,
    /// They go in one call. If there are any, [`Queue::ended`] must be called.
    pub(crate) jobs: Vec<J>,
    /// They are not sent: their answers would come too late.
    pub(crate) late: Vec<J>,
}

/// The permits, and the requests that wait for one. `J` sends a request.
pub(crate) struct Queue<J> {
    at_once: usize,
    /// How many of them are set aside.
    set_aside: usize,
    lanes: [Requests<J>; Lane::ALL.len()],
    last_number: u64,
}

/// The requests of one lane.
struct Requests<J> {
    in_flight: usize,
    homes: HashMap<Home, Line<J>, FixedState>,
    /// How many requests wait.
    waiting: usize,
    /// Since when one of them has waited for a permit. The others wait for company only.
    crowded_since: Option<Instant>,
    /// The duration of a call.
    duration: Average,
    /// The time from one start to the next while requests wait for permits.
    interval: Average,
    last_start: Option<Instant>,
}

/// The requests of one home.
struct Line<J> {
    under_way: usize,
    most: usize,
    waiting: BTreeMap<Rank, Waiting<J>>,
    /// Whether the next call may start when there is room: all of a group have arrived.
    is_ready: bool,
    overdue: BTreeSet<Rank>,
}

struct Waiting<J> {
    deadline: Option<Instant>,
    job: J,
}

impl<J> Default for Requests<J> {
    fn default() -> Self {
        Self {
            in_flight: 0,
            homes: HashMap::default(),
            waiting: 0,
            crowded_since: None,
            duration: Average::default(),
            interval: Average::default(),
            last_start: None,
        }
    }
}

impl<J> Default for Line<J> {
    fn default() -> Self {
        Self { under_way: 0, most: 1, waiting: BTreeMap::new(), is_ready: false, overdue: BTreeSet::new() }
    }
}

impl<J> Queue<J> {
    pub(crate) fn new(at_once: usize) -> Self {
        Self { at_once, set_aside: 0, lanes: Default::default(), last_number: 0 }
    }

    /// Returns the number of permits, never zero: what is set aside does not stop the calls.
    pub(crate) fn at_once(&self) -> usize {
        self.at_once.saturating_sub(self.set_aside).max(1)
    }

    pub(crate) fn set_aside(&mut self) {
        self.set_aside += 1;
    }

    pub(crate) fn return_set_aside(&mut self) {
        self.set_aside -= 1;
    }

    /// Returns how many calls of a lane are in flight, and how many requests wait.
    pub(crate) fn load(&self, lane: Lane) -> (usize, usize) {
        let lane = self.lane(lane);
        (lane.in_flight, lane.waiting)
    }

    /// Returns how many requests of one kind and provider wait.
    pub(crate) fn waiting(&self, lane: Lane, provider: ProviderId, kind: &str) -> usize {
        let of = |home: &Home| home.provider == provider && home.kind == Some(kind);
        self.lane(lane).homes.iter().filter(|(home, _)| of(home)).map(|(_, line)| line.waiting.len()).sum()
    }

    fn lane(&self, lane: Lane) -> &Requests<J> {
        &self.lanes[lane as usize]
    }

    fn lane_mut(&mut self, lane: Lane) -> &mut Requests<J> {
        &mut self.lanes[lane as usize]
    }

    /// Returns how many permits this lane and the less urgent ones may use together.
    fn share(&self, lane: Lane) -> usize {
        let reserved = match lane {
            Lane::Renew => 0,
            Lane::Refresh | Lane::Release => (self.at_once() / 8).max(1),
            Lane::Acquire => (self.at_once() / 4).max(1),
        };
        self.at_once().saturating_sub(reserved).max(1)
    }

    /// Returns the time between two calls of a lane that take turns with its permits.
    fn spread(&self, lane: Lane) -> Duration {
        self.lane(lane).duration.recent() / u32::try_from(self.share(lane)).unwrap_or(u32::MAX)
    }

    /// Returns how many permits releases may use. Waiting acquisitions get a quarter: withdrawals
    /// of those that timed out must not fill a server that has become fast again.
    fn releases_at_once(&self) -> usize {
        let for_acquisitions = if self.lane(Lane::Acquire).is_crowded() { (self.at_once() / 4).max(1) } else { 0 };
        self.share(Lane::Release).saturating_sub(for_acquisitions).max(1)
    }

    /// Returns whether a call of this lane leaves the others their reserved permits.
    fn has_room(&self, lane: Lane) -> bool {
        if lane == Lane::Release && self.lane(lane).in_flight >= self.releases_at_once() {
            return false;
        }
        let in_flight = |from: Lane| self.lanes[from as usize..].iter().map(|lane| lane.in_flight).sum::<usize>();
        let lanes = Lane::ALL.into_iter().take_while(|other| *other <= lane);
        lanes.into_iter().all(|other| in_flight(other) < self.share(other))
    }

    /// A request enters. `job` is called if it waits. A free permit is always used: the answer
    /// shows how fast the store is now.
    pub(crate) fn enter(&mut self, entry: Entry, now: Instant, job: impl FnOnce() -> J) -> Enter {
        let Entry { lane, home, most, deadline, .. } = entry;
        let has_room = self.has_room(lane);
        if has_room && !self.lane(lane).is_crowded() && self.lane(lane).goes_alone(&entry) {
            self.lane_mut(lane).start(home, most, now);
            return Enter::Start;
        }
        let rank = (deadline.map_or(now + HURRY, |deadline| deadline.min(now + HURRY)), self.last_number + 1);
        if !has_room || self.lane(lane).is_crowded() {
            let deadline = deadline.filter(|_| entry.is_refusable);
            let overload = deadline.map(|_| self.overload(lane, home, rank, now));
            if let Some((overload, deadline)) = overload.zip(deadline)
                && now + overload.wait + self.lane(lane).needs() > deadline
            {
                return Enter::Refused(overload);
            }
        }
        self.last_number += 1;
        let due = now + self.lane(lane).company(self.spread(lane), deadline, now);
        let requests = self.lane_mut(lane);
        requests.waiting += 1;
        let line = requests.homes.entry(home).or_default();
        line.most = most;
        line.is_ready |= !entry.in_group;
        line.waiting.insert(rank, Waiting { deadline, job: job() });
        if !has_room && requests.front().is_some() {
            requests.crowded_since.get_or_insert(now);
        }
        Enter::InLine { rank, due }
    }

    /// Returns whether there is a permit for a call that takes no request out of the line, and uses
    /// it. [`ended`](Self::ended) must be called then.
    pub(crate) fn try_start(&mut self, lane: Lane, home: Home, now: Instant) -> bool {
        let free = !self.lane(lane).is_crowded() && self.has_room(lane);
        if free {
            self.lane_mut(lane).start(home, 1, now);
        }
        free
    }

    /// All requests of a caller that makes several have arrived.
    pub(crate) fn arrived(&mut self, lane: Lane, home: Home) {
        if let Some(line) = self.lane_mut(lane).homes.get_mut(&home) {
            line.is_ready = !line.waiting.is_empty();
        }
    }

    /// A request has waited for long enough for company.
    pub(crate) fn overdue(&mut self, lane: Lane, home: Home, rank: Rank) {
        if let Some(line) = self.lane_mut(lane).homes.get_mut(&home)
            && line.waiting.contains_key(&rank)
        {
            line.overdue.insert(rank);
        }
    }

    /// The caller of a request has left. Returns its job, if it still waits.
    pub(crate) fn leave(&mut self, lane: Lane, home: Home, rank: Rank) -> Option<J> {
        let requests = self.lane_mut(lane);
        let line = requests.homes.get_mut(&home)?;
        line.overdue.remove(&rank);
        let left = line.waiting.remove(&rank)?;
        requests.left(home, 1);
        Some(left.job)
    }

    /// A call has ended.
    pub(crate) fn ended(&mut self, lane: Lane, home: Home, call: Ended) {
        let requests = self.lane_mut(lane);
        requests.in_flight -= 1;
        if let Some(line) = requests.homes.get_mut(&home) {
            line.under_way -= 1;
        }
        requests.left(home, 0);
        match call {
            Ended::After(took) => requests.duration.add_warily(took),
            Ended::Unanswered(after) if requests.duration.mean.is_none_or(|mean| after > mean) => {
                requests.duration.add_warily(after);
            }
            Ended::Unanswered(_) | Ended::Unused => {}
        }
    }

    /// Takes the next requests out of line, if there is a permit for them.
    pub(crate) fn next(&mut self, now: Instant) -> Option<Batch<J>> {
        let fronts = Lane::ALL.map(|lane| self.lane(lane).front());
        // Before any of them: releases leave room for acquisitions that wait for a permit.
        for (requests, front) in self.lanes.iter_mut().zip(&fronts) {
            requests.crowded_since.take_if(|_| front.is_none());
        }
        for (lane, front) in Lane::ALL.into_iter().zip(fronts) {
            let Some(home) = front else { continue };
            if self.has_room(lane) {
                return Some(self.lane_mut(lane).take(lane, home, now));
            }
            self.lane_mut(lane).crowded_since.get_or_insert(now);
        }
        None
    }

    /// Returns how many calls are before a request of this rank, and how long it then waits by the
    /// recent pace. One call serves as many requests as it takes.
    pub(crate) fn overload(&self, lane: Lane, home: Home, rank: Rank, now: Instant) -> Overload {
        let requests = self.lane(lane);
        let before = |line: &Line<J>| match line.waiting.last_key_value() {
            Some((last, _)) if *last > rank => line.waiting.range(..rank).count(),
            _ => line.waiting.len(),
        };
        let calls = requests.homes.iter().map(|(other, line)| match *other == home {
            // The last of these calls takes the request with it, unless it is full.
            true => before(line) / line.most,
            false => before(line).div_ceil(line.most),
        });
        let in_line = calls.sum();
        // A request that goes with the next call waits for one permit only. How fast the line moved
        // when it was long says little about that.
        let interval = requests.interval.mean.filter(|_| in_line > 0).unwrap_or_else(|| self.spread(lane));
        let ahead = u32::try_from(in_line).unwrap_or(u32::MAX);
        // A line that has not moved for some time adds at least that time.
        let stands = requests.moved().filter(|_| in_line > 0).map_or(Duration::ZERO, |moved| now - moved);
        let wait = interval.saturating_mul(ahead).saturating_add(stands.max(interval));
        Overload { in_line, at_once: self.at_once(), wait, takes: requests.duration.recent() }
    }
}

impl<J> Requests<J> {
    fn is_crowded(&self) -> bool {
        self.crowded_since.is_some()
    }

    /// Returns when the line for permits moved last, or when it began; `None` without one.
    fn moved(&self) -> Option<Instant> {
        self.crowded_since.map(|since| self.last_start.map_or(since, |start| start.max(since)))
    }

    /// Returns whether a request goes at once if there is room.
    fn goes_alone(&self, entry: &Entry) -> bool {
        let line = self.homes.get(&entry.home);
        entry.most == 1
            || (!entry.in_group && line.is_none_or(|line| line.waiting.is_empty() && line.under_way < APART))
    }

    /// Returns the home whose call is the next one.
    fn front(&self) -> Option<Home> {
        let starts = self.homes.iter().filter(|(_, line)| line.starts());
        starts.min_by_key(|(_, line)| line.waiting.first_key_value().map(|(rank, _)| *rank)).map(|(home, _)| *home)
    }

    /// Takes the next requests of a home out of its line. What could not be answered in time is not
    /// sent, if it has waited for a permit.
    fn take(&mut self, lane: Lane, home: Home, now: Instant) -> Batch<J> {
        let needs = if self.is_crowded() { self.needs() } else { Duration::ZERO };
        let (mut jobs, mut late) = (Vec::new(), Vec::new());
        let line = self.homes.entry(home).or_default();
        let most = line.most;
        while jobs.len() < most
            && let Some((rank, Waiting { deadline, job })) = line.waiting.pop_first()
        {
            line.overdue.remove(&rank);
            let in_time = deadline.is_none_or(|deadline| now + needs <= deadline);
            if in_time { jobs.push(job) } else { late.push(job) }
        }
        let taken = jobs.len() + late.len();
        if !jobs.is_empty() {
            // From one start to the next: how long the line had to wait for its first one says
            // nothing about its pace.
            if let Some((_, last)) = self.crowded_since.zip(self.last_start).filter(|(since, last)| last >= since) {
                self.interval.add(now - last);
            }
            self.start(home, most, now);
        }
        self.left(home, taken);
        Batch { lane, home, jobs, late }
    }

    fn start(&mut self, home: Home, most: usize, now: Instant) {
        self.in_flight += 1;
        self.last_start = Some(now);
        let line = self.homes.entry(home).or_default();
        line.under_way += 1;
        line.most = most;
    }

    /// So many requests have left the line of a home, or one of its calls has ended.
    fn left(&mut self, home: Home, requests: usize) {
        self.waiting -= requests;
        let is_empty = self.waiting == 0;
        self.crowded_since.take_if(|_| is_empty);
        let Some(line) = self.homes.get_mut(&home) else { return };
        if line.waiting.is_empty() {
            line.is_ready = false;
            if line.under_way == 0 {
                self.homes.remove(&home);
            }
        }
    }

    /// Returns how long before its deadline a request must be sent: a quarter more than calls take,
    /// but not much more. A call that just fails to be answered in time is wasted.
    fn needs(&self) -> Duration {
        let duration = self.duration.recent();
        duration + (duration / 4).min(RESERVE)
    }

    /// Returns how long a request waits for company: as long as a call usually takes, and at most
    /// half of the time that it has beside one call. Calls that take seconds start at intervals, so
    /// that their permits are not all taken at one moment and missing until they end.
    fn company(&self, spread: Duration, deadline: Option<Instant>, now: Instant) -> Duration {
        let company = self.duration.recent().clamp(COMPANY.0, COMPANY.1.max(spread));
        let spare = deadline.map(|deadline| deadline.saturating_duration_since(now + self.needs()));
        spare.map_or(company, |spare| company.min(spare / 2))
    }
}

impl<J> Line<J> {
    /// Returns whether a call may start if there is room.
    fn starts(&self) -> bool {
        !self.overdue.is_empty() || (self.is_ready && (self.most == 1 || self.under_way < APART))
    }
}

/// A moving average, and the last two values.
#[derive(Clone, Copy, Default)]
struct Average {
    mean: Option<Duration>,
    last: [Duration; 2],
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
        self.last = [self.mean.map_or(value, |_| self.last[1]), value];
        self.mean = Some(self.mean.map_or(value, |mean| (mean * (parts - 1) + value) / parts));
    }

    /// Returns the mean, or one of the last two values if that is smaller. An improvement counts at
    /// once, and a single slow call not at all: it would make all that wait late.
    fn recent(self) -> Duration {
        let [before, last] = self.last;
        self.mean.map_or(Duration::ZERO, |mean| mean.min(before).min(last))
    }
}

#[cfg(test)]
mod tests;
