//! Clean-ups of tickets: a ticket lives by its own ttl, and its clean-up is repeated as long.

use std::future::IntoFuture;
use std::pin::pin;

use distlock_api::{ErrorKind, LeaseOptions, LockProvider, LockProviderExt};
use distlock_engine::LeaseProvider;
use distlock_memory::{MemoryStore, Operation};
use tokio::time::{sleep, timeout};

use crate::kit::{Deployment, ms, secs};

/// Ten times shorter than the life of a ticket.
fn process(store: &MemoryStore) -> LeaseProvider {
    let builder = store.provider_builder().lease(LeaseOptions::new().ttl(secs(2)));
    builder.request_timeout(secs(1)).build().unwrap()
}

async fn until_queued(store: &MemoryStore) {
    while store.waiting("k").is_empty() {
        sleep(ms(1)).await;
    }
}

/// The writer waits behind a reader, and leaves while its withdrawals fail for three times the ttl.
#[tokio::test(start_paused = true)]
async fn c11_a_ticket_is_withdrawn_although_that_fails_for_longer_than_a_lease_lasts() {
    let store = MemoryStore::new();
    let [reader, writer, next] = std::array::from_fn(|_| process(&store));
    let held = reader.acquire("k").shared().await.unwrap();
    let leaves = tokio::spawn({
        let writer = writer.clone();
        async move { writer.acquire("k").timeout(ms(2500)).await.map(drop) }
    });
    until_queued(&store).await;
    for operation in [Operation::TryAcquire, Operation::Release, Operation::Withdraw] {
        store.fail_always(operation, ErrorKind::Unavailable);
    }
    assert!(leaves.await.unwrap().is_err());
    sleep(secs(6)).await;
    assert_eq!(store.waiting("k").len(), 1);
    assert!(writer.accounting().unsettled > 0, "the ticket is still there: {:?}", writer.accounting());
    store.clear_faults();
    // Before the ticket dies.
    let acquired = timeout(secs(3), next.acquire("k").shared().into_future()).await;
    let _next = acquired.expect("the ticket of a caller that has left stays").unwrap();
    assert_eq!((writer.accounting().unsettled, held.loss()), (0, None));
}

/// A waiter that is not polled does not withdraw its ticket, so `close` does.
#[tokio::test(start_paused = true)]
async fn c24_closing_repeats_the_withdrawal_of_a_ticket() {
    let store = MemoryStore::new();
    let [holder, waiter] = std::array::from_fn(|_| process(&store));
    let _held = holder.acquire("k").await.unwrap();
    let mut waiting = pin!(waiter.acquire("k").into_future());
    assert!(timeout(ms(10), waiting.as_mut()).await.is_err());
    assert_eq!(store.waiting("k").len(), 1);
    store.fail_next(Operation::Withdraw, ErrorKind::Unavailable);
    waiter.close().await.unwrap();
    assert!(store.waiting("k").is_empty(), "the ticket stays for its ttl");
}
