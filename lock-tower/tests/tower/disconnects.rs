//! Over real TCP: clients that disconnect, readers that are slow, handlers that panic, servers that
//! stop. Nothing is left behind.

use std::time::Duration;

use distlock_api::LockProvider;
use distlock_tower::HoldUntil;
use http_body_util::BodyExt;

use crate::common::{Answer, Protocol, soon, until};
use crate::play::{attached, one_key, play};

over_both!(
    a_client_that_disconnects_while_waiting_leaves_no_waiter,
    a_client_that_disconnects_ends_its_handler_and_releases,
    a_client_that_disconnects_in_the_body_releases,
    the_lock_is_held_until_the_body_has_ended,
    until_the_head_by_choice,
    a_slow_reader_holds_the_lock,
    a_slow_reader_is_bounded_by_the_maximum_hold,
    a_panic_releases,
    graceful_shutdown_serves_holders_and_waiters,
);

async fn a_client_that_disconnects_while_waiting_leaves_no_waiter(protocol: Protocol) {
    let mut play = attached().await;
    let [holder, leaver, stayer] =
        [play.server.client(protocol).await, play.server.client(protocol).await, play.server.client(protocol).await];
    let first = holder.spawn_post("/visit/first");
    play.events.entered("first").await;
    let _left = leaver.spawn_post("/visit/second");
    until("it waits", || play.monitor.waiting() == 1).await;
    let last = stayer.spawn_post("/visit/third");
    until("it waits", || play.monitor.waiting() == 2).await;
    leaver.disconnect();
    until("the waiter is gone", || play.monitor.waiting() == 1).await;
    assert_eq!(play.provider.accounting().waiting, 1);
    play.stage.let_go(2);
    assert_eq!(first.await.unwrap().unwrap().status(), 200);
    play.events.finished("first").await;
    play.events.entered("third").await;
    assert_eq!(last.await.unwrap().unwrap().status(), 200);
    play.assert_nothing_left().await;
}

async fn a_client_that_disconnects_ends_its_handler_and_releases(protocol: Protocol) {
    let mut play = attached().await;
    let [leaver, other] = [play.server.client(protocol).await, play.server.client(protocol).await];
    let _left = leaver.spawn_post("/visit/first");
    play.events.entered("first").await;
    let waiting = other.spawn_post("/visit/second");
    until("it waits", || play.monitor.waiting() == 1).await;
    leaver.disconnect();
    // First the handler, then the lock.
    play.events.dropped("first").await;
    play.events.entered("second").await;
    play.stage.let_go(1);
    assert_eq!(waiting.await.unwrap().unwrap().status(), 200);
    play.assert_nothing_left().await;
}

async fn a_client_that_disconnects_in_the_body_releases(protocol: Protocol) {
    let mut play = attached().await;
    let [leaver, other] = [play.server.client(protocol).await, play.server.client(protocol).await];
    let response = leaver.spawn_post("/stream/first").await.unwrap().unwrap();
    play.events.entered("first").await;
    let waiting = other.spawn_post("/visit/second");
    until("it waits", || play.monitor.waiting() == 1).await;
    drop(response);
    leaver.disconnect();
    play.events.dropped("first").await;
    play.events.entered("second").await;
    play.stage.let_go(1);
    assert_eq!(waiting.await.unwrap().unwrap().status(), 200);
    play.assert_nothing_left().await;
}

async fn the_lock_is_held_until_the_body_has_ended(protocol: Protocol) {
    let mut play = attached().await;
    let [reader, other] = [play.server.client(protocol).await, play.server.client(protocol).await];
    let response = reader.spawn_post("/stream/first").await.unwrap().unwrap();
    play.events.entered("first").await;
    let waiting = other.spawn_post("/visit/second");
    until("it waits", || play.monitor.waiting() == 1).await;
    assert_eq!(play.monitor.held(), 1);
    play.stage.let_go(2);
    play.events.finished("first").await;
    play.events.entered("second").await;
    assert_eq!(Answer::read(response).await.text(), "begin end");
    assert_eq!(waiting.await.unwrap().unwrap().status(), 200);
    play.assert_nothing_left().await;
}

async fn until_the_head_by_choice(protocol: Protocol) {
    let mut play = play(|provider, app| {
        let layer = one_key(provider).hold_until(HoldUntil::Head);
        let monitor = layer.monitor();
        (app.route_layer(layer), monitor)
    })
    .await;
    let [reader, other] = [play.server.client(protocol).await, play.server.client(protocol).await];
    let response = reader.spawn_post("/stream/first").await.unwrap().unwrap();
    play.events.entered("first").await;
    let _second = other.spawn_post("/visit/second");
    play.events.entered("second").await;
    play.stage.let_go(2);
    assert_eq!(Answer::read(response).await.text(), "begin end");
}

async fn a_slow_reader_holds_the_lock(protocol: Protocol) {
    let mut play = attached().await;
    let [reader, other] = [play.server.client(protocol).await, play.server.client(protocol).await];
    let mut response = reader.spawn_post("/flood/1").await.unwrap().unwrap();
    let waiting = other.spawn_post("/visit/second");
    until("it waits", || play.monitor.waiting() == 1).await;
    let mut length = response.frame().await.unwrap().unwrap().into_data().unwrap().len();
    assert_eq!((play.monitor.held(), play.monitor.waiting()), (1, 1));
    length += soon("the rest", response.collect()).await.unwrap().to_bytes().len();
    assert_eq!(length, 64 << 20);
    play.events.entered("second").await;
    play.stage.let_go(1);
    assert_eq!(waiting.await.unwrap().unwrap().status(), 200);
    play.assert_nothing_left().await;
}

async fn a_slow_reader_is_bounded_by_the_maximum_hold(protocol: Protocol) {
    let mut play = play(|provider, app| {
        // Long enough for both handlers to answer.
        let layer = one_key(provider).max_hold(Duration::from_secs(5));
        let monitor = layer.monitor();
        (app.route_layer(layer), monitor)
    })
    .await;
    let [reader, other] = [play.server.client(protocol).await, play.server.client(protocol).await];
    let response = reader.spawn_post("/flood/1").await.unwrap().unwrap();
    let waiting = other.spawn_post("/visit/second");
    // The body is not polled while the client does not read, and yet the hold ends:
    play.events.entered("second").await;
    play.stage.let_go(1);
    assert_eq!(waiting.await.unwrap().unwrap().status(), 200);
    assert!(soon("the end", response.collect()).await.is_err(), "a part is not taken for the whole");
    play.assert_nothing_left().await;
}

async fn a_panic_releases(protocol: Protocol) {
    let play = attached().await;
    let panicking = play.server.client(protocol).await;
    assert!(panicking.send(crate::common::request(hyper::Method::POST, "/panic/1")).await.is_err());
    play.assert_nothing_left().await;
    let panicking = play.server.client(protocol).await;
    if let Ok(response) = panicking.spawn_post("/panic-in-body/1").await.unwrap() {
        assert!(soon("the end", response.collect()).await.is_err());
    }
    play.assert_nothing_left().await;
    play.stage.let_go(1);
    assert_eq!(play.server.client(protocol).await.post("/visit/next").await.status, 200);
}

async fn graceful_shutdown_serves_holders_and_waiters(protocol: Protocol) {
    let mut play = attached().await;
    let [first, second] = [play.server.client(protocol).await, play.server.client(protocol).await];
    let holding = first.spawn_post("/visit/first");
    play.events.entered("first").await;
    let waiting = second.spawn_post("/visit/second");
    until("it waits", || play.monitor.waiting() == 1).await;
    play.server.begin_shutdown();
    play.stage.let_go(2);
    assert_eq!(holding.await.unwrap().unwrap().status(), 200);
    assert_eq!(waiting.await.unwrap().unwrap().status(), 200);
    drop((first, second));
    play.server.stopped().await;
    play.assert_nothing_left().await;
}
