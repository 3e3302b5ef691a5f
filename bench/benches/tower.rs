//! What `LockLayer` adds to a request that nobody competes with, over the bare service, without a network.

use std::convert::Infallible;
use std::sync::Arc;

use bytes::Bytes;
use criterion::{Criterion, criterion_group, criterion_main};
use distlock_api::{LockError, LockKey, LockProvider};
use distlock_memory::MemoryProvider;
use distlock_tower::LockLayer;
use http::request::Parts;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use tower::{Layer, Service, ServiceExt, service_fn};

async fn serve(_: Request<()>) -> Result<Response<Full<Bytes>>, Infallible> {
    Ok(Response::new(Full::from("done")))
}

fn per_path(parts: &mut Parts) -> Result<Option<LockKey>, LockError> {
    Ok(Some(LockKey::new(parts.uri.path())?))
}

/// One request from the head to the end of the body.
async fn request<S, B>(service: &mut S)
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

fn tower(criterion: &mut Criterion) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let locks: Arc<dyn LockProvider> = Arc::new(MemoryProvider::new());
    let mut group = criterion.benchmark_group("request");
    let mut bare = service_fn(serve);
    group.bench_function("bare", |bencher| bencher.iter(|| runtime.block_on(request(&mut bare))));
    let mut locked = LockLayer::new(locks.clone(), per_path).layer(service_fn(serve));
    group.bench_function("locked", |bencher| bencher.iter(|| runtime.block_on(request(&mut locked))));
    let mut detached = LockLayer::new(locks, per_path).detach().layer(service_fn(serve));
    group.bench_function("locked, detached", |bencher| bencher.iter(|| runtime.block_on(request(&mut detached))));
    group.finish();
}

criterion_group!(benches, tower);
criterion_main!(benches);
