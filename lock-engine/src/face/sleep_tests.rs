//! A sleep of the machine, from the clock to the guard: the leases of a provider after the boot
//! time has advanced and the monotonic clock has not. Time is paused, so what comes without time
//! passing comes at once.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use distlock_api::{FencingToken, LockGuard, LockProviderExt, Loss, ReleaseOutcome, RenewalPolicy, Result};
use tokio::task::yield_now;
use tokio::time::{Instant, advance, timeout};

use crate::LeaseProvider;
use crate::run::clock;
use crate::store::{Attempt, Grant, LeaseStore, Release, Renewal, RenewalSubject, Reply, Standing};

/// A store that grants and renews everything.
#[derive(Debug, Default)]
struct Obliging {
    tokens: AtomicU64,
    /// The keys of the leases that were renewed.
    renewed: Mutex<Vec<String>>,
}

#[async_trait::async_trait]
impl LeaseStore for Obliging {
    async fn try_acquire(&self, attempt: &Attempt) -> Result<Reply> {
        let token = FencingToken::new(1 + self.tokens.fetch_add(1, Ordering::Relaxed));
        Ok(Reply::Granted(Grant::new(token, attempt.ttl)))
    }

    async fn renew(&self, renewal: &Renewal) -> Result<Standing> {
        let RenewalSubject::Lease { ttl, .. } = renewal.subject else { panic!("the store has no queue") };
        self.renewed.lock().unwrap().push(renewal.claim.key().as_str().to_owned());
        Ok(Standing::Held { remaining: ttl })
    }

    async fn release(&self, _: &Release) -> Result<ReleaseOutcome> {
        Ok(ReleaseOutcome::Released)
    }
}

impl Obliging {
    fn take_renewed(&self) -> Vec<String> {
        let mut renewed = std::mem::take(&mut *self.renewed.lock().unwrap());
        renewed.sort();
        renewed
    }
}

const fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

/// Runs everything that can run without time passing.
async fn quiet() {
    for _ in 0..200 {
        yield_now().await;
    }
}

/// Returns a store, below a provider whose keeper has begun, and guards of leases with these names
/// and times to live.
async fn holding<const N: usize>(leases: [(&str, u64, RenewalPolicy); N]) -> (Arc<Obliging>, [LockGuard; N]) {
    let store = Arc::new(Obliging::default());
    let provider = LeaseProvider::new(store.clone());
    let mut guards = Vec::new();
    for (key, ttl, renewal) in leases {
        guards.push(provider.acquire(key).ttl(secs(ttl)).renewal(renewal).await.unwrap());
    }
    quiet().await;
    advance(secs(1)).await;
    quiet().await;
    assert_eq!(store.take_renewed(), [""; 0]);
    (store, guards.try_into().unwrap_or_else(|_| unreachable!("one for each")))
}

/// Reads the clock, as any other code of the process may.
fn anything_looks() {
    let _ = clock::now();
}

#[tokio::test(start_paused = true)]
async fn c4_a_guard_that_is_looked_at_after_a_sleep_is_lost_at_once() {
    let (_store, [guard]) = holding([("k", 30, RenewalPolicy::Auto)]).await;
    clock::tests::sleep(secs(20));
    assert_eq!(guard.loss(), None, "its deadline has not passed");
    clock::tests::sleep(secs(10));
    assert_eq!(guard.loss(), Some(Loss::Expired));
}

#[tokio::test(start_paused = true)]
async fn c4_a_loss_by_sleep_is_signalled_without_a_look_at_the_guard() {
    let policies = [("renewed", 30, RenewalPolicy::Auto), ("never renewed", 30, RenewalPolicy::Never)];
    let (store, [renewed, never]) = holding(policies).await;
    let signals = [&renewed, &never].map(|guard| tokio::spawn(guard.lost()));
    quiet().await;
    let start = Instant::now();
    clock::tests::sleep(secs(3600));
    anything_looks();
    quiet().await;
    for signal in signals {
        assert!(signal.is_finished(), "the keeper looks after a sleep that was noticed");
        assert_eq!(signal.await.unwrap(), Loss::Expired);
    }
    assert_eq!(start.elapsed(), Duration::ZERO);
    assert_eq!(store.take_renewed(), [""; 0], "what is lost is not renewed");
}

#[tokio::test(start_paused = true)]
async fn c12_leases_whose_deadline_has_not_passed_are_renewed_at_once_after_a_sleep() {
    let leases = [("long", 60, RenewalPolicy::Auto), ("short", 15, RenewalPolicy::Auto)];
    let (store, [long, short]) = holding(leases).await;
    clock::tests::sleep(secs(20));
    anything_looks();
    quiet().await;
    assert_eq!(store.take_renewed(), ["long"]);
    assert_eq!((long.loss(), short.loss()), (None, Some(Loss::Expired)));
    // From the renewal on, the sleep before it no longer counts.
    clock::tests::sleep(secs(45));
    assert_eq!(long.loss(), None);
}

#[tokio::test(start_paused = true)]
async fn c4_a_lease_that_is_never_renewed_ends_earlier_by_what_the_machine_has_slept() {
    let (_store, [guard]) = holding([("k", 30, RenewalPolicy::Never)]).await;
    let signal = tokio::spawn(guard.lost());
    quiet().await;
    let start = Instant::now();
    clock::tests::sleep(secs(20));
    anything_looks();
    assert_eq!(timeout(secs(60), signal).await.unwrap().unwrap(), Loss::Expired);
    assert!(start.elapsed() <= secs(10), "{:?}", start.elapsed());
}
