//! What `LockLayer` adds to a request without contention, over the bare service, without a
//! network.

use std::sync::Arc;

use criterion::{Criterion, criterion_group, criterion_main};
use distlock_api::LockProvider;
use distlock_bench::tower::{per_path, request, serve};
use distlock_memory::MemoryProvider;
use distlock_tower::LockLayer;
use tower::{Layer, service_fn};

fn middleware(criterion: &mut Criterion) {
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

criterion_group!(benches, middleware);
criterion_main!(benches);
