//! On paused time and without a router: waits, outages, outcomes that cannot be read.

use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use distlock_api::{ErrorKind, LockError, LockKey};
use distlock_memory::MemoryOnce;
use distlock_recipes::idempotency::{IdempotencyLayer, Reason};
use distlock_recipes::once::{Once, OnceOptions, OnceProvider, OnceProviderExt, OnceRecord};
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use tokio::time::{Instant, sleep};
use tower::{Layer, Service, ServiceExt, service_fn};

const fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

fn pay(key: &str) -> Request<Full<Bytes>> {
    Request::post("/pay").header("idempotency-key", key).body(Full::from("5 EUR")).unwrap()
}

/// Works for a while, then answers with the number of the call.
fn working(
    work: Duration,
) -> impl Service<Request<Full<Bytes>>, Response = Response<Full<Bytes>>, Error = Infallible, Future: Send> + Clone + Send
{
    let calls = Arc::new(AtomicUsize::new(0));
    service_fn(move |_| {
        let calls = calls.clone();
        async move {
            sleep(work).await;
            let call = calls.fetch_add(1, Ordering::SeqCst) + 1;
            Ok(Response::new(Full::from(format!("call {call}"))))
        }
    })
}

#[derive(Debug, PartialEq, Eq)]
struct Seen {
    status: u16,
    text: String,
    retry: Option<String>,
    replayed: bool,
    mark: Option<String>,
}

async fn seen<B>(answer: impl Future<Output = Result<Response<B>, Infallible>>) -> Seen
where
    B: http_body::Body<Data = Bytes, Error: fmt::Debug>,
{
    let response = answer.await.unwrap();
    let header =
        |name| response.headers().get(name).map(|value: &http::HeaderValue| value.to_str().unwrap().to_owned());
    let (retry, replayed, mark) =
        (header("retry-after"), header("idempotent-replayed").is_some(), header("idempotency-status"));
    let status = response.status().as_u16();
    let text = String::from_utf8(response.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap();
    Seen { status, text, retry, replayed, mark }
}

#[tokio::test(start_paused = true)]
async fn too_many_duplicates_are_refused_at_once() {
    for (limit, layer) in [
        (100, IdempotencyLayer::for_everyone(MemoryOnce::new())),
        (2, IdempotencyLayer::for_everyone(MemoryOnce::new()).max_waiters_per_key(2)),
    ] {
        let layer = layer.wait_up_to(secs(60));
        let monitor = layer.monitor();
        let service = layer.layer(working(secs(30)));
        let send = |key: &str| tokio::spawn(seen(service.clone().oneshot(pay(key))));
        let first = send("k");
        tokio::task::yield_now().await;
        let waiting: Vec<_> = (0..limit).map(|_| send("k")).collect();
        while monitor.waiting() < limit {
            tokio::task::yield_now().await;
        }
        let began = Instant::now();
        let refused = send("k").await.unwrap();
        assert_eq!((refused.status, refused.retry.as_deref(), began.elapsed()), (409, Some("1"), secs(0)));
        assert!(refused.text.contains("request-under-way"), "{refused:?}");
        let other = send("other");
        assert_eq!(first.await.unwrap().text, "call 1");
        for duplicate in waiting {
            let duplicate = duplicate.await.unwrap();
            assert_eq!((duplicate.text.as_str(), duplicate.replayed), ("call 1", true));
        }
        assert_eq!(other.await.unwrap().text, "call 2", "another key is not affected");
        assert_eq!((monitor.waiting(), monitor.refused(Reason::UnderWay)), (0, 1));
        assert!(send("k").await.unwrap().replayed);
    }
}

/// Without a setting, a body may take half a minute.
#[tokio::test(start_paused = true)]
async fn a_body_that_does_not_come_is_given_up_after_half_a_minute() {
    let layer = IdempotencyLayer::for_everyone(MemoryOnce::new());
    let monitor = layer.monitor();
    let service = layer.layer(service_fn(|_: Request<axum::body::Body>| async {
        Ok::<_, Infallible>(Response::new(Full::<Bytes>::from("done")))
    }));
    let unfinished = axum::body::Body::from_stream(futures_util::stream::pending::<Result<Bytes, Infallible>>());
    let request = Request::post("/pay").header("idempotency-key", "k").body(unfinished).unwrap();
    let began = Instant::now();
    let refused = seen(service.oneshot(request)).await;
    assert_eq!((refused.status, began.elapsed().as_secs(), monitor.begun()), (408, 30, 0));
}

#[tokio::test(start_paused = true)]
async fn a_duplicate_waits_up_to_the_bound() {
    let layer = IdempotencyLayer::for_everyone(MemoryOnce::new()).wait_up_to(secs(5));
    let monitor = layer.monitor();
    let service = layer.layer(working(secs(60)));
    let first = tokio::spawn(seen(service.clone().oneshot(pay("k"))));
    tokio::task::yield_now().await;
    let began = Instant::now();
    let duplicate = seen(service.clone().oneshot(pay("k"))).await;
    assert_eq!((duplicate.status, duplicate.retry.as_deref(), began.elapsed()), (409, Some("1"), secs(5)));
    assert!(duplicate.text.contains("request-under-way"), "{duplicate:?}");
    sleep(secs(52)).await;
    let duplicate = seen(service.clone().oneshot(pay("k"))).await;
    assert_eq!((duplicate.status, duplicate.text.as_str(), duplicate.replayed), (200, "call 1", true));
    assert_eq!(began.elapsed(), secs(60));
    assert_eq!(first.await.unwrap().text, "call 1");
    assert_eq!((monitor.begun(), monitor.replayed(), monitor.refused(Reason::UnderWay)), (1, 1, 1));
}

#[tokio::test(start_paused = true)]
async fn an_outcome_is_forgotten_after_its_time() {
    let layer = IdempotencyLayer::for_everyone(MemoryOnce::new()).keep(secs(60));
    let service = layer.layer(working(secs(0)));
    for (wait, text) in [(0, "call 1"), (59, "call 1"), (2, "call 2")] {
        sleep(secs(wait)).await;
        assert_eq!(seen(service.clone().oneshot(pay("k"))).await.text, text);
    }
}

#[tokio::test]
async fn an_outcome_of_another_version_is_never_sent() {
    let once = MemoryOnce::new();
    let layer = IdempotencyLayer::for_everyone(once.clone());
    let (monitor, service) = (layer.monitor(), layer.layer(working(secs(0))));
    for (key, value) in [("a", &b"\x02\x01\x00\xc8secret"[..]), ("b", b""), ("c", b"\x01\x01\x00\xc8secret")] {
        let Once::Begun(mut work) = once.once(format!("idempotency/*/POST/~%2Fpay/{key}")).await.unwrap() else {
            panic!("it is new");
        };
        work.complete(value).await.unwrap();
        let answer = seen(service.clone().oneshot(pay(key))).await;
        assert!(answer.status == 500 && answer.text.contains("outcome-corrupt"), "{answer:?}");
        assert!(!answer.text.contains("secret"));
    }
    assert_eq!((monitor.refused(Reason::Corrupt), monitor.begun()), (3, 0));
}

/// A store that cannot be reached, or answers with another error.
#[derive(Debug)]
struct Down(ErrorKind);

impl fmt::Display for Down {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a store that is down")
    }
}

#[async_trait]
impl OnceProvider for Down {
    async fn once_with(&self, _: LockKey, _: OnceOptions) -> Result<Once, LockError> {
        Err(LockError::new(self.0, "secret-host refused"))
    }

    async fn inspect(&self, _: &LockKey) -> Result<OnceRecord, LockError> {
        Err(LockError::new(self.0, "secret-host refused"))
    }

    async fn close(&self) -> Result<(), LockError> {
        Ok(())
    }
}

#[tokio::test]
async fn an_outage_is_refused_or_passed() {
    let ask = |layer: IdempotencyLayer| seen(layer.layer(working(secs(0))).oneshot(pay("k")));
    let refused = ask(IdempotencyLayer::for_everyone(Down(ErrorKind::Unavailable))).await;
    assert_eq!((refused.status, refused.retry.as_deref()), (503, Some("5")));
    assert!(refused.text.contains("problem:unavailable") && !refused.text.contains("secret"), "{refused:?}");
    let layer = IdempotencyLayer::for_everyone(Down(ErrorKind::Unavailable)).fail_open();
    let monitor = layer.monitor();
    let passed = ask(layer).await;
    assert_eq!((passed.status, passed.text.as_str(), passed.mark.as_deref()), (200, "call 1", Some("not-covered")));
    assert_eq!((monitor.failed_open(), monitor.begun()), (1, 0));
    for (kind, status) in [(ErrorKind::Closed, 503), (ErrorKind::PermissionDenied, 500), (ErrorKind::Corrupt, 500)] {
        let answer = ask(IdempotencyLayer::for_everyone(Down(kind)).fail_open()).await;
        assert_eq!((answer.status, answer.mark), (status, None), "an answer is no outage: {kind:?}");
    }
}

#[tokio::test]
async fn refusals_are_answered_as_the_application_says() {
    let layer = || IdempotencyLayer::for_everyone(MemoryOnce::new()).required();
    let without = || Request::post("/pay").body(Full::<Bytes>::default()).unwrap();
    let other = layer().status(Reason::KeyMissing, StatusCode::PRECONDITION_REQUIRED);
    assert_eq!(seen(other.layer(working(secs(0))).oneshot(without())).await.status, 428);
    let own = layer().refuse_with(|refusal| Response::new(Bytes::from(refusal.reason().as_str())));
    let answer = seen(own.layer(working(secs(0))).oneshot(without())).await;
    assert_eq!((answer.status, answer.text.as_str()), (200, "idempotency-key-missing"));
}

/// A body that gives these frames, and says nothing of its length unless it is told to.
struct Frames(Vec<Result<http_body::Frame<Bytes>, &'static str>>, Option<u64>);

impl http_body::Body for Frames {
    type Data = Bytes;
    type Error = &'static str;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<http_body::Frame<Bytes>, &'static str>>> {
        let next = (!self.0.is_empty()).then(|| self.0.remove(0));
        std::task::Poll::Ready(next)
    }

    fn size_hint(&self) -> http_body::SizeHint {
        self.1.map_or_else(http_body::SizeHint::new, http_body::SizeHint::with_exact)
    }
}

impl From<Bytes> for Frames {
    fn from(data: Bytes) -> Self {
        Self(vec![Ok(http_body::Frame::data(data))], None)
    }
}

fn data(text: &'static str) -> Result<http_body::Frame<Bytes>, &'static str> {
    Ok(http_body::Frame::data(Bytes::from_static(text.as_bytes())))
}

#[tokio::test]
async fn a_request_that_breaks_off_or_grows_too_long_is_not_begun() {
    let layer = IdempotencyLayer::for_everyone(MemoryOnce::new()).max_request_body(8);
    let monitor = layer.monitor();
    let service = layer.layer(service_fn(|request: Request<Frames>| async move {
        let body = request.into_body().collect().await.unwrap().to_bytes();
        Ok::<_, Infallible>(Response::new(Full::new(body)))
    }));
    let send = |frames| {
        let request = Request::post("/").header("idempotency-key", "k").body(Frames(frames, None)).unwrap();
        seen(service.clone().oneshot(request))
    };
    let broken = send(vec![data("1234"), Err("gone")]).await;
    assert!(broken.status == 400 && broken.text.contains("body-unreadable"), "{broken:?}");
    let long = send(vec![data("12345678"), data("9")]).await;
    assert!(long.status == 413 && long.text.contains("body-too-long"), "{long:?}");
    assert_eq!(monitor.begun(), 0);
    assert_eq!(send(vec![data("1234"), data("5678")]).await.text, "12345678");
    assert!(send(vec![data("12345678")]).await.replayed, "the division into frames does not count");
}

#[tokio::test]
async fn answers_with_trailers_or_errors_count_as_done() {
    let layer = IdempotencyLayer::for_everyone(MemoryOnce::new());
    let service = layer.layer(service_fn(|request: Request<Full<Bytes>>| async move {
        let last = match request.uri().path() {
            "/trailers" => {
                Ok(http_body::Frame::trailers([(http::header::ETAG, "\"a\"".parse().unwrap())].into_iter().collect()))
            }
            _ => Err("broken"),
        };
        Ok::<_, Infallible>(Response::new(Frames(vec![data("1234"), last], Some(4))))
    }));
    let send = |path: &str| {
        let request = Request::post(path).header("idempotency-key", "k").body(Full::from("x")).unwrap();
        service.clone().oneshot(request)
    };
    let whole = send("/trailers").await.unwrap();
    assert_eq!(whole.headers()["idempotency-status"], "not-kept");
    let whole = whole.into_body().collect().await.unwrap();
    assert_eq!(whole.trailers().unwrap()["etag"], "\"a\"");
    assert_eq!(whole.to_bytes(), "1234");
    let broken = send("/error").await.unwrap();
    assert_eq!(broken.headers()["idempotency-status"], "not-kept");
    assert_eq!(broken.into_body().collect().await.unwrap_err(), "broken");
    for path in ["/trailers", "/error"] {
        let again = seen(send(path)).await;
        assert!(again.status == 409 && again.text.contains("answer-not-kept"), "{again:?}");
    }
}

/// A client that repeats a refused request at once does not stop the timers of its runtime.
#[tokio::test]
async fn c18_a_refused_request_lets_other_tasks_run() {
    let service = IdempotencyLayer::for_everyone(MemoryOnce::new()).required().layer(working(secs(0)));
    let without_key = Request::post("/pay").body(Full::<Bytes>::default()).unwrap();
    let mut refused = std::pin::pin!(seen(service.oneshot(without_key)));
    assert!(futures_util::poll!(refused.as_mut()).is_pending());
    assert_eq!(refused.await.status, 400);
}
