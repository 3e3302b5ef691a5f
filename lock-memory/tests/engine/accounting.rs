//! The accounting (C23): what is settled in the background, and what is abandoned.

use std::sync::Arc;

use distlock_api::{LockProvider, LockProviderExt, Loss};
use distlock_memory::Operation;
use tokio::time::{Instant, sleep, timeout};

use crate::kit::{acquire, ms, provider, quick_setup};
use crate::store::{Fate, ScriptedStore};

#[tokio::test(start_paused = true)]
async fn c23_what_is_settled_in_the_background_is_counted() {
    let store = Arc::new(ScriptedStore::new(|op, _, nth| match (op, nth) {
        (Operation::TryAcquire, 1) | (Operation::Withdraw, 1) => Fate::Late(ms(300)),
        _ => Fate::Serve,
    }));
    let provider = provider(&store);
    let unsettled = || provider.accounting().unsettled;
    assert!(timeout(ms(100), provider.acquire("k")).await.is_err());
    assert_eq!(provider.accounting().waiting, 0);
    assert_eq!(unsettled(), 1);
    sleep(ms(400)).await;
    assert_eq!(unsettled(), 1, "the grant is withdrawn");
    sleep(ms(200)).await;
    assert_eq!(unsettled(), 0);
    assert_eq!((store.count(Operation::TryAcquire), store.count(Operation::Withdraw)), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn c23_an_abandoned_lease_is_neither_renewed_nor_released_and_keeps_others_out_until_its_ttl_ends() {
    let (store, [provider]) = quick_setup();
    let guard = acquire(&provider, "k").await;
    sleep(ms(400)).await; // renewed once
    let renewals = store.calls(Operation::Renew);
    let next = tokio::spawn({
        let provider = provider.clone();
        async move { (provider.acquire("k").await.unwrap(), Instant::now()) }
    });
    sleep(ms(1)).await; // it waits in the local queue
    let abandoned = Instant::now();
    guard.abandon();
    let accounting = provider.accounting();
    assert_eq!((accounting.acquired, accounting.abandoned, accounting.held, accounting.released), (1, 1, 0, 0));
    assert!(store.peek("k").is_some(), "no event was sent");
    let (next, granted) = next.await.unwrap();
    assert!(granted - abandoned >= ms(890), "{:?}", granted - abandoned);
    assert!(granted - abandoned <= ms(1100), "{:?}", granted - abandoned);
    assert_eq!((store.calls(Operation::Renew), store.calls(Operation::Release)), (renewals, 0));
    // A lease that is lost already stays counted as lost.
    store.force_release("k");
    assert_eq!(next.lost().await, Loss::ForceReleased);
    next.abandon();
    let accounting = provider.accounting();
    assert_eq!((accounting.acquired, accounting.abandoned, accounting.lost, accounting.held), (2, 1, 1, 0));
}
