//! The callers of a process: they acquire, hold, release, drop and leave, and record what they
//! observe.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use distlock_api::{
    AcquireOptions, ErrorKind, FencingToken, LeaseOptions, LockError, LockGuard, LockKey, LockProviderExt, Loss,
    LostSignal, Mode, ReleaseOutcome, Wait,
};
use distlock_conformance::history::{Call, CallKind, End};
use distlock_engine::{AcquiredLease, LeaseGuard, LeaseProvider, NotCommitted};
use fastrand::Rng;
use futures_util::future::join_all;
use tokio::time::{Sleep, sleep, sleep_until, timeout};

use crate::commit::{Commit, ForCommit};
use crate::network::{Link, Network};

/// What all callers have observed.
#[derive(Default)]
pub(crate) struct Records {
    pub(crate) calls: Mutex<Vec<Call>>,
    pub(crate) complaints: Mutex<Vec<String>>,
    /// When keys were released by force. Holds at that time prove nothing.
    pub(crate) forced: Mutex<Vec<(String, Duration)>>,
}

impl Records {
    pub(crate) fn complain(&self, what: String) {
        self.complaints.lock().expect("one thread").push(what);
    }

    fn begin(&self, client: usize, key: &str, asked: Duration, mode: Mode) -> usize {
        let mut calls = self.calls.lock().expect("one thread");
        let key = key.to_owned();
        calls.push(Call { client, key, asked, answered: None, queued: None, mode, what: CallKind::NotGranted });
        calls.len() - 1
    }

    fn update(&self, call: usize, change: impl FnOnce(&mut Call)) {
        change(&mut self.calls.lock().expect("one thread")[call]);
    }
}

/// The owner of some acquisitions; the others have their process's.
const ANOTHER: &str = "another";

/// One caller.
pub(crate) struct Caller {
    pub(crate) client: usize,
    pub(crate) process: usize,
    pub(crate) locks: LeaseProvider,
    pub(crate) link: Arc<Link>,
    pub(crate) network: Arc<Network>,
    pub(crate) records: Arc<Records>,
}

impl Caller {
    pub(crate) async fn run(self) {
        while self.network.now() < self.network.plan.end() {
            let pause = Duration::from_micros(self.network.random(|rng| rng.u64(0..100_000)));
            sleep(pause).await;
            if !self.once().await {
                return;
            }
        }
    }

    /// Makes one call. Returns whether the provider is still open.
    async fn once(&self) -> bool {
        let network = &self.network;
        let (which, kind, owner) = network.random(|rng| (rng.usize(..network.plan.keys), rng.f64(), rng.f64() < 0.2));
        if network.plan.keys > 1 && network.random(Rng::f64) < 0.15 {
            return self.several().await;
        }
        if network.of_commit(Rng::f64) < 0.1 {
            return self.commit(&format!("key{which}")).await;
        }
        let key = format!("key{which}");
        let asked = network.now();
        let mode = network.mode();
        let call = self.records.begin(self.process, &key, asked, mode);
        let mut request = self.locks.acquire(&*key).mode(mode);
        if owner {
            // Not handed on to callers with the default owner.
            request = request.owner(ANOTHER);
        }
        let answer = if kind < 0.25 {
            self.locks.try_acquire(&*key).mode(mode).await
        } else if kind < 0.4 {
            let patience = network.plan.ttl.mul_f64(network.random(Rng::f64));
            match timeout(patience, request).await {
                Ok(answer) => answer.map(Some),
                Err(_) => {
                    network.log(|| format!("client {} leaves", self.client));
                    return true;
                }
            }
        } else if kind < 0.7 {
            let limit = network.plan.ttl.mul_f64(2.0 * network.random(Rng::f64));
            match request.timeout(limit).await {
                Err(error) if error.kind() == ErrorKind::Timeout => return self.ended(call, &error),
                answer => answer.map(Some),
            }
        } else {
            request.await.map(Some)
        };
        let answered = network.now();
        match answer {
            Ok(Some(guard)) => {
                self.check_owner(&guard, owner && kind >= 0.25);
                self.hold(call, guard).await;
            }
            Ok(None) => self.records.update(call, |call| (call.answered, call.what) = (Some(answered), CallKind::Busy)),
            Err(error) => return self.ended(call, &error),
        }
        true
    }

    /// Acquires all keys, and holds and releases them together.
    async fn several(&self) -> bool {
        let network = &self.network;
        let keys: Vec<String> = (0..network.plan.keys).map(|key| format!("key{key}")).collect();
        let asked = network.now();
        let mode = network.mode();
        let calls: Vec<usize> = keys.iter().map(|key| self.records.begin(self.process, key, asked, mode)).collect();
        let limit = network.plan.ttl.mul_f64(2.0 * network.random(Rng::f64));
        let guards = match self.locks.acquire_all(&keys).mode(mode).timeout(limit).await {
            Ok(all) => all.into_guards(),
            Err(error) => {
                return calls.into_iter().fold(true, |_, call| self.ended(call, &error));
            }
        };
        join_all(calls.into_iter().zip(guards).map(|(call, guard)| self.hold(call, guard))).await;
        true
    }

    fn ended(&self, call: usize, error: &LockError) -> bool {
        let answered = self.network.now();
        self.network.log(|| format!("client {} gets {error}", self.client));
        self.records.update(call, |call| call.answered = Some(answered));
        error.kind() != ErrorKind::Closed
    }

    /// Checks that the store has the caller as the owner of the key while the guard is valid. A
    /// release by force may not be known to the guard yet, so keys that were released recently are
    /// left out.
    fn check_owner(&self, guard: &LockGuard, another: bool) {
        let network = &self.network;
        let recently = network.now().saturating_sub(network.plan.ttl);
        if guard.loss().is_some() || self.forced(guard.key().as_str(), recently).is_some() {
            return;
        }
        let info = network.store.peek(guard.key());
        let owner = info.as_ref().and_then(|info| info.owner.clone());
        // Of several holders one must be the caller.
        let holders = info.iter().flat_map(|info| &info.holders).map(|holder| holder.owner.as_deref());
        let mut owners = holders.chain([owner.as_deref()]);
        if owners.all(|owner| (owner == Some(ANOTHER)) != another) {
            let token = guard.fencing_token();
            let Self { client, records, .. } = self;
            records.complain(format!("client {client} got token {token}, but the store's owner is {owner:?}"));
        }
    }

    /// Acquires for a commit, holds, and commits.
    async fn commit(&self, key: &str) -> bool {
        let network = &self.network;
        let call = self.records.begin(self.process, key, network.now(), Mode::Exclusive);
        let limit = network.plan.ttl.mul_f64(2.0 * network.of_commit(Rng::f64));
        let options = AcquireOptions::new().with_wait(Wait::UpTo(limit));
        let key = LockKey::new(key).expect("a valid key");
        let guard = match self.locks.acquire_via(key, options, Arc::new(ForCommit(self.link.clone()))).await {
            Ok(AcquiredLease::Held(guard)) => guard,
            Ok(AcquiredLease::Busy(_)) => {
                self.records.update(call, |call| call.answered = Some(network.now()));
                return true;
            }
            Err(error) => return self.ended(call, &error),
        };
        let Ok(held) = self.keep(call, &guard).await else { return true };
        let refused = network.of_commit(Rng::f64) < 0.2;
        let commit = Arc::new(Commit::new(self.link.clone(), held.token, refused));
        network.log(|| format!("client {} commits under token {}", self.client, held.token));
        let committing = guard.release_via(commit.clone());
        let leaves = network.now() < network.plan.faults && network.of_commit(Rng::f64) < 0.1;
        let answer = if leaves {
            let patience = network.plan.request_timeout.mul_f64(network.of_commit(Rng::f64));
            let Ok(answer) = timeout(patience, committing).await else { return true };
            answer
        } else {
            committing.await
        };
        let end = match answer {
            Ok(outcome) => {
                let released = outcome == ReleaseOutcome::Released;
                commit.answered(released);
                let answered = network.now();
                if released { End::Released { asked: held.until, answered } } else { End::Lost }
            }
            // Nothing was written, and nothing will be. The lease is held as before.
            Err(NotCommitted { guard: Some(guard), .. }) => {
                commit.answered(false);
                if guard.loss().is_some() {
                    // It has not been held since some moment during the commit.
                    self.records.update(call, |call| call.what = held.granted(End::Lost));
                    return true;
                }
                if let Ok(held) = self.keep(call, &guard).await {
                    self.release(call, held, guard.into_guard()).await;
                }
                return true;
            }
            Err(NotCommitted { error, .. }) if !error.is_outcome_unknown() => {
                self.records.complain(format!("client {} lost its guard to a known outcome: {error}", self.client));
                End::Unknown
            }
            Err(NotCommitted { error, .. }) => {
                network.log(|| format!("client {} does not know whether it has committed: {error}", self.client));
                End::Unknown
            }
        };
        self.records.update(call, |call| call.what = held.granted(end));
        true
    }

    async fn hold(&self, call: usize, guard: LockGuard) {
        let network = &self.network;
        let way = network.random(Rng::f64);
        let Ok(held) = self.keep(call, &guard).await else { return };
        // The last part of the run leaves nothing behind.
        let gentle = network.now() >= network.plan.faults;
        if way < 0.6 || gentle {
            self.release(call, held, guard).await;
        } else if way < 0.85 {
            network.log(|| format!("client {} drops token {}", self.client, held.token));
            drop(guard);
        } else if way < 0.95 {
            drop(guard.discard());
        } else {
            guard.abandon();
        }
    }

    async fn release(&self, call: usize, held: Held, guard: LockGuard) {
        self.network.log(|| format!("client {} releases token {}", self.client, held.token));
        let outcome = guard.release().await;
        let answered = self.network.now();
        let end = match outcome {
            Ok(ReleaseOutcome::Released) => End::Released { asked: held.until, answered },
            Ok(_) => End::Lost,
            Err(_) => End::Unknown,
        };
        self.records.update(call, |call| call.what = held.granted(end));
    }

    /// Holds the lease for a while. If it is lost meanwhile, the guard has had its last use.
    async fn keep(&self, call: usize, guard: &impl Guard) -> Result<Held, Loss> {
        let network = &self.network;
        let (now, token) = (network.now(), guard.fencing_token().get());
        network.log(|| format!("client {} holds {} with token {token}", self.client, guard.key()));
        // If the process is killed, nothing more is certain.
        let mut answered = now;
        self.records.update(call, |call| {
            answered = *call.answered.get_or_insert(now);
            call.what = CallKind::Granted { token, until: now, end: End::Unknown };
        });
        // A guard that a refused commit returns may have been lost meanwhile.
        if answered == now && guard.loss() == Some(Loss::Expired) {
            self.records.complain(format!("client {} got a lease past its deadline, token {token}", self.client));
        }
        let long = network.random(Rng::f64);
        let time = if long < 0.6 { network.plan.ttl.mul_f64(0.2 * long) } else { network.plan.ttl.mul_f64(2.0 * long) };
        let lost = tokio::select! {
            biased;
            loss = guard.lost() => Some(loss),
            () = sleep(time) => guard.loss(),
        };
        let mut until = network.now();
        if let Some(stalled) = network.plan.first_stall(self.process, answered, until) {
            // It could not have noticed the loss.
            until = stalled;
        }
        // A lease that was released by force counts as held for a ttl at most, and may be handed on
        // meanwhile. Then the grant proves nothing.
        let forced = self.forced(guard.key().as_str(), answered.saturating_sub(network.plan.ttl));
        let proves = forced.is_none_or(|forced| forced > answered);
        let held = Held { token, until: until.min(forced.unwrap_or(until)), proves };
        let end = if lost.is_some() { End::Lost } else { End::Unknown };
        self.records.update(call, |call| call.what = held.granted(end));
        let Some(loss) = lost else { return Ok(held) };
        network.log(|| format!("client {} has lost token {token}: {loss:?}", self.client));
        self.stays_lost(guard, loss).await;
        Err(loss)
    }

    /// Returns when the key was first released by force after this moment.
    fn forced(&self, key: &str, after: Duration) -> Option<Duration> {
        let forced = self.records.forced.lock().expect("one thread");
        forced.iter().filter(|(of, at)| of == key && *at >= after).map(|(_, at)| *at).min()
    }

    async fn stays_lost(&self, guard: &impl Guard, loss: Loss) {
        sleep(self.network.plan.ttl / 2).await;
        if guard.loss() != Some(loss) {
            let now = guard.loss();
            self.records.complain(format!("client {}: a lease was lost ({loss:?}), and then {now:?}", self.client));
        }
    }
}

/// A time for which a caller held a lease.
#[derive(Clone, Copy)]
struct Held {
    token: u64,
    until: Duration,
    /// Whether the grant proves anything about others.
    proves: bool,
}

impl Held {
    fn granted(self, end: End) -> CallKind {
        let Self { token, until, proves } = self;
        if proves { CallKind::Granted { token, until, end } } else { CallKind::NotGranted }
    }
}

/// What the guards of plain locks and of commits have in common.
trait Guard {
    fn key(&self) -> &LockKey;
    fn fencing_token(&self) -> FencingToken;
    fn loss(&self) -> Option<Loss>;
    fn lost(&self) -> LostSignal;
}

macro_rules! guards {
    ($($guard:ty),*) => {$(
        impl Guard for $guard {
            fn key(&self) -> &LockKey {
                <$guard>::key(self)
            }

            fn fencing_token(&self) -> FencingToken {
                <$guard>::fencing_token(self)
            }

            fn loss(&self) -> Option<Loss> {
                <$guard>::loss(self)
            }

            fn lost(&self) -> LostSignal {
                <$guard>::lost(self)
            }
        }
    )*};
}

guards!(LockGuard, LeaseGuard);

/// A future that stands still whenever its process does.
pub(crate) struct Stalling<F> {
    pub(crate) work: Pin<Box<F>>,
    pub(crate) process: usize,
    pub(crate) network: Arc<Network>,
    pub(crate) pause: Option<Pin<Box<Sleep>>>,
}

impl<F: Future<Output = ()>> Future for Stalling<F> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            if let Some(pause) = &mut self.pause {
                ready!(pause.as_mut().poll(cx));
                self.pause = None;
            }
            let network = &self.network;
            let Some(until) = network.plan.stalled_until(self.process, network.now()) else { break };
            self.pause = Some(Box::pin(sleep_until(network.start + until)));
        }
        self.work.as_mut().poll(cx)
    }
}

/// Returns whether a call of this provider is refused because it is closed.
pub(crate) async fn is_closed(locks: &LeaseProvider) -> bool {
    match locks.try_acquire("closed?").await {
        Err(error) => error.kind() == ErrorKind::Closed,
        Ok(_) => false,
    }
}

/// Returns the terms of all leases.
pub(crate) fn terms(network: &Network) -> LeaseOptions {
    LeaseOptions::new().ttl(network.plan.ttl).safety_margin(network.plan.margin)
}
