//! The cancellation matrix (C11). Every call is begun again and again, and dropped after none of
//! its polls, after the first, after the second … until it ends by itself. The store yields before
//! and after each of its steps, and each fault meets the call. Nothing may stay behind.

use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::time::Duration;

use distlock_api::{ErrorKind, LeaseOptions, LockGuard, LockProvider, LockProviderExt, ReleaseOutcome};
use distlock_engine::LeaseProvider;
use distlock_memory::{HangHandle, MemoryStore, Operation};
use tokio::task::yield_now;
use tokio::time::{sleep, timeout};

use crate::kit::{Deployment, memory, ms, polled, waiting};
use crate::store::{Abilities, ScriptedStore};

/// Longer than any clean-up takes, and much shorter than any lease or ticket lasts.
const SETTLED: Duration = ms(4000);
/// No call is polled more often than this before it ends.
const MOST_POLLS: usize = 200;
const KEYS: [&str; 3] = ["a", "b", "c"];

/// The fault that meets the call.
#[derive(Clone, Copy, Debug)]
enum Fault {
    None,
    /// The next such request fails, and is not applied.
    Fails(Operation),
    /// It is applied, and its reply is lost.
    LosesReply(Operation),
    /// It hangs before it is applied, longer than its caller waits.
    HangsBefore(Operation),
    /// It is applied, and its reply hangs.
    HangsAfter(Operation),
    /// It is applied a moment later.
    SlowBefore(Operation),
    /// It is applied, and its reply comes a moment later.
    SlowAfter(Operation),
}

const FAULTS: [Fault; 17] = [
    Fault::None,
    Fault::Fails(Operation::TryAcquire),
    Fault::LosesReply(Operation::TryAcquire),
    Fault::HangsBefore(Operation::TryAcquire),
    Fault::HangsAfter(Operation::TryAcquire),
    Fault::SlowBefore(Operation::TryAcquire),
    Fault::SlowAfter(Operation::TryAcquire),
    Fault::Fails(Operation::Release),
    Fault::LosesReply(Operation::Release),
    Fault::HangsBefore(Operation::Release),
    Fault::HangsAfter(Operation::Release),
    Fault::SlowBefore(Operation::Release),
    Fault::SlowAfter(Operation::Release),
    Fault::Fails(Operation::Withdraw),
    Fault::LosesReply(Operation::Withdraw),
    Fault::HangsBefore(Operation::Withdraw),
    Fault::HangsAfter(Operation::Withdraw),
];

impl Fault {
    fn plan(self, store: &MemoryStore) -> Option<HangHandle> {
        match self {
            Self::None => None,
            Self::Fails(operation) => {
                store.fail_next(operation, ErrorKind::Unavailable);
                None
            }
            Self::LosesReply(operation) => {
                store.drop_reply_next(operation);
                None
            }
            Self::HangsBefore(operation) | Self::SlowBefore(operation) => Some(store.hang_next(operation)),
            Self::HangsAfter(operation) | Self::SlowAfter(operation) => Some(store.hang_reply_next(operation)),
        }
    }
}

/// The call that is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    Acquire,
    /// A single attempt.
    Try,
    /// Another process holds the lock.
    Wait,
    /// Another process holds the lock; with a timeout.
    TimedWait,
    /// A guard of the same process holds the lock.
    LocalWait,
    AcquireAll,
    /// Another process holds one of them.
    AcquireAllBusy,
    Release,
    /// Another process waits.
    HandOver,
    Run,
    Lost,
    Close,
}

const CALLS: [Call; 12] = [
    Call::Acquire,
    Call::Try,
    Call::Wait,
    Call::TimedWait,
    Call::LocalWait,
    Call::AcquireAll,
    Call::AcquireAllBusy,
    Call::Release,
    Call::HandOver,
    Call::Run,
    Call::Lost,
    Call::Close,
];

type Dropped = Pin<Box<dyn Future<Output = bool> + Send>>;

/// Two processes at one store.
struct World {
    store: MemoryStore,
    here: LeaseProvider,
    there: LeaseProvider,
}

impl World {
    fn new(change: impl FnOnce(&mut Abilities)) -> Self {
        let store = memory(change);
        let provider = || {
            let stepped = ScriptedStore::over(&store).with(|store| store.yields = 1);
            let lease = LeaseOptions::new().ttl(ms(60_000));
            stepped.provider_builder().lease(lease).request_timeout(ms(500)).build().unwrap()
        };
        let (here, there) = (provider(), provider());
        Self { store, here, there }
    }

    /// Prepares the call. Returns guards that are held meanwhile.
    async fn prepare(&self, call: Call) -> Vec<LockGuard> {
        let holder = match call {
            Call::Wait | Call::TimedWait | Call::AcquireAllBusy => &self.there,
            Call::LocalWait | Call::Close | Call::Lost => &self.here,
            _ => return Vec::new(),
        };
        vec![holder.acquire("b").await.unwrap()]
    }

    /// Returns the call, not begun. Its output is whether it was granted a lock that it gave back.
    async fn begin(&self, call: Call, held: &[LockGuard]) -> Dropped {
        let here = self.here.clone();
        match call {
            Call::Acquire | Call::Wait | Call::LocalWait => {
                Box::pin(async move { drops(here.acquire("b").await.ok()) })
            }
            Call::TimedWait => Box::pin(async move { drops(here.acquire("b").timeout(ms(300)).await.ok()) }),
            Call::Try => Box::pin(async move { drops(here.try_acquire("b").await.ok().flatten()) }),
            Call::AcquireAll | Call::AcquireAllBusy => Box::pin(async move {
                let all = here.acquire_all(KEYS).timeout(ms(300)).await;
                drops(all.ok())
            }),
            Call::Release => {
                let release = here.acquire("b").await.unwrap().release();
                Box::pin(async move { drops(release.await.ok()) })
            }
            Call::HandOver => {
                let release = here.acquire("b").await.unwrap().release();
                let there = self.there.clone();
                let waits = tokio::spawn(async move { drop(there.acquire("b").await.unwrap()) });
                waiting(&self.there, 1).await;
                drop(waits);
                Box::pin(async move { drops(release.await.ok()) })
            }
            Call::Run => Box::pin(async move { drops(here.acquire("b").run(async |_| yield_now().await).await.ok()) }),
            Call::Lost => {
                let lost = held[0].lost();
                Box::pin(async move { drops(Some(lost.await)) })
            }
            Call::Close => Box::pin(async move { drops(here.close().await.ok()) }),
        }
    }

    /// Asserts that nothing is left of the call: neither lease nor ticket nor turn. The accounting
    /// balances, and each provider can have the locks at once.
    async fn nothing_is_left(&self, is_closed: bool) {
        for provider in [&self.here, &self.there] {
            let accounting = provider.accounting();
            assert!(accounting.balances(), "{accounting:?}");
            assert_eq!(
                (accounting.held, accounting.waiting, accounting.lost, accounting.abandoned),
                (0, 0, 0, 0),
                "{accounting:?}"
            );
        }
        for key in KEYS {
            assert!(self.store.peek(key).is_none(), "{key} is held: {:?}", self.store.peek(key));
            assert!(self.store.waiting(key).is_empty(), "{key} is waited for");
            for provider in std::iter::once(&self.there).chain((!is_closed).then_some(&self.here)) {
                let guard = timeout(ms(50), provider.acquire(key).into_future()).await;
                let guard = guard.unwrap_or_else(|_| panic!("{key} cannot be had")).unwrap();
                assert_eq!(guard.release().await.unwrap(), ReleaseOutcome::Released);
            }
        }
    }
}

/// Returns whether there was something to drop.
fn drops<T>(what: Option<T>) -> bool {
    what.is_some()
}

/// Runs one cell. Returns whether the call came to its end, or waits for ever.
async fn cell(world: World, call: Call, fault: Fault, polls: usize) -> bool {
    let held = world.prepare(call).await;
    let dropped = world.begin(call, &held).await;
    if let Some(hangs) = fault.plan(&world.store) {
        // A close gives up what has not ended within a second, any other caller after half of one.
        let for_so_long = match fault {
            Fault::SlowBefore(_) | Fault::SlowAfter(_) => ms(5),
            _ if call == Call::Close => ms(100),
            _ => ms(700),
        };
        tokio::spawn(async move {
            sleep(for_so_long).await;
            hangs.proceed();
        });
    }
    let ended = timeout(ms(2000), polled(polls, dropped)).await;
    let has_ended = !matches!(ended, Ok(None));
    if matches!(call, Call::Wait | Call::TimedWait | Call::LocalWait | Call::AcquireAllBusy) {
        assert!(!matches!(ended, Ok(Some(true))), "a held lock was granted");
        assert!(held.iter().all(|guard| !guard.is_lost()), "its holder lost it");
    }
    if call == Call::Lost {
        assert!(
            held.iter().all(|guard| !guard.is_lost()),
            "a provider that no longer reads its stream keeps its leases"
        );
    }
    if call == Call::Close {
        // After any outcome of the first one.
        let _ = timeout(SETTLED, world.here.close()).await.expect("a second close comes to its end");
    }
    drop(held);
    sleep(SETTLED).await;
    // A fault that this call has not met must not meet the checks.
    world.store.clear_faults();
    world.nothing_is_left(call == Call::Close).await;
    has_ended
}

async fn matrix(name: &str, change: impl Fn(&mut Abilities) + Copy) {
    let mut cells = 0;
    for call in CALLS {
        for fault in FAULTS {
            for polls in 0..=MOST_POLLS {
                let what = format!("{name}: {call:?} with {fault:?}, dropped after {polls} polls");
                let running = tokio::spawn(cell(World::new(change), call, fault, polls));
                let has_ended = running.await.unwrap_or_else(|error| panic!("{what}: {error}"));
                cells += 1;
                if has_ended {
                    assert!(polls > 0, "{what}: it was never polled");
                    break;
                }
                assert!(polls < MOST_POLLS, "{what}: it does not end");
            }
        }
    }
    println!("{name}: {cells} cells");
    assert!(cells > 500, "only {cells} cells");
}

#[tokio::test(start_paused = true)]
async fn c11_nothing_stays_behind_of_what_is_dropped_at_any_poll() {
    matrix("all capabilities", |_| {}).await;
}

#[tokio::test(start_paused = true)]
async fn c11_nothing_stays_behind_where_nothing_is_pushed() {
    matrix("without push", |capabilities| capabilities.push = false).await;
}

#[tokio::test(start_paused = true)]
async fn c11_nothing_stays_behind_without_a_queue() {
    matrix("without queue", |capabilities| {
        capabilities.queue = false;
        capabilities.push = false;
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn c11_nothing_stays_behind_where_stragglers_are_not_refused() {
    matrix("without ordered claims", |capabilities| capabilities.ordered_claims = false).await;
}
