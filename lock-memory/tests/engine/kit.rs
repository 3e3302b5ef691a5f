//! Helpers of several modules: terms, providers, callers in tasks of their own, and waiting for a
//! state.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use distlock_api::{Accounting, LeaseOptions, LockGuard, LockProvider, LockProviderExt, RenewalPolicy, Result};
use distlock_engine::{LeaseProvider, LeaseProviderBuilder};
use distlock_memory::{MemoryStore, Operation};
use tokio::runtime::{Builder, Runtime};
use tokio::task::coop::consume_budget;
use tokio::task::{JoinHandle, yield_now};
use tokio::time::{sleep, timeout};
use tracing::field::{Field, Visit};
use tracing::subscriber::{DefaultGuard, set_default};
use tracing::{Dispatch, Event, Level, Metadata, Subscriber, span};

use crate::store::{Abilities, ScriptedStore};

pub(crate) const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

pub(crate) const fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

/// One second of ttl, 100 ms of margin, renewed every 300 ms.
pub(crate) fn quick_terms() -> LeaseOptions {
    LeaseOptions::new().ttl(ms(1000)).safety_margin(ms(100)).renewal(RenewalPolicy::Every(ms(300)))
}

/// Three seconds of ttl, 300 ms of margin, renewed every second.
pub(crate) fn terms() -> LeaseOptions {
    LeaseOptions::new().ttl(ms(3000))
}

/// A store on which a provider is built: each provider is another process.
pub(crate) trait Deployment {
    fn provider_builder(&self) -> LeaseProviderBuilder;
}

impl Deployment for MemoryStore {
    fn provider_builder(&self) -> LeaseProviderBuilder {
        self.builder()
    }
}

impl Deployment for Arc<ScriptedStore> {
    fn provider_builder(&self) -> LeaseProviderBuilder {
        LeaseProvider::builder(self.clone())
    }
}

/// A provider with the engine's defaults.
pub(crate) fn provider(store: &impl Deployment) -> LeaseProvider {
    store.provider_builder().build().unwrap()
}

/// A provider of [`quick_terms`].
pub(crate) fn quick(store: &impl Deployment) -> LeaseProvider {
    store.provider_builder().lease(quick_terms()).request_timeout(ms(500)).build().unwrap()
}

/// A provider of [`terms`].
pub(crate) fn process(store: &impl Deployment) -> LeaseProvider {
    store.provider_builder().lease(terms()).request_timeout(ms(500)).build().unwrap()
}

/// A memory store, and providers of [`quick_terms`] on it.
pub(crate) fn quick_setup<const N: usize>() -> (MemoryStore, [LeaseProvider; N]) {
    let store = MemoryStore::new();
    let providers = std::array::from_fn(|_| quick(&store));
    (store, providers)
}

/// A memory store, and providers of [`terms`] on it.
pub(crate) fn setup<const N: usize>() -> (MemoryStore, [LeaseProvider; N]) {
    let store = MemoryStore::new();
    let providers = std::array::from_fn(|_| process(&store));
    (store, providers)
}

/// Providers of [`terms`] that hand no lease on within their process.
pub(crate) fn queueing<const N: usize>(store: &MemoryStore) -> [LeaseProvider; N] {
    std::array::from_fn(|_| store.builder().lease(terms()).request_timeout(ms(500)).without_hand_off().build().unwrap())
}

pub(crate) async fn acquire(provider: &LeaseProvider, key: &str) -> LockGuard {
    provider.acquire(key).await.unwrap()
}

/// A memory store that can do less.
pub(crate) fn memory(change: impl FnOnce(&mut Abilities)) -> MemoryStore {
    let mut abilities = Abilities::all();
    change(&mut abilities);
    abilities.memory()
}

/// Acquires in a task of its own.
pub(crate) fn in_task(provider: &LeaseProvider, key: impl Into<String>) -> JoinHandle<Result<LockGuard>> {
    let (provider, key) = (provider.clone(), key.into());
    tokio::spawn(async move { provider.acquire(key).await })
}

/// Acquires `k` in a task of its own.
pub(crate) fn waiter(provider: &LeaseProvider) -> JoinHandle<Result<LockGuard>> {
    in_task(provider, "k")
}

/// A provider that holds a key of a store with events, and has its stream open.
pub(crate) async fn holding(key: &str) -> (Arc<ScriptedStore>, LeaseProvider, LockGuard) {
    holding_at(ScriptedStore::honest(), key).await
}

/// Like [`holding`], at a store with a script.
pub(crate) async fn holding_at(store: ScriptedStore, key: &str) -> (Arc<ScriptedStore>, LeaseProvider, LockGuard) {
    let store = store.with(|store| store.capabilities.push = true);
    let provider = provider(&store);
    let guard = provider.acquire(key).await.unwrap();
    // A stream is opened when the lease is a second old.
    store.called(Operation::Watch, 1).await;
    quiet().await;
    (store, provider, guard)
}

/// Returns the guard that a [`waiter`] is granted.
pub(crate) async fn guard(waiter: JoinHandle<Result<LockGuard>>) -> LockGuard {
    waiter.await.unwrap().unwrap()
}

/// Acquires `k`, and is polled by hand.
pub(crate) fn by_hand(provider: &LeaseProvider) -> Pin<Box<dyn Future<Output = Result<LockGuard>> + Send>> {
    let provider = provider.clone();
    Box::pin(async move { provider.acquire("k").await })
}

/// Waits until the store's queue for `k` has this many tickets.
pub(crate) async fn queued(store: &MemoryStore, tickets: usize) {
    while store.waiting("k").len() != tickets {
        sleep(ms(1)).await;
    }
}

/// Acquires `k` by one provider, and queues a caller of another one for it.
pub(crate) async fn holder_and_waiter(
    store: &MemoryStore,
    holder: &LeaseProvider,
    other: &LeaseProvider,
) -> (LockGuard, JoinHandle<Result<LockGuard>>) {
    let first = acquire(holder, "k").await;
    let next = waiter(other);
    queued(store, 1).await;
    (first, next)
}

/// Waits until this many callers of the provider wait.
pub(crate) async fn waiting(provider: &LeaseProvider, waiters: u64) {
    while provider.accounting().waiting < waiters {
        sleep(ms(1)).await;
    }
}

/// Waits until the provider holds nothing.
pub(crate) async fn holds_nothing(provider: &LeaseProvider) {
    while provider.accounting().held > 0 {
        sleep(ms(1)).await;
    }
}

/// Waits, in paused time, until the accounting is as `check` requires. It balances meanwhile.
pub(crate) async fn accounting_when(provider: &LeaseProvider, check: impl Fn(&Accounting) -> bool) -> Accounting {
    for _ in 0..10_000 {
        let accounting = provider.accounting();
        assert!(accounting.balances(), "{accounting:?}");
        if check(&accounting) {
            return accounting;
        }
        sleep(ms(1)).await;
    }
    panic!("the accounting never came to that: {:?}", provider.accounting());
}

/// Runs everything that can run without time passing.
pub(crate) async fn quiet() {
    for _ in 0..200 {
        yield_now().await;
    }
}

/// Asserts that a future stays pending for a while.
pub(crate) async fn assert_pending<F: Future + Unpin>(future: &mut F, time: Duration) {
    assert!(timeout(time, future).await.is_err(), "came too early");
}

pub(crate) fn poll_once<F: Future + ?Sized>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

/// Polls a future as a task does that polls others first, which use its cooperative budget up.
pub(crate) async fn poll_without_budget<F: Future + ?Sized>(mut future: Pin<&mut F>) -> Poll<F::Output> {
    poll_fn(|cx| {
        while pin!(consume_budget()).poll(cx).is_ready() {}
        Poll::Ready(future.as_mut().poll(cx))
    })
    .await
}

/// Polls a future this many times, then drops it. Returns its output if it got that far.
pub(crate) async fn polled<F: Future>(times: usize, future: F) -> Option<F::Output> {
    let mut future = Box::pin(future);
    let mut polls = 0;
    poll_fn(move |cx| {
        if polls == times {
            return Poll::Ready(None);
        }
        polls += 1;
        match future.as_mut().poll(cx) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending if polls == times => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

pub(crate) fn one_thread() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// Runs something that may deadlock or never end, on a thread of its own. Returns whether it ended
/// in time.
pub(crate) fn ends_within(limit: Duration, work: impl FnOnce() + Send + 'static) -> bool {
    let (done, is_done) = mpsc::channel();
    std::thread::spawn(move || {
        work();
        let _ = done.send(());
    });
    is_done.recv_timeout(limit).is_ok()
}

/// Subscribes to what this thread logs. While there is a single subscriber in the process, an event
/// that first happens on a thread without it stays disabled everywhere: so there are two.
pub(crate) fn subscribe<S: Subscriber + Send + Sync>(subscriber: impl Fn() -> S) -> (Dispatch, DefaultGuard) {
    (Dispatch::new(subscriber()), set_default(subscriber()))
}

/// The lines that this thread logs up to a level, each as its fields, `message` included.
pub(crate) struct Lines {
    lines: Arc<Mutex<Vec<String>>>,
    _log: (Dispatch, DefaultGuard),
}

impl Lines {
    pub(crate) fn collect(level: Level) -> Self {
        let lines = Arc::<Mutex<Vec<String>>>::default();
        Self { lines: lines.clone(), _log: subscribe(|| Collector { level, lines: lines.clone() }) }
    }

    /// Those with this text.
    pub(crate) fn with(&self, text: &str) -> Vec<String> {
        self.lines.lock().unwrap().iter().filter(|line| line.contains(text)).cloned().collect()
    }
}

struct Collector {
    level: Level,
    lines: Arc<Mutex<Vec<String>>>,
}

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.push_str(&format!(" {}={value:?}", field.name()));
    }
}

impl Subscriber for Collector {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= self.level
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line(event.metadata().level().to_string());
        event.record(&mut line);
        self.lines.lock().unwrap().push(line.0);
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}
