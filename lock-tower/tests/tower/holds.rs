//! On paused time: when a lock is released, and in which order things are dropped.

use std::convert::Infallible;
use std::pin::pin;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use distlock_api::{ErrorKind, LeaseOptions, LockProvider};
use distlock_memory::{MemoryProvider, MemoryStore, Operation};
use distlock_tower::LockLayer;
use distlock_tower::http::LockBodyError;
use futures_util::FutureExt;
use futures_util::stream;
use http::{Request, Response};
use http_body::{Body, Frame};
use http_body_util::{BodyExt, StreamBody};
use tokio::time::{Instant, advance, sleep};
use tower::{Layer, Service, ServiceExt, service_fn};

use crate::timed::{key, ms, post, secs, status, working};

#[tokio::test(start_paused = true)]
async fn the_maximum_hold_covers_handler_and_body_together() {
    let locks = MemoryProvider::new();
    let service = LockLayer::new(locks.clone(), key()).max_hold(secs(3)).layer(working(secs(2)));
    let mut body = service.clone().oneshot(post()).await.unwrap().into_body();
    assert_eq!(locks.keys_in_use(), 1);
    // Without a poll.
    sleep(ms(999)).await;
    assert_eq!(locks.keys_in_use(), 1);
    sleep(ms(2)).await;
    assert_eq!(locks.keys_in_use(), 0);
    assert!(!body.is_end_stream());
    assert!(matches!(body.frame().await, Some(Err(LockBodyError::HeldTooLong))));
    assert!(body.is_end_stream() && body.frame().await.is_none());

    let slow = LockLayer::new(locks.clone(), key()).max_hold(secs(3)).layer(working(secs(4)));
    let started = Instant::now();
    assert_eq!(status(slow.oneshot(post())).await.0, 503);
    assert_eq!((started.elapsed().as_secs(), locks.keys_in_use()), (3, 0));
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_expires_aborts_and_the_next_one_is_served() {
    let store = MemoryStore::new();
    let layer = LockLayer::new(store.provider(), key()).lease(LeaseOptions::new().ttl(secs(10)));
    let aborted = layer.layer(working(secs(60)));
    let answer = tokio::spawn(status(aborted.oneshot(post())));
    sleep(secs(1)).await;
    store.fail_always(Operation::Renew, ErrorKind::Unavailable);
    let started = Instant::now();
    assert_eq!(answer.await.unwrap().0, 503);
    assert!(started.elapsed() < secs(10));
    store.clear_faults();
    advance(secs(10)).await;
    assert_eq!(status(layer.layer(working(ms(1))).oneshot(post())).await.0, 200);
}

/// A body of the given frames, each after a second.
fn streaming() -> impl Service<
    Request<()>,
    Response = Response<impl Body<Data = Bytes, Error = Infallible> + Send>,
    Error = Infallible,
    Future: Send,
> + Clone
+ Send {
    service_fn(|_| async {
        let frames = stream::unfold(0, |step| async move {
            sleep(secs(1)).await;
            (step < 3).then(|| (Ok(Frame::data(Bytes::from_static(b"x"))), step + 1))
        });
        Ok(Response::new(Box::pin(StreamBody::new(frames))))
    })
}

#[tokio::test(start_paused = true)]
async fn a_body_releases_at_its_end_when_dropped_and_when_lost() {
    let locks = MemoryProvider::new();
    let service = LockLayer::new(locks.clone(), key()).layer(streaming());
    let open = || async { service.clone().oneshot(post()).await.unwrap().into_body() };

    let body = open().await;
    assert_eq!(locks.keys_in_use(), 1);
    assert_eq!(body.collect().await.unwrap().to_bytes(), "xxx");
    assert_eq!(locks.keys_in_use(), 0);

    let mut body = open().await;
    body.frame().await.unwrap().unwrap();
    assert_eq!(locks.keys_in_use(), 1);
    drop(body);
    assert_eq!(locks.keys_in_use(), 0);

    let mut body = open().await;
    body.frame().await.unwrap().unwrap();
    let mut frame = pin!(body.frame());
    assert!(frame.as_mut().now_or_never().is_none());
    locks.admin().unwrap().force_release(&"key".try_into().unwrap(), "a test").await.unwrap();
    assert!(matches!(frame.await, Some(Err(LockBodyError::Lost))), "while it waits for a frame");

    let mut body = open().await;
    locks.admin().unwrap().force_release(&"key".try_into().unwrap(), "a test").await.unwrap();
    assert!(matches!(body.frame().await, Some(Err(LockBodyError::Lost))), "before it is polled");
    assert!(body.frame().await.is_none());
}

/// Remembers whether the lock was held when it was dropped.
struct Witness(MemoryProvider, Arc<Mutex<Vec<bool>>>);

impl Drop for Witness {
    fn drop(&mut self) {
        self.1.lock().unwrap().push(self.0.keys_in_use() == 1);
    }
}

#[tokio::test(start_paused = true)]
async fn handler_and_body_are_always_dropped_under_the_lock() {
    let (locks, seen) = (MemoryProvider::new(), Arc::<Mutex<Vec<bool>>>::default());
    let layer = LockLayer::new(locks.clone(), key()).max_hold(secs(10));
    let service = {
        let (locks, seen) = (locks.clone(), seen.clone());
        layer.layer(service_fn(move |request: Request<()>| {
            let witness = Witness(locks.clone(), seen.clone());
            async move {
                sleep(secs(1)).await;
                let fails = request.uri().path() == "/fails";
                let frames = stream::unfold((0, witness), move |(step, witness)| async move {
                    sleep(secs(1)).await;
                    let frame =
                        if fails && step == 1 { Err("failed") } else { Ok(Frame::data(Bytes::from_static(b"x"))) };
                    (step < 2).then(|| (frame, (step + 1, witness)))
                });
                Ok::<_, Infallible>(Response::new(Box::pin(StreamBody::new(frames))))
            }
        }))
    };
    let open = |path: &str| service.clone().oneshot(Request::post(path).body(()).unwrap());

    let mut handling = Box::pin(open("/"));
    assert!((&mut handling).now_or_never().is_none());
    drop(handling);
    let body = open("/").await.unwrap().into_body();
    drop(body);
    let body = open("/").await.unwrap().into_body();
    assert_eq!(body.collect().await.unwrap().to_bytes(), "xx");
    let body = open("/fails").await.unwrap().into_body();
    assert!(matches!(body.collect().await, Err(LockBodyError::Inner("failed"))));
    let mut ended = open("/").await.unwrap().into_body();
    while ended.frame().await.is_some() {}
    assert_eq!(seen.lock().unwrap().len(), 5, "at the end, not when the rest is dropped");
    drop(ended);
    assert_eq!(*seen.lock().unwrap(), [true; 5]);
    assert_eq!(locks.keys_in_use(), 0);
}
