//! A service whose routes share one lock.

use std::convert::Infallible;

use axum::Router;
use axum::body::Body;
use axum::extract::Path;
use axum::routing::post;
use bytes::Bytes;
use distlock_api::LockProvider;
use distlock_memory::MemoryProvider;
use distlock_tower::key::FixedKey;
use distlock_tower::{LockLayer, Monitor};
use futures_util::stream::{self, StreamExt};

use crate::common::{Events, Server, Stage, soon};

pub(crate) struct Play {
    pub(crate) server: Server,
    pub(crate) provider: MemoryProvider,
    pub(crate) monitor: Monitor,
    pub(crate) stage: Stage,
    pub(crate) events: Events,
}

/// `/visit/…` waits in the handler, `/stream/…` in the body, `/flood/…` sends more than a socket
/// accepts, `/panic/…` panics.
fn app(stage: &Stage) -> Router {
    let visit = {
        let stage = stage.clone();
        move |Path(id): Path<String>| async move { stage.visit(id).await }
    };
    let streaming = {
        let stage = stage.clone();
        move |Path(id): Path<String>| async move {
            let rest = stream::once(async move {
                stage.visit(id).await;
                Ok::<_, Infallible>("end")
            });
            Body::from_stream(stream::iter([Ok("begin ")]).chain(rest))
        }
    };
    let flood = || async {
        let chunk = Bytes::from(vec![b'x'; 1 << 20]);
        Body::from_stream(stream::iter(std::iter::repeat_n(Ok::<_, Infallible>(chunk), 64)))
    };
    let panicking = || async {
        if true {
            panic!("in the handler, as planned");
        }
    };
    let panic_in_body = || async {
        Body::from_stream(stream::iter(0..2).map(|step| match step {
            0 => Ok::<_, Infallible>("begin"),
            _ => panic!("in the body, as planned"),
        }))
    };
    Router::new()
        .route("/visit/{id}", post(visit))
        .route("/stream/{id}", post(streaming))
        .route("/flood/{id}", post(flood))
        .route("/panic/{id}", post(panicking))
        .route("/panic-in-body/{id}", post(panic_in_body))
}

/// All paths share one key.
pub(crate) fn one_key(provider: &MemoryProvider) -> LockLayer<FixedKey> {
    LockLayer::new(provider.clone(), FixedKey::new("the key").unwrap())
}

pub(crate) async fn play(layer: impl Fn(&MemoryProvider, Router) -> (Router, Monitor)) -> Play {
    let (stage, events) = Stage::new();
    let provider = MemoryProvider::new();
    let (app, monitor) = layer(&provider, app(&stage));
    Play { server: Server::start(app).await, provider, monitor, stage, events }
}

pub(crate) async fn attached() -> Play {
    play(|provider, app| {
        let layer = one_key(provider);
        let monitor = layer.monitor();
        (app.route_layer(layer), monitor)
    })
    .await
}

pub(crate) async fn detached() -> Play {
    play(|provider, app| {
        let layer = one_key(provider).detach();
        let monitor = layer.monitor();
        (app.route_layer(layer), monitor)
    })
    .await
}

impl Play {
    pub(crate) async fn assert_nothing_left(&self) {
        soon("idle", self.monitor.idle()).await;
        assert_eq!((self.monitor.waiting(), self.monitor.held()), (0, 0));
        let accounting = self.provider.accounting();
        assert!(accounting.balances() && accounting.held == 0 && accounting.waiting == 0, "{accounting:?}");
        assert_eq!(self.provider.keys_in_use(), 0);
    }
}
