//! Measures how fast a backend is on this machine now. Checks wait until leases expire or are
//! renewed, and with a ttl that is too short for either they prove nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use distlock_api::LockKey;
use futures_util::future::try_join_all;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep_until, timeout};

use crate::failure::{Failure, FailureKind, Verdict};
use crate::fixture::Fixture;
use crate::leases::{LONG, renewed};

/// How many times the slowest operation a ttl is at least.
const ROOM: u32 = 8;
/// How many times the profile's ttl the ttl of a check is at most.
const MOST: u32 = 6;
/// How many clients are measured at once, and how often each acquires and releases a lock.
const CLIENTS: usize = 4;
const ROUNDS: usize = 6;
/// How long the measurement may take.
const LIMIT: Duration = Duration::from_secs(30);

/// How many times the longest pause of this process a ttl is at least.
const PAUSES: u32 = 8;
/// How often pauses are looked for.
const TICK: Duration = Duration::from_millis(10);

/// The longest time for which the tasks of this process did not run, from the first check to the
/// last. On a busy machine no lease is renewed during that time.
#[derive(Debug)]
pub(crate) struct Pauses {
    longest_us: Arc<AtomicU64>,
    task: AbortHandle,
}

impl Pauses {
    /// Starts to measure in a separate task.
    pub(crate) fn measure() -> Self {
        let longest_us = Arc::<AtomicU64>::default();
        let longest = Arc::clone(&longest_us);
        let measuring = async move {
            loop {
                let due = Instant::now() + TICK;
                sleep_until(due).await;
                let late = u64::try_from(due.elapsed().as_micros()).unwrap_or(u64::MAX);
                longest.fetch_max(late, Ordering::Relaxed);
            }
        };
        Self { longest_us, task: tokio::spawn(measuring).abort_handle() }
    }

    pub(crate) fn longest(&self) -> Duration {
        Duration::from_micros(self.longest_us.load(Ordering::Relaxed))
    }
}

impl Drop for Pauses {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// What was measured before the first check of a backend.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    /// The ttl of the profile.
    declared: Duration,
    /// The slowest of all acquisitions and releases.
    slowest: Duration,
}

/// The slowest request of a check that failed because of it. Zero as long as there is none.
#[derive(Debug, Default)]
pub(crate) struct Slower(AtomicU64);

impl Slower {
    pub(crate) fn seen(&self, request: Duration) {
        self.0.fetch_max(u64::try_from(request.as_micros()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    fn get(&self) -> Duration {
        Duration::from_micros(self.0.load(Ordering::Relaxed))
    }
}

impl Pace {
    /// Returns the pace of a backend that is not measured.
    pub(crate) fn unmeasured(declared: Duration) -> Self {
        Self { declared, slowest: Duration::ZERO }
    }

    /// Measures acquisitions and releases. A backend whose operations fail is not slow: its checks
    /// report the errors.
    pub(crate) async fn measure(fixture: &dyn Fixture, declared: Duration) -> Self {
        let unmeasured = Self::unmeasured(declared);
        let Ok(clients) = fixture.clients(CLIENTS).await else { return unmeasured };
        let measured = try_join_all(clients.iter().map(slowest_of));
        let slowest = match timeout(LIMIT, measured).await {
            Ok(Ok(slowest)) => slowest.into_iter().max().unwrap_or_default(),
            Ok(Err(_)) => return unmeasured,
            Err(_) => LIMIT,
        };
        let closing = clients.iter().map(|client| client.close());
        let _ = timeout(LIMIT, futures_util::future::join_all(closing)).await;
        Self { declared, slowest }
    }

    /// Returns the ttl of leases that must expire in a check that begins now, after such a pause.
    pub(crate) fn ttl(self, longest_pause: Duration) -> Duration {
        (self.slowest * ROOM).max(longest_pause * PAUSES).clamp(self.declared, self.declared * MOST)
    }

    /// Returns the pace after such requests.
    pub(crate) fn after(self, slower: &Slower) -> Self {
        Self { slowest: self.slowest.max(slower.get()), ..self }
    }

    /// Returns what to print before the first check, if the backend is slow.
    pub(crate) fn remark(self) -> Option<String> {
        let Self { declared, slowest } = self;
        let ttl = self.ttl(Duration::ZERO);
        (ttl > declared)
            .then(|| format!("an operation takes up to {slowest:.1?}: the ttl is {ttl:.1?} instead of {declared:?}"))
    }

    /// Fails if the backend is too slow for the checks to judge it.
    pub(crate) fn verdict(self) -> Verdict {
        let Self { declared, slowest } = self;
        let (needed, most) = (slowest * ROOM, declared * MOST);
        if needed <= most {
            return Ok(());
        }
        let message = format!(
            "the backend is too slow on this machine: of {CLIENTS} clients that each acquired and released {ROUNDS} locks, \
             one waited {slowest:.1?} for an answer. Checks would need a ttl of {needed:.1?} and use {most:.1?} at \
             most, so some of them may fail only for that. Reduce the load on the machine, or declare a longer \
             `Profile::ttl` than {declared:?}"
        );
        Err(Failure::of(FailureKind::Fixture, message))
    }
}

async fn slowest_of(client: &crate::client::Client) -> distlock_api::Result<Duration> {
    let mut slowest = Duration::ZERO;
    for _ in 0..ROUNDS {
        let key = LockKey::new(format!("pace-{:016x}", fastrand::u64(..)))?;
        let asked = Instant::now();
        let Some(guard) = client.acquire_with(key, renewed(LONG)).await?.held() else { continue };
        slowest = slowest.max(asked.elapsed());
        let asked = Instant::now();
        guard.release().await?;
        slowest = slowest.max(asked.elapsed());
    }
    Ok(slowest)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn the_ttl_follows_the_slowest_operation_up_to_a_limit() {
        let ttl = |slowest: u32, pause: u32| Pace { declared: 1000 * MS, slowest: slowest * MS }.ttl(pause * MS);
        let ttls =
            [(0, 0), (125, 62), (250, 100), (0, 200), (750, 0), (10_000, 0), (0, 10_000)].map(|(s, p)| ttl(s, p));
        assert_eq!(ttls, [1000, 1000, 2000, 1600, 6000, 6000, 6000].map(|ms| ms * MS));
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_pause_is_seen() {
        let pauses = Pauses::measure();
        tokio::task::yield_now().await;
        std::thread::sleep(3 * TICK);
        while pauses.longest() < TICK {
            sleep_until(Instant::now() + TICK).await;
        }
    }

    #[test]
    fn what_is_too_slow_is_told_so() {
        let pace = |slowest: u32| Pace { declared: 1000 * MS, slowest: slowest * MS };
        assert!(pace(750).verdict().is_ok() && pace(125).remark().is_none() && pace(126).remark().is_some());
        let failure = pace(760).verdict().unwrap_err();
        assert!(!failure.kind().is_judgement() && failure.message().contains("too slow on this machine"), "{failure}");
    }
}
