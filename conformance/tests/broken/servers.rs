//! Stores of a server that fails at times, with the mistakes that authors make then.

use std::collections::HashSet;
use std::fmt;
use std::future::Future;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use distlock_api::{
    AcquisitionId, ErrorKind, FencingToken, LockAdmin, LockError, LockInfo, LockKey, Phase, ReleaseOutcome, Result,
    async_trait,
};
use distlock_conformance::{Arena, Client, DisturbedStore, Fault, Fixture, FixtureError, Hook, Profile, Slowness};
use distlock_engine::LeaseStore;
use distlock_engine::store::{
    Attempt, BatchRenewStore, BatchStore, Claim, EventStore, EventStream, QueueStore, Release, Renewal, RenewalSubject,
    Reply, Standing, StoreCapabilities, StoreExtras, Watch,
};
use distlock_memory::MemoryStore;
use futures_util::StreamExt;
use futures_util::future::join_all;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

use crate::promised;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Server {
    /// Nothing is broken.
    Sound,
    /// Nothing is broken; a client opens connections slowly, and one that was cut is noticed by the
    /// next request, whose outcome is then unknown.
    Slow,
    /// A request waits for its answer without a limit.
    WaitsForEver,
    /// A request waits for its answer with a timeout of the author, not the caller's.
    HasItsOwnTimeout,
    /// An unanswered request is reported as not carried out.
    ReportsNothingHappened,
    /// An unanswered request is reported as a permanent error.
    ReportsPermanent,
    /// A release returns `Released` before the server has answered.
    ReleasesWithoutAnswer,
    /// All requests go through one line.
    OneLine,
    /// A request is judged by the time of its arrival.
    OldClock,
    /// A grant reports its whole ttl, but the lease began when the request arrived.
    GrantsByTheOldClock,
    /// A connection that was cut is never opened again.
    NeverReconnects,
    /// A withdrawal ends what it finds, and an earlier attempt may still arrive.
    WithdrawsTooEarly,
    /// A key is found free before the wait for its record, and taken after it.
    SelectsBeforeTheWait,
    /// An attempt is carried out even if it arrives after later requests of its claim.
    TakesLateAttempts,
    /// A stream that was cut stays open and silent.
    SilentStream,
    /// A crash forgets the leases.
    ForgetsLeases,
    /// A crash forgets the remembered releases.
    ForgetsReleases,
    /// After a crash the tokens restart.
    TokensRestart,
    /// The expiry is counted by a clock that restarts with the server.
    ClockRestarts,
    /// An attempt reads the key in one request, and takes it in another.
    TakesInTwoRequests,
    /// A release compares the holder in one request, and frees the key in another.
    ReleasesInTwoRequests,
    /// The clock is read in one request, and a renewal judged by it in another.
    ClockIsARequest,
    /// A batch of renewals waits for all of its records.
    RenewalsWaitForEachOther,
    /// A batch of attempts waits for all of its records.
    AttemptsWaitForEachOther,
}

/// A server, simulated in this process.
struct Sim {
    broken: Server,
    state: watch::Sender<State>,
    memory: MemoryStore,
    ended: Mutex<HashSet<AcquisitionId>>,
}

#[derive(Clone, Default)]
struct State {
    down: bool,
    stalled: bool,
    late: bool,
    lags: bool,
    blocked: Option<LockKey>,
    /// How often connections were cut.
    cuts: u32,
    /// How often it crashed.
    crashes: u32,
}

/// The timeout of [`Server::HasItsOwnTimeout`]: longer than the bound of the check by more than a
/// busy machine pauses.
const OWN_TIMEOUT: Duration = Duration::from_secs(20);
/// How long a request or an answer is in transit.
const TRANSIT: Duration = Duration::from_millis(2);
/// The delay of each request over a slow network.
const LAG: Duration = Duration::from_millis(100);
/// The delay of late requests.
const LATE: Duration = Duration::from_secs(2);
const AN_HOUR: Duration = Duration::from_secs(3600);

impl Sim {
    fn new(broken: Server) -> Arc<Self> {
        Arc::new(Self { broken, state: watch::Sender::default(), memory: MemoryStore::new(), ended: Mutex::default() })
    }

    fn has_crashed(&self) -> bool {
        self.state.borrow().crashes > 0
    }

    /// Returns whether the claim holds the key.
    fn holds(&self, claim: &Claim) -> bool {
        self.memory.peek(claim.key()).is_some_and(|info| info.id.as_ref() == Some(claim.id()))
    }

    async fn until_served(&self, key: &LockKey) {
        let one_line = self.broken == Server::OneLine;
        let waits =
            |state: &State| state.stalled || state.blocked.as_ref().is_some_and(|blocked| one_line || blocked == key);
        self.state.subscribe().wait_for(|state| !waits(state)).await.expect("the server lives");
    }

    fn change(&self, hook: Hook, key: &LockKey, begins: bool) {
        self.state.send_modify(|state| match hook {
            Hook::Stall => state.stalled = begins,
            Hook::Delay => state.late = begins,
            Hook::Lag => state.lags = begins,
            Hook::Block => state.blocked = begins.then(|| key.clone()),
            _ => {
                state.down = begins;
                state.cuts += u32::from(begins);
                state.crashes += u32::from(begins && hook == Hook::Restart);
            }
        });
        if begins && hook == Hook::Restart && self.broken == Server::ForgetsLeases {
            self.memory.force_release(key);
        }
    }
}

/// One client's connection, and how many cuts it has noticed.
#[derive(Clone)]
struct Connection(Arc<Sim>, Arc<AtomicU32>);

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Connection")
    }
}

impl Connection {
    /// Sends a request, which the server carries out whether or not its client waits.
    async fn send<T: Send + 'static>(
        &self,
        key: &LockKey,
        bound: Duration,
        carry_out: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        let mut state = self.0.state.subscribe();
        let State { down, cuts, late, lags, .. } = state.borrow().clone();
        sleep(if lags { LAG } else { TRANSIT }).await;
        if down || (cuts > 0 && self.0.broken == Server::NeverReconnects) {
            return Err(LockError::new(ErrorKind::Unavailable, "connection refused"));
        }
        let (sim, key) = (Arc::clone(&self.0), key.clone());
        let answer = tokio::spawn(async move {
            if late {
                sleep(LATE).await;
            }
            sim.until_served(&key).await;
            let answer = carry_out.await;
            sleep(TRANSIT).await;
            answer
        });
        let bound = match self.0.broken {
            Server::WaitsForEver => AN_HOUR,
            Server::HasItsOwnTimeout => OWN_TIMEOUT,
            _ => bound,
        };
        let was_cut = self.1.swap(cuts, Ordering::SeqCst) != cuts;
        if was_cut && self.0.broken == Server::Slow {
            return Err(LockError::new(ErrorKind::Unavailable, "connection reset").outcome_unknown());
        }
        let lost = LockError::timeout(Phase::Request, "no answer");
        let lost = match self.0.broken {
            Server::ReportsNothingHappened => lost,
            Server::ReportsPermanent => LockError::new(ErrorKind::Other, "no answer"),
            _ => lost.outcome_unknown(),
        };
        tokio::select! {
            answer = answer => answer.expect("no panic"),
            _ = state.wait_for(|state| state.cuts != cuts) => Err(lost),
            () = sleep(bound) => Err(lost),
        }
    }
}

#[async_trait]
impl LeaseStore for Connection {
    fn capabilities(&self) -> StoreCapabilities {
        self.0.memory.capabilities()
    }

    fn name(&self) -> &str {
        "sim"
    }

    async fn try_acquire(&self, attempt: &Attempt) -> Result<Reply> {
        let (sim, sent, attempt) = (Arc::clone(&self.0), Instant::now(), attempt.clone());
        let (key, bound) = (attempt.claim.key().clone(), attempt.timeout);
        if sim.broken == Server::TakesInTwoRequests {
            let read = Arc::clone(&sim);
            let of = key.clone();
            let is_free = self.send(&key, bound, async move { Ok(read.memory.peek(&of).is_none()) }).await?;
            let take = async move {
                // As a write without a condition.
                if is_free && !sim.holds(&attempt.claim) {
                    sim.memory.force_release(attempt.claim.key());
                }
                sim.memory.try_acquire(&attempt).await
            };
            return self.send(&key, bound, take).await;
        }
        let was_free = sim.memory.peek(&key).is_none();
        let carry_out = async move {
            let (mut attempt, shortened) = (attempt, shortened_by(&sim, sent));
            let requested = attempt.ttl;
            attempt.ttl = attempt.ttl.saturating_sub(shortened);
            let has_ended = sim.ended.lock().unwrap().contains(attempt.claim.id());
            if has_ended && sim.broken != Server::TakesLateAttempts {
                return Err(LockError::new(ErrorKind::Unavailable, "a later request of the claim was answered"));
            }
            if was_free && sim.broken == Server::SelectsBeforeTheWait {
                sim.memory.force_release(attempt.claim.key());
            }
            let reply = sim.memory.try_acquire(&attempt).await?;
            Ok(match (sim.broken, reply) {
                (Server::GrantsByTheOldClock, Reply::Granted(mut grant)) => {
                    grant.remaining = requested;
                    Reply::Granted(grant)
                }
                (Server::TokensRestart, Reply::Granted(mut grant)) if sim.has_crashed() => {
                    grant.token = FencingToken::new(1);
                    Reply::Granted(grant)
                }
                (Server::ClockRestarts, Reply::Busy(busy)) if sim.has_crashed() => {
                    let left = busy.holder_remaining.unwrap_or_default();
                    Reply::Busy(busy.with_holder_remaining(left + AN_HOUR))
                }
                (_, reply) => reply,
            })
        };
        self.send(&key, bound, carry_out).await
    }

    async fn renew(&self, renewal: &Renewal) -> Result<Standing> {
        let (sim, renewal) = (Arc::clone(&self.0), renewal.clone());
        let (key, bound) = (renewal.claim.key().clone(), renewal.timeout);
        let mut held = sim.holds(&renewal.claim);
        if sim.broken == Server::ClockIsARequest {
            let (read, claim) = (Arc::clone(&sim), renewal.claim.clone());
            held = self.send(&key, bound, async move { Ok(read.holds(&claim)) }).await?;
        }
        let carry_out = async move {
            if let (Server::ClockIsARequest, RenewalSubject::Lease { ttl, .. }) = (sim.broken, renewal.subject) {
                let is_revived = held && sim.memory.peek(renewal.claim.key()).is_none();
                if is_revived {
                    sim.memory.try_acquire(&Attempt::new(renewal.claim.clone(), ttl)).await?;
                    return Ok(Standing::Held { remaining: ttl });
                }
            }
            match (sim.memory.renew(&renewal).await?, &renewal.subject) {
                (Standing::Gone(_), RenewalSubject::Lease { ttl, .. }) if held && sim.broken == Server::OldClock => {
                    Ok(Standing::Held { remaining: *ttl })
                }
                (standing, _) => Ok(standing),
            }
        };
        self.send(&key, bound, carry_out).await
    }

    async fn release(&self, release: &Release) -> Result<ReleaseOutcome> {
        let (sim, release, claim) = (Arc::clone(&self.0), release.clone(), release.claim.clone());
        let (key, bound) = (claim.key().clone(), release.timeout);
        let carry_out = async move {
            let held = sim.holds(&release.claim);
            sim.ended.lock().unwrap().insert(release.claim.id().clone());
            let outcome = sim.memory.release(&release).await?;
            let forgotten = !held && sim.has_crashed() && sim.broken == Server::ForgetsReleases;
            Ok(if forgotten { ReleaseOutcome::AlreadyLost } else { outcome })
        };
        if self.0.broken == Server::ReleasesInTwoRequests {
            let sim = Arc::clone(&self.0);
            let is_held = self.send(&key, bound, async move { Ok(sim.holds(&claim)) }).await?;
            let (sim, of) = (Arc::clone(&self.0), key.clone());
            if is_held {
                self.send(&key, bound, async move { Ok(sim.memory.force_release(&of)) }).await?;
                return Ok(ReleaseOutcome::Released);
            }
            return self.send(&key, bound, carry_out).await;
        }
        if self.0.broken == Server::ReleasesWithoutAnswer {
            let this = self.clone();
            tokio::spawn(async move { this.send(&key, bound, carry_out).await.is_ok() });
            return Ok(ReleaseOutcome::Released);
        }
        self.send(&key, bound, carry_out).await
    }

    async fn withdraw(&self, claim: &Claim, bound: Duration) -> Result<()> {
        let release = Release::new(claim.clone()).with_timeout(bound);
        if self.0.broken == Server::WithdrawsTooEarly {
            // It waits for no record.
            return self.0.memory.release(&release).await.map(drop);
        }
        self.release(&release).await.map(drop)
    }

    fn extras(&self) -> StoreExtras<'_> {
        let mut extras = self.0.memory.extras();
        // A slow one would answer a batch when the time of a blocked request has ended.
        let has_batches = self.0.broken != Server::Slow;
        extras.remote = None;
        extras.batch_renew = has_batches.then_some(self as &dyn BatchRenewStore);
        extras.batch = has_batches.then_some(self as &dyn BatchStore);
        extras.admin = Some(self);
        extras.queue = Some(self);
        extras.events = Some(self);
        extras
    }
}

impl Connection {
    /// Waits for the records of a batch, as a transaction that locks all of them. Returns the error
    /// of all its requests if that takes longer than `bound`.
    async fn locked<'a>(&self, keys: impl Iterator<Item = &'a LockKey> + Send, bound: Duration) -> Result<()> {
        let keys: Vec<LockKey> = keys.cloned().collect();
        let waiting = async {
            for key in &keys {
                self.0.until_served(key).await;
            }
        };
        timeout(bound, waiting).await.map_err(|_| LockError::timeout(Phase::Request, "no answer").outcome_unknown())
    }
}

/// Returns the same error for each request of a batch.
fn all_failed<T>(requests: usize, error: &LockError) -> Vec<Result<T>> {
    (0..requests).map(|_| Err(error.clone())).collect()
}

#[async_trait]
impl BatchRenewStore for Connection {
    async fn renew_many(&self, renewals: &[Renewal]) -> Vec<Result<Standing>> {
        let bound = renewals.iter().map(|renewal| renewal.timeout).min().unwrap_or_default();
        if self.0.broken == Server::RenewalsWaitForEachOther
            && let Err(error) = self.locked(renewals.iter().map(|renewal| renewal.claim.key()), bound).await
        {
            return all_failed(renewals.len(), &error);
        }
        join_all(renewals.iter().map(|renewal| self.renew(renewal))).await
    }
}

#[async_trait]
impl BatchStore for Connection {
    fn acquire_batch(&self) -> NonZeroUsize {
        NonZeroUsize::new(16).expect("not zero")
    }

    async fn try_acquire_many(&self, attempts: &[Attempt]) -> Vec<Result<Reply>> {
        let bound = attempts.iter().map(|attempt| attempt.timeout).min().unwrap_or_default();
        if self.0.broken == Server::AttemptsWaitForEachOther
            && let Err(error) = self.locked(attempts.iter().map(|attempt| attempt.claim.key()), bound).await
        {
            return all_failed(attempts.len(), &error);
        }
        join_all(attempts.iter().map(|attempt| self.try_acquire(attempt))).await
    }

    async fn release_many(&self, releases: &[Release]) -> Vec<Result<ReleaseOutcome>> {
        join_all(releases.iter().map(|release| self.release(release))).await
    }

    async fn withdraw_many(&self, claims: &[Claim], bound: Duration) -> Vec<Result<()>> {
        join_all(claims.iter().map(|claim| self.withdraw(claim, bound))).await
    }
}

#[async_trait]
impl QueueStore for Connection {
    async fn waiters(&self, claim: &Claim, bound: Duration) -> Result<u32> {
        let (sim, claim) = (Arc::clone(&self.0), claim.clone());
        let key = claim.key().clone();
        self.send(&key, bound, async move { sim.memory.waiters(&claim, bound).await }).await
    }
}

#[async_trait]
impl EventStore for Connection {
    async fn subscribe(&self, watch: &Watch) -> Result<EventStream> {
        let mut state = self.0.state.subscribe();
        let cuts = state.borrow().cuts;
        let events = self.0.memory.subscribe(watch).await?;
        let cut = async move {
            let _ = state.wait_for(|state| state.cuts != cuts).await;
        };
        let received = events.take_until(cut);
        Ok(match self.0.broken {
            Server::SilentStream => received.chain(futures_util::stream::pending()).boxed(),
            _ => received.boxed(),
        })
    }
}

#[async_trait]
impl LockAdmin for Connection {
    async fn inspect(&self, key: &LockKey) -> Result<Option<LockInfo>> {
        let (sim, of) = (Arc::clone(&self.0), key.clone());
        self.send(key, AN_HOUR, async move { Ok(sim.memory.peek(&of)) }).await
    }

    async fn force_release(&self, key: &LockKey, _: &str) -> Result<Option<LockInfo>> {
        let (sim, of) = (Arc::clone(&self.0), key.clone());
        self.send(key, AN_HOUR, async move { Ok(sim.memory.force_release(&of)) }).await
    }
}

/// The time by which [`Server::GrantsByTheOldClock`] shortens a lease.
fn shortened_by(sim: &Sim, sent: Instant) -> Duration {
    if sim.broken == Server::GrantsByTheOldClock { sent.elapsed() } else { Duration::ZERO }
}

struct SimFault {
    sim: Arc<Sim>,
    hook: Hook,
    key: LockKey,
}

#[async_trait]
impl Fault for SimFault {
    fn kind(&self) -> &'static str {
        "sim"
    }

    async fn begin(&self) -> Result<(), FixtureError> {
        self.sim.change(self.hook, &self.key, true);
        Ok(())
    }

    async fn end(&self) -> Result<String, FixtureError> {
        self.sim.change(self.hook, &self.key, false);
        Ok("it is as it was".to_owned())
    }
}

struct SimArena(Arc<Sim>);

#[async_trait]
impl Arena for SimArena {
    fn address(&self) -> String {
        "sim".to_owned()
    }

    fn faults(&self) -> Vec<Arc<dyn Fault>> {
        Vec::new()
    }

    fn hook(&self, hook: Hook, key: &LockKey) -> Option<Arc<dyn Fault>> {
        Some(Arc::new(SimFault { sim: Arc::clone(&self.0), hook, key: key.clone() }))
    }

    async fn healthy(&self) -> Result<(), FixtureError> {
        Ok(())
    }

    async fn stop(&self) {}
}

/// One server, which the checks damage in turn.
pub(crate) struct Servers(Arc<Sim>);

impl Server {
    pub(crate) fn fixture(self) -> Servers {
        Servers(Sim::new(self))
    }
}

#[async_trait]
impl Fixture for Servers {
    fn name(&self) -> &str {
        "server"
    }

    fn profile(&self) -> Profile {
        Profile::new(promised::exclusive()).admin().store().arena().hooks([
            Hook::Cut,
            Hook::Stall,
            Hook::Delay,
            Hook::Lag,
            Hook::Restart,
            Hook::Block,
        ])
    }

    async fn clients(&self, _: usize) -> Result<Vec<Client>, FixtureError> {
        Err("this fixture is examined only below the engine".into())
    }

    async fn store_at(&self, _: &str) -> Result<Arc<dyn LeaseStore>, FixtureError> {
        let noticed = AtomicU32::new(self.0.state.borrow().cuts);
        let connection = Arc::new(Connection(Arc::clone(&self.0), Arc::new(noticed)));
        match self.0.broken {
            Server::Slow => Ok(Arc::new(DisturbedStore::new(connection).slowed(Slowness::Pool))),
            _ => Ok(connection),
        }
    }

    async fn arena(&self) -> Result<Box<dyn Arena>, FixtureError> {
        Ok(Box::new(SimArena(Arc::clone(&self.0))))
    }
}
