//! Which types may cross threads, and that the traits are object-safe. Compiling is the test.

use std::sync::Arc;

use distlock_api::{
    Acquire, AcquireAll, AcquireFuture, Acquired, AllGuard, DistributedLock, FencedRegister, ForcedRelease,
    Instrumented, KeyTarget, LeaseHandle, ListOptions, Lock, LockAdmin, LockError, LockEvent, LockEvents, LockFilter,
    LockGuard, LockInfo, LockKey, LockList, LockProvider, LockProviderExt, LostSignal, Namespaced, ReleaseFuture,
    TryAcquireAll,
};
use distlock_engine::store::{AcquireOp, WriteOp};
use distlock_engine::{AcquiredLease, LeaseGuard, LeaseProvider, LeaseStore, NotCommitted};

fn is_send<T: Send>() {}
fn is_sync<T: Sync>() {}
fn is_static<T: 'static>() {}

macro_rules! table {
    ($($type:ty: $($check:ident),+;)*) => {
        $($($check::<$type>();)+)*
    };
}

#[test]
fn auto_traits() {
    table! {
        LockKey: is_send, is_sync, is_static;
        LockError: is_send, is_sync, is_static;
        LockGuard: is_send, is_sync, is_static;
        AllGuard: is_send, is_sync, is_static;
        Acquired: is_send, is_sync, is_static;
        LostSignal: is_send, is_sync, is_static;
        ReleaseFuture: is_send, is_static;
        LeaseProvider: is_send, is_sync, is_static;
        LeaseGuard: is_send, is_sync, is_static;
        AcquiredLease: is_send, is_sync, is_static;
        NotCommitted: is_send, is_sync, is_static;
        Arc<dyn AcquireOp>: is_send, is_sync, is_static;
        Arc<dyn WriteOp>: is_send, is_sync, is_static;
        Lock<Arc<dyn LockProvider>>: is_send, is_sync, is_static;
        Namespaced<Instrumented<Arc<dyn LockProvider>>>: is_send, is_sync, is_static;
        Acquire<KeyTarget<'_, dyn LockProvider>>: is_send;
        AcquireAll<'_, dyn LockProvider>: is_send;
        TryAcquireAll<'_, dyn LockProvider>: is_send;
        AcquireFuture<std::future::Ready<distlock_api::Result<Acquired>>>: is_send;
        Arc<dyn LockProvider>: is_send, is_sync, is_static;
        Arc<dyn DistributedLock>: is_send, is_sync, is_static;
        Arc<dyn LeaseStore>: is_send, is_sync, is_static;
        &dyn LockAdmin: is_send, is_sync;
        LockInfo: is_send, is_sync, is_static;
        LockEvent: is_send, is_sync, is_static;
        LockFilter: is_send, is_sync, is_static;
        ListOptions: is_send, is_sync, is_static;
        ForcedRelease: is_send, is_sync, is_static;
        LockEvents: is_send, is_static;
        LockList<'_>: is_send;
        FencedRegister<std::cell::Cell<u8>>: is_send, is_sync, is_static;
        Box<dyn LeaseHandle>: is_send, is_sync, is_static;
    }
}

#[test]
fn a_lock_of_a_provider_coerces_to_dyn() {
    let provider: Arc<dyn LockProvider> = Arc::new(distlock_memory::MemoryProvider::new());
    let lock: Arc<dyn DistributedLock> = Arc::new(provider.lock("k").unwrap());
    assert_eq!(lock.key().as_str(), "k");
}
