//! Over real TCP: handlers that run to their end although their clients have disconnected.

use crate::common::{Protocol, until};
use crate::play::detached;

over_both!(
    detached_handlers_finish_under_the_lock,
    detached_waiters_leave,
    detached_panics_are_panics,
    servers_stop_without_waiting_for_detached_handlers,
);

async fn detached_handlers_finish_under_the_lock(protocol: Protocol) {
    let mut play = detached().await;
    let [leaver, other] = [play.server.client(protocol).await, play.server.client(protocol).await];
    let _left = leaver.spawn_post("/visit/first");
    play.events.entered("first").await;
    let waiting = other.spawn_post("/visit/second");
    until("it waits", || play.monitor.waiting() == 1).await;
    leaver.disconnect();
    drop(_left.await);
    play.events.nothing();
    assert_eq!((play.stage.inside(), play.monitor.held(), play.monitor.waiting()), (1, 1, 1));
    play.stage.let_go(2);
    play.events.finished("first").await;
    play.events.entered("second").await;
    assert_eq!(waiting.await.unwrap().unwrap().status(), 200);
    play.assert_nothing_left().await;
}

async fn detached_waiters_leave(protocol: Protocol) {
    let mut play = detached().await;
    let [holder, leaver] = [play.server.client(protocol).await, play.server.client(protocol).await];
    let first = holder.spawn_post("/visit/first");
    play.events.entered("first").await;
    let _left = leaver.spawn_post("/visit/second");
    until("it waits", || play.monitor.waiting() == 1).await;
    leaver.disconnect();
    until("the waiter is gone", || play.monitor.waiting() == 0).await;
    play.stage.let_go(1);
    assert_eq!(first.await.unwrap().unwrap().status(), 200);
    play.events.finished("first").await;
    play.assert_nothing_left().await;
    play.events.nothing();
}

async fn detached_panics_are_panics(protocol: Protocol) {
    let play = detached().await;
    assert!(
        play.server.client(protocol).await.send(crate::common::request(hyper::Method::POST, "/panic/1")).await.is_err()
    );
    play.assert_nothing_left().await;
}

async fn servers_stop_without_waiting_for_detached_handlers(protocol: Protocol) {
    let mut play = detached().await;
    let leaver = play.server.client(protocol).await;
    let _left = leaver.spawn_post("/visit/first");
    play.events.entered("first").await;
    leaver.disconnect();
    play.server.begin_shutdown();
    play.server.stopped().await;
    assert_eq!((play.stage.inside(), play.monitor.held()), (1, 1), "that is what `Monitor::idle` is for");
    play.stage.let_go(1);
    play.assert_nothing_left().await;
    play.events.finished("first").await;
}
