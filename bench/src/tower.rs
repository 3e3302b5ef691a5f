//! A service without a network, for what the middleware adds to its requests.

use std::convert::Infallible;

use bytes::Bytes;
use distlock_api::{LockError, LockKey};
use http::request::Parts;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use tower::{Service, ServiceExt};

/// Answers at once.
pub async fn serve(_: Request<()>) -> Result<Response<Full<Bytes>>, Infallible> {
    Ok(Response::new(Full::from("done")))
}

/// A lock for each path.
pub fn per_path(parts: &mut Parts) -> Result<Option<LockKey>, LockError> {
    Ok(Some(LockKey::new(parts.uri.path())?))
}

/// One request from the head to the end of the body.
pub async fn request<S, B>(service: &mut S)
where
    S: Service<Request<()>, Response = Response<B>, Error = Infallible>,
    B: http_body::Body<Data: Send, Error: std::fmt::Debug> + Unpin,
{
    let request = Request::post("/orders/4711").body(()).expect("a valid request");
    let response = service.ready().await.expect("infallible").call(request).await.expect("infallible");
    let mut body = response.into_body();
    while let Some(frame) = body.frame().await {
        frame.expect("no error");
    }
}
