//! On paused time: waits, deadlines, holds, and `Retry-After`.

use std::convert::Infallible;

use bytes::Bytes;
use distlock_api::{ErrorKind, LockProvider, LockProviderExt, Loss};
use distlock_memory::{MemoryProvider, MemoryStore, Operation};
use distlock_tower::http::DeadlineUnit;
use distlock_tower::key::{ExtractKey, HeaderKey};
use distlock_tower::{HeldLock, LockLayer, OnLoss};
use futures_util::FutureExt;
use http::{HeaderName, Request, Response};
use http_body_util::{BodyExt, Full};
use tokio::time::{Instant, sleep};
use tower::{Layer, Service, ServiceExt, service_fn};

use crate::timed::{key, ms, post, secs, status, working};

#[tokio::test(start_paused = true)]
async fn the_default_wait_is_five_seconds() {
    let locks = MemoryProvider::new();
    let held = locks.acquire("key").await.unwrap();
    let service = LockLayer::new(locks.clone(), key()).layer(working(ms(1)));
    let started = Instant::now();
    assert_eq!(status(service.clone().oneshot(post())).await.0, 503);
    assert_eq!(started.elapsed().as_secs(), 5);
    drop(held);
    assert_eq!(status(service.oneshot(post())).await.0, 200);
}

#[tokio::test(start_paused = true)]
async fn deadlines_of_callers_shorten_the_wait_and_never_lengthen_it() {
    let locks = MemoryProvider::new();
    let _held = locks.acquire("key").await.unwrap();
    let timeout = HeaderName::from_static("x-timeout");
    let layer = LockLayer::new(locks, key()).wait_up_to(secs(5)).deadline_header(timeout, DeadlineUnit::Seconds);
    let service = layer.layer(working(ms(1)));
    for (name, value, expected) in [
        ("grpc-timeout", "300m", 300),
        ("x-timeout", "0.2", 200),
        ("grpc-timeout", "1H", 5000),
        ("x-timeout", "?", 5000),
    ] {
        let mut request = post();
        request.headers_mut().insert(name, value.parse().unwrap());
        let started = Instant::now();
        assert_eq!(status(service.clone().oneshot(request)).await.0, 503, "{value}");
        let took = started.elapsed();
        assert!(took >= ms(expected) && took < ms(expected + 50), "{value}: {took:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn retry_after_is_the_hold_time_times_the_queue_rounded_up() {
    let layer = LockLayer::new(MemoryProvider::new(), key()).max_waiters(2);
    let monitor = layer.monitor();
    let service = layer.layer(working(ms(1600)));
    let send = || tokio::spawn(status(service.clone().oneshot(post())));
    assert_eq!(send().await.unwrap().0, 200, "the first hold, which takes 1.6 s");
    assert_eq!(monitor.average_hold().unwrap().as_millis() / 100, 16);
    let served = [send(), send(), send()];
    tokio::task::yield_now().await;
    assert_eq!((monitor.held(), monitor.waiting()), (1, 2));
    // One holds and two wait: 3 × 1.6 s = 4.8 s.
    assert_eq!(status(service.clone().oneshot(post())).await, (503, Some(5)));
    for served in served {
        assert_eq!(served.await.unwrap().0, 200);
    }
}

#[tokio::test(start_paused = true)]
async fn retry_after_before_the_first_hold_is_that_of_the_store() {
    let store = MemoryStore::new();
    let (here, elsewhere) = (store.provider(), store.provider());
    let _held = elsewhere.acquire("key").ttl(secs(20)).await.unwrap();
    let service = LockLayer::new(here, key()).fail_fast().layer(working(ms(1)));
    assert_eq!(status(service.oneshot(post())).await, (409, Some(20)));

    let down = MemoryStore::new();
    down.fail_always(Operation::TryAcquire, ErrorKind::Unavailable);
    let service = LockLayer::new(down.provider(), key()).fail_fast().layer(working(ms(1)));
    assert_eq!(status(service.oneshot(post())).await, (503, Some(5)));
}

#[tokio::test(start_paused = true)]
async fn an_outage_that_ends_within_the_wait_is_not_noticed() {
    let store = MemoryStore::new();
    store.fail_always(Operation::TryAcquire, ErrorKind::Unavailable);
    let service = LockLayer::new(store.provider(), key()).layer(working(ms(1)));
    let answer = tokio::spawn(status(service.oneshot(post())));
    sleep(secs(1)).await;
    store.clear_faults();
    assert_eq!(answer.await.unwrap().0, 200);
}

#[tokio::test(start_paused = true)]
async fn a_wait_is_bounded_although_the_store_is_silent() {
    let store = MemoryStore::new();
    let _silent = store.hang_next(Operation::TryAcquire);
    let service = LockLayer::new(store.provider(), key()).wait_up_to(secs(2)).layer(working(ms(1)));
    let started = Instant::now();
    assert_eq!(status(service.oneshot(post())).await.0, 503);
    assert!(started.elapsed() < secs(3));
}

#[tokio::test(start_paused = true)]
async fn a_lock_lingers_for_the_next_request_with_its_key() {
    let store = MemoryStore::new();
    let service = LockLayer::new(store.provider(), key()).linger(ms(100)).layer(working(ms(1)));
    for _ in 0..5 {
        assert_eq!(status(service.clone().oneshot(post())).await.0, 200);
        sleep(ms(50)).await;
    }
    assert_eq!(store.calls(Operation::TryAcquire), 1);
    assert!(store.peek("key").is_some());
    sleep(ms(100)).await;
    assert!(store.peek("key").is_none());
}

#[tokio::test(start_paused = true)]
async fn several_keys_are_taken_together_and_released_together() {
    let locks = MemoryProvider::new();
    let from = HeaderKey::text("account", HeaderName::from_static("x-from")).unwrap();
    let to = HeaderKey::text("account", HeaderName::from_static("x-to")).unwrap();
    let service = service_fn(|request: Request<()>| async move {
        let held = request.extensions().get::<HeldLock>().unwrap();
        let keys: Vec<_> = held.grants().iter().map(|(key, _)| key.as_str()).collect();
        let keys = keys.join(" ");
        sleep(secs(1)).await;
        Ok::<_, Infallible>(Response::new(Full::<Bytes>::from(keys)))
    });
    let service = LockLayer::new(locks.clone(), from.and(to)).on_loss(OnLoss::Continue).layer(service);
    let transfer = |from: &str, to: &str| {
        let request = Request::post("/").header("x-from", from).header("x-to", to).body(()).unwrap();
        let response = service.clone().oneshot(request);
        tokio::spawn(async move { response.await.unwrap().into_body().collect().await.unwrap().to_bytes() })
    };
    let started = Instant::now();
    let (there, back) = (transfer("7", "3"), transfer("3", "7"));
    assert_eq!(there.await.unwrap(), "account/3 account/7");
    assert_eq!(back.await.unwrap(), "account/3 account/7");
    assert_eq!(started.elapsed().as_secs(), 2, "one after the other, and no deadlock");
    assert_eq!(transfer("7", "7").await.unwrap(), "account/7");
    assert_eq!(locks.keys_in_use(), 0);
}

/// A handler may keep its view of the lock longer than the request lasts.
#[tokio::test(start_paused = true)]
async fn c4_a_loss_is_final_however_the_hold_ends() {
    for max_hold in [secs(60), secs(1)] {
        for lost in [Some(Loss::ForceReleased), None] {
            let locks = MemoryProvider::new();
            let layer = LockLayer::new(locks.clone(), key()).on_loss(OnLoss::Continue).max_hold(max_hold);
            let service = layer.layer(service_fn(move |request: Request<()>| {
                let locks = locks.clone();
                async move {
                    let held = request.extensions().get::<HeldLock>().unwrap().clone();
                    if lost.is_some() {
                        locks.admin().unwrap().force_release(held.key(), "a test").await.unwrap();
                    }
                    assert_eq!(held.loss(), lost);
                    let mut response = Response::new(Full::<Bytes>::from("done"));
                    response.extensions_mut().insert(held);
                    Ok::<_, Infallible>(response)
                }
            }));
            let response = service.oneshot(post()).await.unwrap();
            let held = response.extensions().get::<HeldLock>().unwrap().clone();
            // Either the body ends, or it is not polled until the lock was held too long.
            sleep(secs(2)).await;
            drop(response);
            assert_eq!((held.loss(), held.lost().now_or_never()), (lost, lost), "{max_hold:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn no_keys_no_lock() {
    let none = |_: &mut http::request::Parts| Ok::<_, distlock_api::LockError>(Some(Vec::new()));
    let layer = LockLayer::new(MemoryProvider::new(), none);
    let monitor = layer.monitor();
    assert_eq!(status(layer.layer(working(ms(1))).oneshot(post())).await.0, 200);
    assert_eq!(monitor.granted(), 0);
}

#[tokio::test(start_paused = true)]
async fn dropped_at_any_time_nothing_is_left() {
    let locks = MemoryProvider::new();
    let layer = LockLayer::new(locks.clone(), key());
    let monitor = layer.monitor();
    let mut detached = layer.clone().detach().layer(working(secs(1)));
    let service = layer.layer(working(secs(1)));
    let held = locks.acquire("key").await.unwrap();

    drop(service.clone().oneshot(post()));
    let mut waiting = Box::pin(service.clone().oneshot(post()));
    assert!((&mut waiting).now_or_never().is_none());
    assert_eq!((monitor.waiting(), locks.accounting().waiting), (1, 1));
    drop(waiting);
    assert_eq!((monitor.waiting(), locks.accounting().waiting), (0, 0));

    // Granted, but dropped before the first poll.
    let mut waiting = Box::pin(service.clone().oneshot(post()));
    assert!((&mut waiting).now_or_never().is_none());
    drop(held);
    drop(waiting);
    assert_eq!(locks.keys_in_use(), 0);

    let mut running = Box::pin(service.clone().oneshot(post()));
    assert!((&mut running).now_or_never().is_none());
    assert_eq!((monitor.held(), locks.keys_in_use()), (1, 1));
    let mut idle = std::pin::pin!(monitor.idle());
    assert!(idle.as_mut().now_or_never().is_none());
    drop(running);
    assert_eq!((monitor.held(), locks.keys_in_use()), (0, 0));
    idle.now_or_never().expect("no request is left");

    // A free key is taken by the call itself.
    let mut service = service;
    let unpolled = service.call(post());
    assert_eq!((monitor.held(), locks.keys_in_use()), (1, 1));
    drop(unpolled);
    assert_eq!((monitor.held(), locks.keys_in_use()), (0, 0));
    assert_eq!(status(service.call(post())).await.0, 200);
    drop(detached.call(post()));
    assert_eq!((monitor.held(), locks.keys_in_use()), (0, 0), "no poll, so nothing was detached");
    monitor.idle().await;
}
