//! The contract of `poll_ready`: the service that was ready is called, and readiness does not
//! include locks.

use std::convert::Infallible;
use std::future::{Ready, poll_fn, ready};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use distlock_api::{LockError, LockKey, LockProviderExt};
use distlock_memory::MemoryProvider;
use distlock_tower::key::{FixedKey, HeaderKey};
use distlock_tower::{KeyedLockLayer, LockLayer};
use http::{HeaderName, Request, Response};
use http_body_util::Full;
use tower::{Layer, Service};

/// Panics when it is called without having been ready. Each clone must become ready on its own.
struct Probe {
    ready: bool,
    /// Ready at the second poll.
    polled: bool,
    calls: Arc<AtomicUsize>,
}

impl Probe {
    fn new() -> (Self, Arc<AtomicUsize>) {
        let calls = Arc::new(AtomicUsize::new(0));
        (Self { ready: false, polled: false, calls: calls.clone() }, calls)
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        if !std::mem::replace(&mut self.polled, true) {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        self.ready = true;
        Poll::Ready(Ok(()))
    }

    fn called(&mut self) {
        assert!(std::mem::take(&mut self.ready), "called without having been ready");
        self.polled = false;
        self.calls.fetch_add(1, Ordering::SeqCst);
    }
}

impl Clone for Probe {
    fn clone(&self) -> Self {
        Self { ready: false, polled: false, calls: self.calls.clone() }
    }
}

impl Service<Request<()>> for Probe {
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.poll(cx)
    }

    fn call(&mut self, _: Request<()>) -> Self::Future {
        self.called();
        ready(Ok(Response::default()))
    }
}

impl Service<u32> for Probe {
    type Response = u32;
    type Error = Infallible;
    type Future = Ready<Result<u32, Infallible>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.poll(cx)
    }

    fn call(&mut self, job: u32) -> Self::Future {
        self.called();
        ready(Ok(job))
    }
}

fn post() -> Request<()> {
    Request::post("/").body(()).unwrap()
}

async fn is_ready<S: Service<R>, R>(service: &mut S) {
    assert!(poll_fn(|cx| service.poll_ready(cx)).await.is_ok());
}

/// Calls a service twice while its lock is held elsewhere, and then twice while the lock is free.
macro_rules! assert_contract {
    ($service:expr, $locks:expr, $calls:expr, $request:expr) => {{
        let mut service = $service;
        let held = $locks.acquire("key").await.unwrap();
        let mut cx = Context::from_waker(std::task::Waker::noop());
        assert!(service.poll_ready(&mut cx).is_pending(), "not ready before the inner service is");
        is_ready(&mut service).await;
        let first = tokio::spawn(service.call($request));
        is_ready(&mut service).await;
        let second = tokio::spawn(service.call($request));
        tokio::task::yield_now().await;
        assert_eq!($calls.load(Ordering::SeqCst), 0, "called without the lock");
        drop(held);
        assert!(first.await.unwrap().is_ok() && second.await.unwrap().is_ok());
        assert_eq!($calls.load(Ordering::SeqCst), 2);
        for calls in [3, 4] {
            let mut cx = Context::from_waker(std::task::Waker::noop());
            assert!(service.poll_ready(&mut cx).is_pending(), "every call needs a readiness of its own");
            is_ready(&mut service).await;
            assert!(service.call($request).await.is_ok());
            assert_eq!($calls.load(Ordering::SeqCst), calls);
        }
    }};
}

#[tokio::test]
async fn of_http_services() {
    let (locks, (probe, calls)) = (MemoryProvider::new(), Probe::new());
    let layer = LockLayer::new(locks.clone(), FixedKey::new("key").unwrap());
    assert_contract!(layer.layer(probe), locks, calls, post());
}

#[tokio::test]
async fn of_http_services_with_detached_handlers() {
    let (locks, (probe, calls)) = (MemoryProvider::new(), Probe::new());
    let layer = LockLayer::new(locks.clone(), FixedKey::new("key").unwrap()).detach();
    assert_contract!(layer.layer(probe), locks, calls, post());
}

#[tokio::test]
async fn of_other_services() {
    let (locks, (probe, calls)) = (MemoryProvider::new(), Probe::new());
    let layer = KeyedLockLayer::new(locks.clone(), |_: &u32| Ok::<_, LockError>(Some(LockKey::new("key")?)));
    assert_contract!(layer.layer(probe), locks, calls, 7);
}

/// Others may need it, as with a limit of concurrency.
#[tokio::test]
async fn of_requests_whose_key_is_refused() {
    let refusing = KeyedLockLayer::new(MemoryProvider::new(), |_: &u32| LockKey::new("").map(Some));
    let mut service = refusing.layer(Probe::new().0);
    is_ready(&mut service).await;
    assert!(service.call(7).await.is_err());
    assert!(!service.get_ref().ready, "the readiness is given back");
    let key = HeaderKey::text("orders", HeaderName::from_static("order")).unwrap();
    let mut service = LockLayer::new(MemoryProvider::new(), key).layer(Probe::new().0);
    is_ready(&mut service).await;
    assert_eq!(service.call(post()).await.unwrap().status(), 400);
    assert!(!service.get_ref().ready, "the readiness is given back");
}

#[tokio::test]
async fn of_requests_that_pass() {
    let (probe, calls) = Probe::new();
    let layer = LockLayer::new(MemoryProvider::new(), FixedKey::new("key").unwrap());
    let mut service = layer.layer(probe);
    for _ in 0..2 {
        is_ready(&mut service).await;
        service.call(Request::get("/").body(()).unwrap()).await.unwrap();
    }
    assert_eq!(calls.load(Ordering::SeqCst), 2);
    let _: &Probe = service.get_ref();
    service.get_mut().polled = false;
    assert!(!service.into_inner().polled);
}

#[test]
fn everything_can_be_sent() {
    fn send_sync_clone<T: Send + Sync + Clone + 'static>(_: &T) {}
    fn send<T: Send + 'static>(_: T) {}
    let attached = LockLayer::new(MemoryProvider::new(), FixedKey::new("key").unwrap());
    let detached = attached.clone().detach();
    let keyed = KeyedLockLayer::new(MemoryProvider::new(), |_: &u32| Ok::<Option<LockKey>, LockError>(None));
    let (probe, _) = Probe::new();
    send_sync_clone(&attached);
    send_sync_clone(&detached);
    send_sync_clone(&keyed);
    send_sync_clone(&attached.layer(probe.clone()));
    send_sync_clone(&detached.layer(probe.clone()));
    send_sync_clone(&keyed.layer(probe.clone()));
    let mut ready = probe.clone();
    ready.ready = true;
    send(keyed.layer(ready).call(7));
}

/// Neither the service nor its future need be `Send` where nothing is spawned.
#[tokio::test]
async fn local_services_are_served() {
    let layer = LockLayer::new(MemoryProvider::new(), FixedKey::new("key").unwrap());
    let local = std::rc::Rc::new(());
    let mut service = layer.layer(tower::service_fn(move |_: Request<()>| {
        let local = local.clone();
        async move {
            let _ = &local;
            Ok::<_, Infallible>(Response::new(Full::<Bytes>::default()))
        }
    }));
    is_ready(&mut service).await;
    assert_eq!(service.call(post()).await.unwrap().status(), 200);
}
