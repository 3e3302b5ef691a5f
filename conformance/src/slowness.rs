//! How a store that keeps every promise can be slow.

use std::fmt;
use std::future::Future;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use distlock_api::{
    AcquisitionId, ErrorKind, ForcedRelease, LockAdmin, LockError, LockEvents, LockFilter, LockInfo, LockKey, Phase,
    Result,
};
use distlock_engine::LeaseStore;
use distlock_engine::store::Connecting;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

/// A way in which a store is slow although it keeps every promise, for
/// [`DisturbedStore::slowed`](crate::DisturbedStore::slowed).
///
/// A slow request spends a random part of its delay on the way to the store, and the rest on the
/// way back. One that takes longer than its timeout ends with an unknown outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Slowness {
    /// A client takes 200 to 400 ms to connect, before its first request.
    Connect,
    /// A client has a pool of six connections. A request for which none is idle opens one, which
    /// takes 200 to 1,300 ms, or waits if there are six. Then it takes up to 150 ms itself.
    Pool,
    /// One request in fifty takes half a second to a second.
    OneInFifty,
    /// Each client is slow in its own way: its requests take 20 to 120 ms.
    PerClient,
    /// Once in twelve seconds the store answers no request for two seconds.
    Stalls,
}

const CONNECTING: Range<u64> = 200..400;
const OPENING: Range<u64> = 200..1300;
const CONNECTIONS: usize = 6;
const POOLED: Range<u64> = 0..150;
const RARE: u32 = 50;
const RARELY: Range<u64> = 500..1000;
const PER_CLIENT: Range<u64> = 20..120;
/// The stalls of all stores of a process come at the same time. Each is in a period of its own.
const PERIOD: Duration = Duration::from_secs(12);
const STALL: Duration = Duration::from_secs(2);

impl Slowness {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Connect, Self::Pool, Self::OneInFifty, Self::PerClient, Self::Stalls];

    /// Returns the name, such as `one-in-fifty`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::Pool => "pool",
            Self::OneInFifty => "one-in-fifty",
            Self::PerClient => "per-client",
            Self::Stalls => "stalls",
        }
    }
}

impl fmt::Display for Slowness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

fn random(millis: Range<u64>) -> Duration {
    Duration::from_millis(fastrand::u64(millis))
}

/// The client of a store that is slow.
pub(crate) struct SlowClient {
    slowness: Slowness,
    /// When it is connected; set by its first call.
    connected: OnceLock<Instant>,
    connections: Semaphore,
    /// The connections that have been opened, one permit each.
    idle: Semaphore,
    /// The delay of each request.
    own: Duration,
    store: Arc<dyn LeaseStore>,
}

/// The delay of one request, before it reaches the store and after that.
struct Delay {
    before: Duration,
    after: Duration,
}

impl Delay {
    /// Divides a delay at random.
    fn of(delay: Duration) -> Self {
        let before = delay.mul_f64(fastrand::f64());
        Self { before, after: delay - before }
    }
}

impl SlowClient {
    pub(crate) fn new(slowness: Slowness, store: Arc<dyn LeaseStore>) -> Self {
        Self {
            slowness,
            connected: OnceLock::new(),
            connections: Semaphore::new(CONNECTIONS),
            idle: Semaphore::new(0),
            own: random(PER_CLIENT),
            store,
        }
    }

    /// Connects, if the client connects before its first request.
    pub(crate) fn ensure_connected(&self, limit: Duration) -> Option<Connecting<'_>> {
        if self.slowness != Slowness::Connect {
            return None;
        }
        let now = Instant::now();
        let due = *self.connected.get_or_init(|| now + random(CONNECTING));
        (due > now).then(|| {
            Box::pin(async move {
                sleep_until(due.min(now + limit)).await;
                let error = || LockError::new(ErrorKind::Unavailable, "the client is still connecting");
                if due > now + limit { Err(error().with_phase(Phase::Connect)) } else { Ok(()) }
            }) as Connecting<'_>
        })
    }

    /// Makes a request slow. Returns `None` if it has taken longer than its timeout, whether or not
    /// it was carried out.
    pub(crate) async fn request<T>(&self, timeout: Duration, request: impl Future<Output = T>) -> Option<T> {
        let slow = async {
            let _connection = self.connection().await;
            let Delay { before, after } = self.delay();
            self.until_served(before).await;
            let answer = request.await;
            self.until_served(after).await;
            answer
        };
        match Instant::now().checked_add(timeout) {
            Some(limit) => timeout_at(limit, slow).await.ok(),
            None => Some(slow.await),
        }
    }

    /// Waits for a connection of the pool, or opens one.
    async fn connection(&self) -> Option<Connection<'_>> {
        if self.slowness != Slowness::Pool {
            return None;
        }
        let permit = self.connections.acquire().await.expect("never closed");
        match self.idle.try_acquire() {
            Ok(idle) => idle.forget(),
            Err(_) => sleep(random(OPENING)).await,
        }
        Some(Connection { idle: &self.idle, _permit: permit })
    }

    fn delay(&self) -> Delay {
        Delay::of(match self.slowness {
            Slowness::OneInFifty if fastrand::u32(..RARE) == 0 => random(RARELY),
            Slowness::PerClient => self.own,
            Slowness::Pool => random(POOLED),
            _ => Duration::ZERO,
        })
    }

    /// Waits on the way, and until the store does not stall.
    async fn until_served(&self, delay: Duration) {
        if !delay.is_zero() {
            sleep(delay).await;
        }
        if self.slowness == Slowness::Stalls
            && let Some(end) = end_of_stall(Instant::now())
        {
            sleep_until(end).await;
        }
    }
}

/// A connection of the pool. A request that is dropped leaves its connection usable.
struct Connection<'a> {
    idle: &'a Semaphore,
    _permit: SemaphorePermit<'a>,
}

impl Drop for Connection<'_> {
    fn drop(&mut self) {
        self.idle.add_permits(1);
    }
}

/// Returns when the present stall ends, if there is one.
fn end_of_stall(now: Instant) -> Option<Instant> {
    static FIRST: OnceLock<(Instant, u64)> = OnceLock::new();
    let (first, seed) = *FIRST.get_or_init(|| (now, fastrand::u64(..)));
    let passed = now.saturating_duration_since(first);
    let period = u32::try_from(passed.as_secs() / PERIOD.as_secs()).unwrap_or(u32::MAX);
    let room = u64::try_from((PERIOD - STALL).as_millis()).unwrap_or(u64::MAX);
    let begins = Duration::from_millis(fastrand::Rng::with_seed(seed ^ u64::from(period)).u64(..room));
    let stall = first + PERIOD * period + begins;
    (stall..stall + STALL).contains(&now).then_some(stall + STALL)
}

/// The administration of a slow store.
#[async_trait]
impl LockAdmin for SlowClient {
    async fn inspect(&self, key: &LockKey) -> Result<Option<LockInfo>> {
        self.administer(self.admin().inspect(key)).await
    }

    async fn force_release(&self, key: &LockKey, reason: &str) -> Result<Option<LockInfo>> {
        self.administer(self.admin().force_release(key, reason)).await
    }

    async fn force_release_holder(&self, key: &LockKey, id: &AcquisitionId, reason: &str) -> Result<Option<LockInfo>> {
        self.administer(self.admin().force_release_holder(key, id, reason)).await
    }

    async fn page(&self, filter: &LockFilter, after: Option<&LockKey>, limit: NonZeroUsize) -> Result<Vec<LockInfo>> {
        self.administer(self.admin().page(filter, after, limit)).await
    }

    async fn watch(&self) -> Result<LockEvents> {
        self.administer(self.admin().watch()).await
    }

    async fn release_owner(&self, owner: &str, reason: &str) -> Result<u64> {
        self.administer(self.admin().release_owner(owner, reason)).await
    }

    async fn release_matching(&self, filter: &LockFilter, reason: &str) -> Result<u64> {
        self.administer(self.admin().release_matching(filter, reason)).await
    }

    async fn history(&self, key: &LockKey) -> Result<Vec<ForcedRelease>> {
        self.administer(self.admin().history(key)).await
    }
}

impl SlowClient {
    fn admin(&self) -> &dyn LockAdmin {
        self.store.extras().admin.expect("looked at before")
    }

    /// An operator waits for the answer, however long it takes.
    async fn administer<T>(&self, request: impl Future<Output = T>) -> T {
        self.request(Duration::MAX, request).await.expect("no timeout")
    }
}
