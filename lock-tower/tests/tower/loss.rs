//! Over real TCP: the lock is lost, or held too long, while a request is served.

use std::convert::Infallible;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::routing::post;
use distlock_api::{LockKey, LockProvider, Loss};
use distlock_memory::{MemoryProvider, MemoryStore};
use distlock_tower::key::FixedKey;
use distlock_tower::{HeldLock, LockLayer, OnLoss, Reason};
use futures_util::stream::{self, StreamExt};
use http_body_util::BodyExt;

use crate::common::{Events, Protocol, Server, Stage, soon};

fn layer(provider: &MemoryProvider) -> LockLayer<FixedKey> {
    LockLayer::new(provider.clone(), FixedKey::new("order/4711").unwrap())
}

async fn take_away(provider: &MemoryProvider) {
    let key = LockKey::new("order/4711").unwrap();
    let taken = provider.admin().unwrap().force_release(&key, "a test").await.unwrap();
    assert!(taken.is_some(), "the lock was not held");
}

async fn serve(layer: LockLayer<FixedKey>) -> (Server, Stage, Events) {
    let (stage, events) = Stage::new();
    let visit = {
        let stage = stage.clone();
        move || async move { stage.visit("handler").await }
    };
    let watch = {
        let stage = stage.clone();
        move |held: HeldLock| async move {
            let mut visit = stage.enter("watching");
            let loss = held.lost().await;
            assert!(held.is_lost());
            visit.finished = true;
            format!("{loss:?}")
        }
    };
    let streaming = {
        let stage = stage.clone();
        move || async move {
            let rest = stream::once(async move {
                stage.visit("body").await;
                Ok::<_, Infallible>("end")
            });
            Body::from_stream(stream::iter([Ok("begin ")]).chain(rest))
        }
    };
    let app = Router::new()
        .route("/visit", post(visit))
        .route("/watch", post(watch))
        .route("/stream", post(streaming))
        .route_layer(layer);
    (Server::start(app).await, stage, events)
}

over_both!(
    a_loss_aborts_the_handler_with_503,
    detached_handlers_are_aborted_too,
    a_handler_that_continues_sees_the_loss,
    a_loss_ends_the_body_with_an_error,
    a_body_continues_by_choice,
    the_maximum_hold_aborts_the_handler,
    a_loss_that_the_store_pushes_aborts_the_handler,
);

async fn a_loss_aborts_the_handler_with_503(protocol: Protocol) {
    let provider = MemoryProvider::new();
    let layer = layer(&provider);
    let monitor = layer.monitor();
    let (server, _, mut events) = serve(layer).await;
    let client = server.client(protocol).await;
    let answer = client.spawn_post("/visit");
    events.entered("handler").await;
    take_away(&provider).await;
    crate::common::Answer::read(answer.await.unwrap().unwrap()).await.assert_problem(503, "lost", true);
    events.dropped("handler").await;
    monitor.idle().await;
    assert_eq!((monitor.refused(Reason::Lost), monitor.granted()), (1, 1));
    assert!(provider.accounting().balances());
}

async fn detached_handlers_are_aborted_too(protocol: Protocol) {
    let provider = MemoryProvider::new();
    let (stage, mut events) = Stage::new();
    let visit = move || async move { stage.visit("handler").await };
    let app = Router::new().route("/visit", post(visit)).route_layer(layer(&provider).detach());
    let server = Server::start(app).await;
    let client = server.client(protocol).await;
    let answer = client.spawn_post("/visit");
    events.entered("handler").await;
    take_away(&provider).await;
    crate::common::Answer::read(answer.await.unwrap().unwrap()).await.assert_problem(503, "lost", true);
    events.dropped("handler").await;
}

async fn a_handler_that_continues_sees_the_loss(protocol: Protocol) {
    let provider = MemoryProvider::new();
    let (server, _, mut events) = serve(layer(&provider).on_loss(OnLoss::Continue)).await;
    let client = server.client(protocol).await;
    let answer = client.spawn_post("/watch");
    events.entered("watching").await;
    take_away(&provider).await;
    events.finished("watching").await;
    let answer = crate::common::Answer::read(answer.await.unwrap().unwrap()).await;
    assert_eq!((answer.status.as_u16(), answer.text()), (200, &*format!("{:?}", Loss::ForceReleased)));
}

async fn a_loss_ends_the_body_with_an_error(protocol: Protocol) {
    let provider = MemoryProvider::new();
    let (server, _, mut events) = serve(layer(&provider)).await;
    let client = server.client(protocol).await;
    let mut response = client.spawn_post("/stream").await.unwrap().unwrap();
    events.entered("body").await;
    assert_eq!(response.frame().await.unwrap().unwrap().into_data().unwrap(), "begin ");
    take_away(&provider).await;
    events.dropped("body").await;
    assert!(soon("the end", response.collect()).await.is_err());
}

async fn a_body_continues_by_choice(protocol: Protocol) {
    let provider = MemoryProvider::new();
    let (server, stage, mut events) = serve(layer(&provider).on_loss(OnLoss::Continue)).await;
    let client = server.client(protocol).await;
    let response = client.spawn_post("/stream").await.unwrap().unwrap();
    events.entered("body").await;
    take_away(&provider).await;
    stage.let_go(1);
    assert_eq!(crate::common::Answer::read(response).await.text(), "begin end");
}

async fn the_maximum_hold_aborts_the_handler(protocol: Protocol) {
    let provider = MemoryProvider::new();
    // Long enough for the handler to begin.
    let layer = layer(&provider).max_hold(Duration::from_secs(5));
    let (server, _, mut events) = serve(layer).await;
    server.client(protocol).await.post("/visit").await.assert_problem(503, "held-too-long", true);
    events.entered("handler").await;
    events.dropped("handler").await;
    assert_eq!(provider.keys_in_use(), 0);
}

async fn a_loss_that_the_store_pushes_aborts_the_handler(protocol: Protocol) {
    let store = MemoryStore::new();
    let locks = LockLayer::new(store.provider(), FixedKey::new("order/4711").unwrap());
    let (server, _, mut events) = serve(locks).await;
    let client = server.client(protocol).await;
    let answer = client.spawn_post("/visit");
    events.entered("handler").await;
    assert!(store.force_release("order/4711").is_some());
    crate::common::Answer::read(answer.await.unwrap().unwrap()).await.assert_problem(503, "lost", true);
    events.dropped("handler").await;
}
