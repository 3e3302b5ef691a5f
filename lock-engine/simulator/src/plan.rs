//! The parameters that a seed decides before the run: the processes, the store, and how often the
//! network fails.

use std::num::NonZeroUsize;
use std::time::Duration;

use distlock_engine::store::StoreCapabilities;
use fastrand::Rng;

/// The parameters of one run.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) processes: usize,
    /// The callers of each process.
    pub(crate) callers: usize,
    pub(crate) keys: usize,
    pub(crate) ttl: Duration,
    pub(crate) margin: Duration,
    pub(crate) request_timeout: Duration,
    pub(crate) capabilities: StoreCapabilities,
    /// Whether the store keeps tickets.
    pub(crate) queue: bool,
    /// Whether the store pushes events.
    pub(crate) events: bool,
    /// How many attempts, releases or withdrawals go together, if any do.
    pub(crate) batch: Option<NonZeroUsize>,
    /// How many calls the store takes at once, if it declares that.
    pub(crate) at_once: Option<usize>,
    /// How long faults last.
    pub(crate) faults: Duration,
    pub(crate) rates: Rates,
    /// When each process is killed, or closed.
    pub(crate) ends: Vec<Option<(Duration, Ending)>>,
    /// When the store's clock steps, and by how much: less than the margin in all.
    pub(crate) clock_steps: Vec<(Duration, Duration)>,
    /// When requests and replies are slow, and how slow they are.
    pub(crate) slow: Option<(Duration, Duration, Duration)>,
    /// When the callers of each process stand still, as if the process were suspended.
    pub(crate) stalls: Vec<Vec<(Duration, Duration)>>,
    /// How long released leases linger.
    pub(crate) linger: Duration,
    /// Whether callers acquire in several modes.
    pub(crate) modes: bool,
}

/// How a process ends before the run does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// As by `SIGKILL`.
    Killed,
    /// By `close`.
    Closed,
}

/// How often faults happen, as probabilities per request or event.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rates {
    pub(crate) request_lost: f64,
    pub(crate) reply_lost: f64,
    /// The request arrives after its caller has given up.
    pub(crate) late: f64,
    pub(crate) repeated: f64,
    pub(crate) refused: f64,
    pub(crate) event_lost: f64,
    pub(crate) event_repeated: f64,
    pub(crate) event_late: f64,
    pub(crate) stream_broken: f64,
    /// Per pause of the operator.
    pub(crate) forced: f64,
}

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

impl Plan {
    pub(crate) fn new(rng: &mut Rng) -> Self {
        let ttl = ms(rng.u64(600..3000));
        let margin = ttl / 10;
        let request_timeout = ms(rng.u64(200..1500));
        let faults = ms(rng.u64(5_000..15_000));
        let processes = rng.usize(2..5);
        let mut capabilities = StoreCapabilities::default();
        let (queue, events) = (rng.f64() < 0.8, rng.f64() < 0.8);
        capabilities.token_blocks = rng.f64() < 0.8;
        capabilities.minimum_hold = true;
        (capabilities.shared, capabilities.permits) = (true, true);
        capabilities.ordered_claims = rng.f64() < 0.6;
        let mut rate = |often: f64, at_most: f64| if rng.f64() < often { rng.f64() * at_most } else { 0.0 };
        let rates = Rates {
            request_lost: rate(0.6, 0.15),
            reply_lost: rate(0.6, 0.15),
            late: rate(0.5, 0.15),
            repeated: rate(0.4, 0.1),
            refused: rate(0.4, 0.15),
            event_lost: rate(0.4, 0.3),
            event_repeated: rate(0.3, 0.2),
            event_late: rate(0.5, 0.5),
            stream_broken: rate(0.3, 0.02),
            forced: rate(0.3, 0.3),
        };
        let ends = (0..processes)
            .map(|process| {
                let may_end = process > 0 && rng.f64() < 0.25;
                let ending = if rng.bool() { Ending::Killed } else { Ending::Closed };
                may_end.then(|| (faults.mul_f64(rng.f64()), ending))
            })
            .collect();
        let mut clock_steps = Vec::new();
        if rng.f64() < 0.8 {
            for step in 1..=2 {
                clock_steps.push((faults * step / 3, margin.mul_f64(0.48 * rng.f64().sqrt())));
            }
        }
        let slow = (rng.f64() < 0.3).then(|| (faults / 4, faults / 2, request_timeout.mul_f64(0.3 + rng.f64())));
        let stalls = (0..processes)
            .map(|_| {
                let count = if rng.f64() < 0.4 { rng.usize(1..4) } else { 0 };
                let mut stall = || {
                    let from = faults.mul_f64(rng.f64());
                    (from, from + ttl.mul_f64(2.0 * rng.f64()))
                };
                (0..count).map(|_| stall()).collect()
            })
            .collect();
        let linger = if rng.f64() < 0.25 { ttl.mul_f64(0.2 * rng.f64()) } else { Duration::ZERO };
        let batch = if rng.f64() < 0.4 { NonZeroUsize::new(rng.usize(2..6)) } else { None };
        Self {
            processes,
            callers: rng.usize(1..5),
            keys: rng.usize(1..4),
            ttl,
            margin,
            request_timeout,
            capabilities,
            queue,
            events,
            batch,
            at_once: (rng.f64() < 0.3).then(|| rng.usize(2..6)),
            faults,
            rates,
            ends,
            clock_steps,
            slow,
            stalls,
            linger,
            modes: false,
        }
    }

    /// Returns when the stall of a process at this moment ends.
    pub(crate) fn stalled_until(&self, process: usize, now: Duration) -> Option<Duration> {
        self.stalls[process]
            .iter()
            .filter(|(from, until)| (*from..*until).contains(&now))
            .map(|(_, until)| *until)
            .max()
    }

    /// Returns the first moment from `from` to `until` at which a process stood still.
    pub(crate) fn first_stall(&self, process: usize, from: Duration, until: Duration) -> Option<Duration> {
        let stalls = self.stalls[process].iter().filter(|(begin, end)| *begin < until && *end > from);
        stalls.map(|(begin, _)| (*begin).max(from)).min()
    }

    /// Returns how late a request may arrive.
    pub(crate) fn latest(&self) -> Duration {
        2 * self.ttl
    }

    /// Returns when the last effect of the faults is over.
    pub(crate) fn quiet(&self) -> Duration {
        self.faults + self.latest() + 2 * self.ttl + 4 * self.request_timeout
    }

    /// Returns when callers stop making calls.
    pub(crate) fn end(&self) -> Duration {
        self.quiet() + 4 * self.ttl
    }
}
