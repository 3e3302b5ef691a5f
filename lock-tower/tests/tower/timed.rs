//! For tests on paused time: a service that works for a while, behind a layer with one key.

use std::convert::Infallible;
use std::time::Duration;

use bytes::Bytes;
use distlock_tower::http::LockBody;
use distlock_tower::key::FixedKey;
use http::{Request, Response};
use http_body_util::Full;
use tokio::time::sleep;
use tower::{Service, service_fn};

pub(crate) const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

pub(crate) const fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

pub(crate) fn key() -> FixedKey {
    FixedKey::new("key").unwrap()
}

pub(crate) fn post() -> Request<()> {
    Request::post("/").body(()).unwrap()
}

/// A service that works for a while, then answers with a body.
pub(crate) fn working(
    work: Duration,
) -> impl Service<Request<()>, Response = Response<Full<Bytes>>, Error = Infallible, Future: Send> + Clone + Send {
    service_fn(move |_| async move {
        sleep(work).await;
        Ok(Response::new(Full::from("done")))
    })
}

pub(crate) async fn status<B>(
    response: impl Future<Output = Result<Response<LockBody<B>>, Infallible>>,
) -> (u16, Option<u64>) {
    let response = response.await.unwrap();
    let retry = response.headers().get("retry-after").map(|value| value.to_str().unwrap().parse().unwrap());
    (response.status().as_u16(), retry)
}
