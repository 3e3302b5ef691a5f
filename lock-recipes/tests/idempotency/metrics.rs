//! What a recorder gets.

use std::convert::Infallible;

use bytes::Bytes;
use distlock_memory::MemoryOnce;
use distlock_recipes::idempotency::IdempotencyLayer;
use http::{Request, Response};
use http_body_util::Full;
use metrics_util::debugging::{DebugValue, DebuggingRecorder};
use tower::{Layer, ServiceExt, service_fn};

#[tokio::test]
async fn idempotent_requests_are_counted_by_their_events() {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    let _installed = metrics::set_default_local_recorder(&recorder);
    let layer = IdempotencyLayer::for_everyone(MemoryOnce::new()).class("payments").required();
    let service = layer.layer(service_fn(|_: Request<Full<Bytes>>| async {
        Ok::<_, Infallible>(Response::new(Full::<Bytes>::from("done")))
    }));
    for (key, body) in [(Some("k"), "a"), (Some("k"), "a"), (Some("k"), "b"), (None, "a")] {
        let mut request = Request::post("/").body(Full::from(body)).unwrap();
        if let Some(key) = key {
            request.headers_mut().insert("idempotency-key", key.parse().unwrap());
        }
        service.clone().oneshot(request).await.unwrap();
    }
    let mut events = Vec::new();
    for (key, _, _, value) in snapshotter.snapshot().into_vec() {
        let key = key.key();
        assert!(key.labels().any(|label| (label.key(), label.value()) == ("class", "payments")), "{key:?}");
        if let ("distlock_idempotency_total", DebugValue::Counter(count)) = (key.name(), value) {
            let event = key.labels().find(|label| label.key() == "event").unwrap().value().to_owned();
            events.push((event, count));
        }
    }
    events.retain(|(_, count)| *count > 0);
    events.sort();
    let expected = ["begun", "idempotency-key-missing", "idempotency-key-reused", "replayed"];
    assert_eq!(events, expected.map(|event| (event.to_owned(), 1)));
}
