//! Callers that repeat a call without a pause, although it is answered without a wait: the timers
//! of their runtime still fire, and leases are renewed. On real threads, because under paused time
//! a task that never waits stops only itself.

use std::future::Future;
use std::num::NonZeroUsize;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;
use std::time::Duration;

use distlock::blocking;
use distlock::lead::LeadExt;
use distlock::memory::{MemoryOnce, MemoryProvider, MemoryStore};
use distlock::once::OnceProviderExt;
use distlock::{
    ErrorKind, LockAdmin, LockError, LockFilter, LockGuard, LockProvider, LockProviderExt, Namespaced, ReleaseOutcome,
    Result,
};
use distlock_engine::store::{
    Attempt, Lanes, Release, RemoteStore, Renewal, Reply, Standing, StoreCapabilities, StoreExtras,
};
use distlock_engine::{HandOff, LeaseProvider, LeaseStore, QueueOptions, WhenFull, async_trait};
use tokio::runtime::{Builder, Runtime};
use tokio::time::sleep;

/// How long a live runtime may take for what takes milliseconds.
const SOON: Duration = Duration::from_secs(30);
const LOOPS: usize = 1_000;
/// A task that is granted keys, or looks at one, lets others run after many calls, not after each.
const GRANTED: usize = 100;
/// One runtime is kept busy at a time: each takes what processors there are.
static ALONE: Mutex<()> = Mutex::new(());

type Call = Pin<Box<dyn Future<Output = ()> + Send>>;

fn runtime(workers: usize) -> Runtime {
    Builder::new_multi_thread().worker_threads(workers).enable_time().build().unwrap()
}

/// Repeats the calls in many tasks until it is dropped.
struct Loops(Arc<AtomicBool>);

impl Loops {
    fn start(runtime: &Runtime, loops: usize, call: impl Fn(usize) -> Call + Send + Sync + 'static) -> Self {
        let (over, call) = (Arc::new(AtomicBool::new(false)), Arc::new(call));
        for number in 0..loops {
            let (over, call) = (over.clone(), call.clone());
            runtime.spawn(async move {
                while !over.load(Ordering::Relaxed) {
                    call(number).await;
                }
            });
        }
        Self(over)
    }
}

impl Drop for Loops {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Waits for a task of the runtime that the loops run on.
fn completes(runtime: &Runtime, what: &str, task: impl Future<Output = ()> + Send + 'static) {
    let (done, waits) = mpsc::channel();
    runtime.spawn(async move {
        task.await;
        let _ = done.send(());
    });
    assert!(waits.recv_timeout(SOON).is_ok(), "{what}: the runtime stands still, or the task has failed");
}

/// Checks that timers fire while 1,000 tasks repeat the call that `make` returns.
fn timers_fire<C: Fn(usize) -> Call + Send + Sync + 'static>(what: &str, make: impl AsyncFn() -> C) {
    timers_fire_beside(LOOPS, what, make);
}

fn timers_fire_beside<C: Fn(usize) -> Call + Send + Sync + 'static>(
    loops: usize,
    what: &str,
    make: impl AsyncFn() -> C,
) {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    for workers in [1, 2] {
        let runtime = runtime(workers);
        let call = runtime.block_on(make());
        let loops = Loops::start(&runtime, loops, call);
        completes(&runtime, &format!("{what}, {workers} workers"), async {
            for _ in 0..2 {
                sleep(Duration::from_millis(5)).await;
            }
        });
        drop(loops);
        runtime.shutdown_timeout(SOON);
    }
}

fn calls(call: impl Future<Output = ()> + Send + 'static) -> Call {
    Box::pin(call)
}

fn of<T>(call: impl Future<Output = Result<T>> + Send + 'static, kind: ErrorKind) -> Call {
    Box::pin(async move { assert_eq!(call.await.map(drop).unwrap_err().kind(), kind) })
}

/// The providers to which most of the calls are made.
fn providers() -> [Arc<dyn LockProvider>; 2] {
    [Arc::new(MemoryProvider::new()), Arc::new(MemoryStore::new().provider())]
}

/// The guard is dropped with its runtime, so its key stays closed until the lease has expired: each
/// time another one.
#[test]
fn busy_keys() {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    for locks in providers() {
        timers_fire("a try of a held key", async || {
            let key = NEXT.fetch_add(1, Ordering::Relaxed);
            let (locks, held) = (locks.clone(), Arc::new(locks.acquire(key).await.unwrap()));
            move |_| {
                let (locks, held) = (locks.clone(), held.clone());
                calls(async move {
                    assert!(locks.try_acquire(key).await.unwrap().is_none());
                    drop(held);
                })
            }
        });
        timers_fire("a try of several keys", async || {
            let key = NEXT.fetch_add(1, Ordering::Relaxed);
            let (locks, held) = (locks.clone(), Arc::new(locks.acquire(key).await.unwrap()));
            move |_| {
                let (locks, held) = (locks.clone(), held.clone());
                calls(async move {
                    assert!(locks.try_acquire_all([key, usize::MAX]).await.unwrap().is_none());
                    drop(held);
                })
            }
        });
    }
}

#[test]
fn refused_calls() {
    for locks in providers() {
        timers_fire("options", async || {
            let locks = locks.clone();
            move |_| {
                let locks = locks.clone();
                of(async move { locks.acquire("k").ttl(Duration::ZERO).await }, ErrorKind::InvalidOptions)
            }
        });
        timers_fire("a key", async || {
            let locks = locks.clone();
            move |number| {
                let locks = locks.clone();
                match number % 4 {
                    0 => of(async move { locks.acquire("").await }, ErrorKind::InvalidKey),
                    1 => of(async move { locks.try_acquire_all([""]).await }, ErrorKind::InvalidKey),
                    2 => of(
                        async move { locks.lead("").run(async |_| Ok::<_, LockError>(())).await },
                        ErrorKind::InvalidKey,
                    ),
                    _ => of(
                        async move {
                            let locks = Namespaced::new(locks, "of")?;
                            locks.acquire("k".repeat(distlock::LockKey::MAX_LEN)).await
                        },
                        ErrorKind::InvalidKey,
                    ),
                }
            }
        });
        timers_fire("a filter", async || {
            let locks = locks.clone();
            move |_| {
                let locks = locks.clone();
                let release = async move { locks.admin().unwrap().release_matching(&LockFilter::new(), "all").await };
                of(release, ErrorKind::InvalidOptions)
            }
        });
    }
    for locks in providers() {
        timers_fire("a closed provider", async || {
            locks.close().await.unwrap();
            let locks = locks.clone();
            move |number| {
                let locks = locks.clone();
                match number % 3 {
                    0 => of(async move { locks.acquire("k").await }, ErrorKind::Closed),
                    1 => of(async move { locks.acquire_all(["k", "l"]).await }, ErrorKind::Closed),
                    _ => of(
                        async move { locks.lead("k").run(async |_| Ok::<_, LockError>(())).await },
                        ErrorKind::Closed,
                    ),
                }
            }
        });
    }
}

#[test]
fn full_queues() {
    timers_fire("a full queue", async || {
        let store = MemoryStore::new();
        let queue = QueueOptions::new().capacity(1).when_full(WhenFull::Refuse);
        let [holder, waiter, locks] = std::array::from_fn(|_| store.builder().queue(queue).build().unwrap());
        let held = Arc::new(holder.acquire("k").await.unwrap());
        tokio::spawn(async move { waiter.acquire("k").await });
        while store.waiting("k").is_empty() {
            sleep(Duration::from_millis(1)).await;
        }
        move |_| {
            let (locks, held) = (locks.clone(), held.clone());
            of(async move { locks.acquire("k").await.inspect_err(|_| drop(held)) }, ErrorKind::QueueFull)
        }
    });
}

#[test]
fn keys_that_are_granted_at_once() {
    for locks in providers() {
        timers_fire_beside(GRANTED, "free keys", async || {
            let locks = locks.clone();
            move |number| {
                let locks = locks.clone();
                calls(async move {
                    if number % 2 == 0 {
                        locks.acquire(number).await.unwrap().release().await.unwrap();
                    } else {
                        locks.acquire_all([number, number + 10_000]).await.unwrap().release().await.unwrap();
                    }
                })
            }
        });
    }
    timers_fire_beside(GRANTED, "a lease that is joined, and one that lingers", async || {
        let hand_off = HandOff::new().linger(Duration::from_secs(60));
        let locks = MemoryStore::new().builder().hand_off(hand_off).build().unwrap();
        let reader = Arc::new(locks.acquire("readers").shared().await.unwrap());
        move |number| {
            let (locks, reader) = (locks.clone(), reader.clone());
            calls(async move {
                let guard = match number % 2 {
                    0 => locks.acquire("readers").shared().await.unwrap(),
                    _ => locks.acquire(number).await.unwrap(),
                };
                assert_eq!(guard.release().await.unwrap(), ReleaseOutcome::Released);
                drop(reader);
            })
        }
    });
}

#[test]
fn administration() {
    for locks in providers() {
        timers_fire_beside(GRANTED, "inspections", async || {
            let locks = locks.clone();
            move |_| {
                let locks = locks.clone();
                calls(async move {
                    let key = distlock::LockKey::new("k").unwrap();
                    assert!(locks.admin().unwrap().inspect(&key).await.unwrap().is_none());
                })
            }
        });
    }
}

#[test]
fn work_that_is_done_once() {
    timers_fire("once", async || {
        let jobs = MemoryOnce::new();
        jobs.once("done").await.unwrap().begun().unwrap().complete("receipt").await.unwrap();
        let begun = Arc::new(jobs.once("begun").await.unwrap());
        move |number| {
            let (jobs, begun) = (jobs.clone(), begun.clone());
            match number % 4 {
                0 => calls(async move { assert!(jobs.once("done").await.unwrap().done().is_some()) }),
                1 => calls(async move {
                    assert!(jobs.try_once("begun").await.unwrap().is_busy());
                    drop(begun);
                }),
                2 => of(async move { jobs.once("").await }, ErrorKind::InvalidKey),
                _ => of(async move { jobs.once("k").ttl(Duration::ZERO).await }, ErrorKind::InvalidOptions),
            }
        }
    });
}

#[test]
fn work_under_a_lost_lock() {
    timers_fire("a lost guard", async || {
        let locks = MemoryProvider::new();
        let guard = Arc::new(locks.acquire("k").await.unwrap());
        locks.force_release(guard.key(), "lost").await.unwrap();
        move |_| {
            let guard: Arc<LockGuard> = guard.clone();
            of(async move { guard.run(async {}).await }, ErrorKind::Lost)
        }
    });
}

/// A store whose requests take half a second, and which takes two at once.
#[derive(Debug)]
struct SlowStore {
    inner: MemoryStore,
    lanes: Lanes,
}

const SLOW: Duration = Duration::from_millis(500);

#[async_trait]
impl LeaseStore for SlowStore {
    fn capabilities(&self) -> StoreCapabilities {
        LeaseStore::capabilities(&self.inner)
    }

    fn extras(&self) -> StoreExtras<'_> {
        let mut extras = self.inner.extras();
        (extras.batch_renew, extras.admin) = (None, None);
        extras.remote = Some(self);
        extras
    }

    async fn try_acquire(&self, attempt: &Attempt) -> Result<Reply> {
        sleep(SLOW).await;
        self.inner.try_acquire(attempt).await
    }

    async fn renew(&self, renewal: &Renewal) -> Result<Standing> {
        sleep(SLOW).await;
        self.inner.renew(renewal).await
    }

    async fn release(&self, release: &Release) -> Result<ReleaseOutcome> {
        self.inner.release(release).await
    }
}

impl RemoteStore for SlowStore {
    fn lanes(&self) -> Option<Lanes> {
        Some(self.lanes.clone())
    }
}

/// An overloaded store refuses at once. The lease of another caller is renewed meanwhile.
#[test]
fn c14_refused_callers_cost_no_lease() {
    thread::scope(|scope| {
        for workers in [1, 2] {
            scope.spawn(move || refused_callers_cost_no_lease(workers));
        }
    });
}

fn refused_callers_cost_no_lease(workers: usize) {
    let ttl = Duration::from_secs(6);
    let runtime = runtime(workers);
    let lanes = Lanes::new(NonZeroUsize::new(4).unwrap());
    let locks = LeaseProvider::new(Arc::new(SlowStore { inner: MemoryStore::new(), lanes }));
    let held = runtime.block_on(async { locks.acquire("held").ttl(ttl).await.unwrap() });
    let refused = Arc::new(AtomicBool::new(false));
    let loops = {
        let refused = refused.clone();
        Loops::start(&runtime, LOOPS, move |number| {
            let (locks, refused) = (locks.clone(), refused.clone());
            calls(async move {
                match locks.acquire(number % 30).timeout(Duration::from_secs(3)).await {
                    Ok(guard) => drop(guard.release().await),
                    Err(error) if error.kind() == ErrorKind::Overloaded => refused.store(true, Ordering::Relaxed),
                    Err(_) => {}
                }
            })
        })
    };
    completes(&runtime, &format!("a lease, {workers} workers"), async move {
        // Longer than it would last without a renewal.
        let first = held.valid_until().unwrap();
        while held.valid_until().unwrap() < first + ttl {
            assert_eq!(held.loss(), None);
            sleep(Duration::from_millis(20)).await;
        }
    });
    assert!(refused.load(Ordering::Relaxed), "no call was refused");
    drop(loops);
    runtime.shutdown_timeout(SOON);
}

/// Blocking callers on threads of their own, on the one thread that renews their leases.
#[test]
fn blocking_calls() {
    let locks = blocking::Provider::new(MemoryStore::new().provider()).unwrap();
    let held = locks.acquire("k").ttl(Duration::from_secs(3)).call().unwrap();
    let first = held.remaining().unwrap();
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        for number in 0..32 {
            let (locks, over) = (&locks, &over);
            scope.spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    match number % 2 {
                        0 => assert!(locks.try_acquire("k").call().unwrap().is_none()),
                        _ => assert!(locks.acquire("k").ttl(Duration::ZERO).call().is_err()),
                    }
                }
            });
        }
        let start = std::time::Instant::now();
        while start.elapsed() < 2 * first && !held.is_lost() {
            thread::sleep(Duration::from_millis(10));
        }
        over.store(true, Ordering::Relaxed);
    });
    assert_eq!(held.loss(), None);
}
