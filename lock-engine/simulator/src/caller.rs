//! The callers of a process: they acquire, hold, release, drop and leave, and record what they
//! observe.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use distlock_api::{ErrorKind, LeaseOptions, LockError, LockGuard, LockProviderExt, Loss, Mode, ReleaseOutcome};
use distlock_conformance::history::{Call, End, What};
use distlock_engine::LeaseProvider;
use fastrand::Rng;
use futures_util::future::join_all;
use tokio::time::{Sleep, sleep, sleep_until, timeout};

use crate::network::Network;

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
        calls.push(Call { client, key, asked, answered: None, queued: None, mode, what: What::NotGranted });
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
            Ok(None) => self.records.update(call, |call| (call.answered, call.what) = (Some(answered), What::Busy)),
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

    async fn hold(&self, call: usize, guard: LockGuard) {
        let network = &self.network;
        let (answered, token) = (network.now(), guard.fencing_token().get());
        network.log(|| format!("client {} holds {} with token {token}", self.client, guard.key()));
        if guard.loss() == Some(Loss::Expired) {
            self.records.complain(format!("client {} got a lease past its deadline, token {token}", self.client));
        }
        // If the process is killed, nothing more is certain.
        self.records.update(call, |call| {
            (call.answered, call.what) = (Some(answered), What::Granted { token, until: answered, end: End::Unknown });
        });
        let (long, way) = network.random(|rng| (rng.f64(), rng.f64()));
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
        until = until.min(forced.unwrap_or(until));
        let granted = |until, end| if proves { What::Granted { token, until, end } } else { What::NotGranted };
        if let Some(loss) = lost {
            network.log(|| format!("client {} has lost token {token}: {loss:?}", self.client));
            self.records.update(call, |call| call.what = granted(until, End::Lost));
            return self.stays_lost(guard, loss).await;
        }
        self.records.update(call, |call| call.what = granted(until, End::Unknown));
        // The last part of the run leaves nothing behind.
        let gentle = network.now() >= network.plan.faults;
        if way < 0.6 || gentle {
            network.log(|| format!("client {} releases token {token}", self.client));
            let outcome = guard.release().await;
            let answered = network.now();
            let end = match outcome {
                Ok(ReleaseOutcome::Released) => End::Released { asked: until, answered },
                Ok(_) => End::Lost,
                Err(_) => End::Unknown,
            };
            self.records.update(call, |call| call.what = granted(until, end));
        } else if way < 0.85 {
            network.log(|| format!("client {} drops token {token}", self.client));
            drop(guard);
        } else if way < 0.95 {
            drop(guard.discard());
        } else {
            guard.abandon();
        }
    }

    /// Returns when the key was first released by force after this moment.
    fn forced(&self, key: &str, after: Duration) -> Option<Duration> {
        let forced = self.records.forced.lock().expect("one thread");
        forced.iter().filter(|(of, at)| of == key && *at >= after).map(|(_, at)| *at).min()
    }

    async fn stays_lost(&self, guard: LockGuard, loss: Loss) {
        sleep(self.network.plan.ttl / 2).await;
        if guard.loss() != Some(loss) {
            let now = guard.loss();
            self.records.complain(format!("client {}: a lease was lost ({loss:?}), and then {now:?}", self.client));
        }
    }
}

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
