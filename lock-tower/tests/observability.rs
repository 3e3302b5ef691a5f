//! Logs, spans and metrics: what they contain, and what they must not disclose.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use distlock_api::{ErrorKind, LockError, LockKey, LockProviderExt};
use distlock_memory::{MemoryProvider, MemoryStore, Operation};
use distlock_tower::LockLayer;
use http::request::Parts;
use http::{Request, Response};
use http_body_util::Full;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Mutex;
use tokio::time::sleep;
use tower::{Layer, ServiceExt, service_fn};
use tower_http::trace::{DefaultMakeSpan, TraceLayer};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::fmt::format::FmtSpan;

/// Only one test runs at a time. While there is a single subscriber, a span that is first used on a
/// thread without it stays disabled everywhere.
static ALONE: Mutex<()> = Mutex::const_new(());

/// What was logged.
#[derive(Clone, Default)]
struct Log(Arc<std::sync::Mutex<Vec<u8>>>);

impl Log {
    fn subscribe(&self, most: tracing::Level) -> tracing::subscriber::DefaultGuard {
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(most)
            .with_ansi(false)
            .with_span_events(FmtSpan::CLOSE)
            .with_writer(self.clone())
            .finish();
        tracing::subscriber::set_default(subscriber)
    }

    fn lines(&self, containing: &str) -> Vec<String> {
        let text = String::from_utf8(self.0.lock().unwrap().clone()).unwrap();
        text.lines().filter(|line| line.contains(containing)).map(str::to_owned).collect()
    }
}

impl io::Write for Log {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(text)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for Log {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        self.clone()
    }
}

fn by_path(parts: &mut Parts) -> Result<Option<LockKey>, LockError> {
    LockKey::new(parts.uri.path()).map(Some)
}

fn post() -> Request<()> {
    Request::post("/orders/4711").body(()).unwrap()
}

async fn handler(_: Request<()>) -> Result<Response<Full<Bytes>>, Infallible> {
    sleep(Duration::from_millis(30)).await;
    Ok(Response::default())
}

#[tokio::test(start_paused = true)]
async fn the_span_has_class_wait_hold_and_outcome_but_not_the_key() {
    let _alone = ALONE.lock().await;
    let log = Log::default();
    let _subscribed = log.subscribe(tracing::Level::INFO);
    let locks = MemoryProvider::new();
    let service = LockLayer::new(locks.clone(), by_path).class("orders").layer(service_fn(handler));
    let held = locks.acquire("/orders/4711").await.unwrap();
    let first = tokio::spawn(service.clone().oneshot(post()));
    sleep(Duration::from_millis(20)).await;
    drop(held);
    first.await.unwrap().unwrap();
    let spans = log.lines("distlock.request");
    let [span] = &*spans else { panic!("{spans:?}") };
    for field in ["lock.class=orders", "lock.wait_ms=20", "lock.hold_ms=30", "lock.outcome=\"released\""] {
        assert!(span.contains(field), "{field} is missing: {span}");
    }
    assert!(log.lines("4711").is_empty());

    let _held = locks.acquire("/orders/4711").await.unwrap();
    service.oneshot(post()).await.unwrap();
    assert!(log.lines("lock.outcome=\"timeout\"").len() == 1 && log.lines("4711").is_empty());
}

/// A request would wait for itself: the log names both layers, and no key.
#[tokio::test(start_paused = true)]
async fn two_layers_with_one_key_are_both_named() {
    let _alone = ALONE.lock().await;
    let log = Log::default();
    let _subscribed = log.subscribe(tracing::Level::INFO);
    let locks = MemoryProvider::new();
    let layer = |class: &'static str| LockLayer::new(locks.clone(), by_path).class(class);
    let service = layer("orders").layer(layer("order-lines").layer(service_fn(handler)));
    assert_eq!(service.oneshot(post()).await.unwrap().status(), 500);
    let errors = log.lines("ERROR");
    let [error] = &*errors else { panic!("{errors:?}") };
    for part in ["lock.class=order-lines", "lock.outer_class=orders", "would wait for itself"] {
        assert!(error.contains(part), "{part} is missing: {error}");
    }
    assert!(log.lines("4711").is_empty());
}

/// Over real TCP. Outside, the span of a request that is locked is a child of the server's, and the
/// layer sees refusals. Inside, neither.
#[tokio::test]
async fn tracing_outside_sees_refusals() {
    let _alone = ALONE.lock().await;
    for outside in [true, false] {
        let log = Log::default();
        let _subscribed = log.subscribe(tracing::Level::INFO);
        let locks = MemoryProvider::new();
        let lock = LockLayer::new(locks.clone(), by_path).wait_up_to(Duration::from_millis(10));
        let trace = TraceLayer::new_for_http().make_span_with(DefaultMakeSpan::new().level(tracing::Level::INFO));
        let app = axum::Router::new().route("/orders/{id}", axum::routing::post(|| async {}));
        let app = match outside {
            true => app.route_layer(lock).layer(trace),
            false => app.route_layer(trace).route_layer(lock),
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let serving = tokio::spawn(async move { axum::serve(listener, app).await });
        let elsewhere = locks.acquire("/orders/4711").await.unwrap();
        assert_eq!(status_over_tcp(address).await, "503");
        drop(elsewhere);
        assert_eq!(status_over_tcp(address).await, "200");
        serving.abort();
        let spans = log.lines("distlock.request");
        assert_eq!(spans.len(), 2, "{spans:?}");
        for span in spans {
            assert_eq!(span.contains("request{method=POST"), outside, "{span}");
        }
        assert_eq!(log.lines("response failed").len(), usize::from(outside));
    }
}

async fn status_over_tcp(address: SocketAddr) -> String {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    let mut io = TcpStream::connect(address).await.unwrap();
    let request = "POST /orders/4711 HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
    io.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    io.read_to_string(&mut answer).await.unwrap();
    answer.split(' ').nth(1).unwrap().to_owned()
}

#[tokio::test(start_paused = true)]
async fn holds_that_end_otherwise_say_how() {
    let _alone = ALONE.lock().await;
    let log = Log::default();
    let _subscribed = log.subscribe(tracing::Level::INFO);
    let layer = LockLayer::new(MemoryProvider::new(), by_path).max_hold(Duration::from_millis(50));
    let panicking = layer.layer(service_fn(|_: Request<()>| async {
        if true {
            panic!("as planned");
        }
        Ok::<_, Infallible>(Response::<Full<Bytes>>::default())
    }));
    assert!(tokio::spawn(panicking.oneshot(post())).await.unwrap_err().is_panic());
    let cancelled = tokio::time::timeout(Duration::from_millis(10), layer.layer(service_fn(handler)).oneshot(post()));
    assert!(cancelled.await.is_err());
    let endless =
        layer.layer(service_fn(|_: Request<()>| std::future::pending::<Result<Response<Full<Bytes>>, Infallible>>()));
    assert_eq!(endless.oneshot(post()).await.unwrap().status(), 503);
    assert_eq!(log.lines("it waits for itself").len(), 1);
    let outcomes = log.lines("distlock.request");
    assert_eq!(outcomes.len(), 3, "{outcomes:?}");
    for (line, outcome) in outcomes.iter().zip(["panicked", "cancelled", "held-too-long"]) {
        assert!(line.contains(&format!("lock.outcome=\"{outcome}\"")), "{line}");
        assert_eq!(line.contains("otel.status_code=\"ERROR\""), outcome != "cancelled", "{line}");
    }
}

#[tokio::test(start_paused = true)]
async fn every_use_of_fail_open_is_a_warning() {
    let _alone = ALONE.lock().await;
    let log = Log::default();
    let _subscribed = log.subscribe(tracing::Level::WARN);
    let store = MemoryStore::new();
    store.fail_always(Operation::TryAcquire, ErrorKind::Unavailable);
    let layer = LockLayer::new(store.provider(), by_path).fail_fast().fail_open();
    let service = layer.layer(service_fn(handler));
    for used in 1..=3 {
        assert_eq!(service.clone().oneshot(post()).await.unwrap().status(), 200);
        assert_eq!(log.lines("WITHOUT a lock").len(), used);
    }
    assert!(log.lines("WITHOUT a lock")[0].contains("WARN"));
}

#[tokio::test]
async fn a_misconfigured_layer_is_an_error_in_the_log() {
    let _alone = ALONE.lock().await;
    let log = Log::default();
    let _subscribed = log.subscribe(tracing::Level::WARN);
    let nowhere =
        |_: &mut Parts| Err::<Option<LockKey>, _>(distlock_tower::KeyRejection::misconfigured("no such header"));
    let service = LockLayer::new(MemoryProvider::new(), nowhere).layer(service_fn(handler));
    assert_eq!(service.oneshot(post()).await.unwrap().status(), 500);
    assert!(log.lines("ERROR").len() == 1 && log.lines("no such header").len() == 1);
}

#[cfg(feature = "metrics")]
#[test]
fn metrics_count_waits_holds_refusals_and_the_queue() {
    let _alone = ALONE.blocking_lock();
    use std::collections::BTreeMap;

    use metrics_util::debugging::{DebugValue, DebuggingRecorder};

    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    let mut amid = Vec::new();
    metrics::with_local_recorder(&recorder, || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let layer = LockLayer::new(MemoryProvider::new(), by_path).class("orders").max_waiters(1);
            let service = layer.layer(service_fn(handler));
            let calls = [(); 3].map(|()| tokio::spawn(service.clone().oneshot(post())));
            sleep(Duration::from_millis(1)).await;
            amid = snapshotter.snapshot().into_vec();
            for call in calls {
                call.await.unwrap().unwrap();
            }
        });
    });
    // A snapshot resets the metrics, so the second one has only what came after the first.
    let mut samples = BTreeMap::<String, usize>::new();
    let mut name = |key: &metrics_util::CompositeKey, value: &DebugValue| {
        let labels: Vec<_> = key.key().labels().map(|label| label.value().to_owned()).collect();
        assert!(!labels.iter().any(|label| label.contains("4711")), "a key is no label");
        let name = format!("{} {}", key.key().name(), labels.join(" "));
        if let DebugValue::Histogram(values) = value {
            *samples.entry(name.clone()).or_default() += values.len();
        }
        name
    };
    let amid: BTreeMap<_, _> = amid.into_iter().map(|(key, _, _, value)| (name(&key, &value), value)).collect();
    let seen = snapshotter.snapshot().into_vec().into_iter();
    let seen: BTreeMap<_, _> = seen.map(|(key, _, _, value)| (name(&key, &value), value)).collect();
    assert_eq!(amid["distlock_tower_queue_depth orders"], DebugValue::Gauge(1.0.into()));
    assert_eq!(samples["distlock_tower_wait_seconds orders held"], 2);
    assert_eq!(samples["distlock_tower_wait_seconds orders full"], 1);
    assert_eq!(samples["distlock_tower_hold_seconds orders released"], 2);
    assert_eq!(amid["distlock_tower_refusals_total orders full"], DebugValue::Counter(1));
    assert_eq!(seen["distlock_tower_queue_depth orders"], DebugValue::Gauge((-1.0).into()));
}

#[cfg(feature = "metrics")]
#[test]
fn a_recorder_that_panics_costs_no_request() {
    use metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, SharedString, Unit};

    /// A recorder that panics at every metric.
    struct Panicking;

    impl metrics::Recorder for Panicking {
        fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

        fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

        fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

        fn register_counter(&self, _: &Key, _: &Metadata<'_>) -> Counter {
            panic!("a recorder that panics")
        }

        fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
            panic!("a recorder that panics")
        }

        fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
            panic!("a recorder that panics")
        }
    }

    let _alone = ALONE.blocking_lock();
    metrics::with_local_recorder(&Panicking, || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let layer = LockLayer::new(MemoryProvider::new(), by_path).class("orders").max_waiters(1);
            let service = layer.layer(service_fn(handler));
            let calls = [(); 3].map(|()| tokio::spawn(service.clone().oneshot(post())));
            let mut statuses = Vec::new();
            for call in calls {
                statuses.push(call.await.unwrap().unwrap().status().as_u16());
            }
            assert_eq!(statuses, [200, 200, 503]);
            assert_eq!(service.oneshot(post()).await.unwrap().status(), 200, "the key is free");
        });
    });
}
