//! What a million keys, each used once, leave in memory. Run with
//! `cargo run --release --bin leftovers`.

use std::alloc::System;

use distlock_api::LockKey;
use distlock_bench::{Contender, Fluent, Keyed, Lockable};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const KEYS: usize = 1_000_000;

async fn one_after_the_other<C: Contender>() {
    let locks = C::default();
    locks.locked(&LockKey::new("warm up").expect("a valid key"), || ()).await;
    let region = Region::new(ALLOCATOR);
    for number in 0..KEYS {
        let key = LockKey::new(format!("orders/{number}")).expect("a valid key");
        locks.locked(&key, || ()).await;
    }
    report(C::NAME, &region, "one after the other");
}

fn report(name: &str, region: &Region<'_, System>, how: &str) {
    let change = region.change();
    let left = change.bytes_allocated as isize - change.bytes_deallocated as isize + change.bytes_reallocated;
    println!("{name:24} {KEYS} keys {how}: {left} bytes left");
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    one_after_the_other::<Keyed>().await;
    one_after_the_other::<Lockable>().await;
    one_after_the_other::<Fluent>().await;
    all_at_once().await;
}

/// A million guards alive together, then none.
async fn all_at_once() {
    use distlock_api::LockProviderExt;

    let locks = distlock_memory::MemoryProvider::new();
    let region = Region::new(ALLOCATOR);
    let mut guards = Vec::with_capacity(KEYS);
    for number in 0..KEYS {
        guards.push(locks.acquire(format!("orders/{number}")).await.expect("a free key"));
    }
    report("distlock, all held", &region, "all at once");
    drop(guards);
    report("distlock, none held", &region, "all at once");
}
