//! Clients that repeat a refused request without a pause, in the tasks of one thread: its timers
//! still fire. On real threads.

use std::convert::Infallible;
use std::future::IntoFuture;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use bytes::Bytes;
use distlock_api::{LockKey, LockProviderExt};
use distlock_memory::MemoryProvider;
use distlock_tower::key::FixedKey;
use distlock_tower::keyed::KeyOf;
use distlock_tower::{KeyRejection, KeySet, KeyedLockLayer, LockLayer};
use http::{Request, Response};
use http_body_util::Full;
use tokio::time::sleep;
use tower::{Layer, Service, ServiceExt, service_fn};

/// How long a live runtime may take for what takes milliseconds.
const SOON: Duration = Duration::from_secs(30);

/// The key of a request; an empty one is refused.
struct Itself;

impl KeyOf<&'static str> for Itself {
    fn keys(&self, request: &&'static str) -> Result<Option<KeySet>, KeyRejection> {
        Ok(Some(LockKey::new(*request)?.into()))
    }

    fn class(&self) -> &str {
        "itself"
    }
}

/// Repeats a request in 1,000 tasks.
fn timers_fire<R, S>(service: S, request: impl Fn() -> R + Clone + Send + 'static)
where
    R: Send + 'static,
    S: Service<R, Future: Send> + Clone + Send + 'static,
{
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_time().build().unwrap();
    let over = Arc::new(AtomicBool::new(false));
    for _ in 0..1_000 {
        let (service, request, over) = (service.clone(), request.clone(), over.clone());
        runtime.spawn(async move {
            while !over.load(Ordering::Relaxed) {
                drop(service.clone().oneshot(request()).await);
            }
        });
    }
    let (done, waits) = mpsc::channel();
    runtime.spawn(async move {
        for _ in 0..20 {
            sleep(Duration::from_millis(5)).await;
        }
        let _ = done.send(());
    });
    let fired = waits.recv_timeout(SOON);
    over.store(true, Ordering::Relaxed);
    runtime.shutdown_timeout(SOON);
    fired.expect("the runtime stands still");
}

#[test]
fn c18_refused_requests_let_other_tasks_run() {
    let locks = MemoryProvider::new();
    let held = futures_util::FutureExt::now_or_never(locks.acquire("k").into_future()).unwrap().unwrap();
    let keyed = KeyedLockLayer::new::<&'static str>(locks.clone(), Itself).fail_fast();
    let keyed = keyed.layer(service_fn(|_: &'static str| async { Ok::<_, Infallible>(()) }));
    timers_fire(keyed.clone(), || "k");
    timers_fire(keyed, || "");
    let answer =
        service_fn(|_: Request<Full<Bytes>>| async { Ok::<_, Infallible>(Response::new(Full::<Bytes>::default())) });
    let request = || Request::post("/pay").body(Full::<Bytes>::default()).unwrap();
    timers_fire(LockLayer::new(locks, FixedKey::new("k").unwrap()).fail_fast().layer(answer), request);
    drop(held);
}
