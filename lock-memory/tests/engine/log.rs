//! What the engine logs: few lines while a store is down, and none that a key can forge.

use std::sync::Arc;

use distlock_api::{LockProvider, LockProviderExt, Printable, RenewalPolicy};
use distlock_memory::{MemoryStore, Operation};
use tokio::time::sleep;
use tracing::Level;

use crate::kit::{Lines, ms, provider, secs};
use crate::store::{Fate, ScriptedStore};

const LEASES: usize = 1000;

#[tokio::test(start_paused = true)]
async fn a_thousand_renewals_that_fail_are_one_warning_and_then_a_count() {
    let store = Arc::new(ScriptedStore::new(|operation, _, _| match operation {
        Operation::Renew => Fate::fail(),
        _ => Fate::Serve,
    }));
    let lines = Lines::collect(Level::WARN);
    let locks = provider(&store);
    let mut guards = Vec::new();
    for n in 0..LEASES {
        guards.push(locks.acquire(format!("k{n}")).ttl(secs(60)).await.unwrap());
    }
    sleep(secs(55)).await;
    assert!(guards.iter().all(|guard| !guard.is_lost()));
    let (warnings, failed) = (lines.with("renewals failed"), store.count(Operation::Renew));
    assert!((2..=5).contains(&warnings.len()), "{failed} failures: {warnings:#?}");
    let counts = warnings.iter().map(|line| {
        let (_, count) = line.split_once("leases=").expect("a count");
        count.split(' ').next().unwrap().parse::<usize>().expect("a number")
    });
    let told: usize = counts.sum();
    assert!((LEASES..=failed).contains(&told), "{told} of {failed} failures were told");
    drop(guards);
    drop(locks.close().await);
}

/// Whatever happens to a lock, the line about it shows its key without what controls a terminal or
/// begins a new line.
#[tokio::test(start_paused = true)]
async fn no_key_forges_a_line() {
    const HOSTILE: &str = "job\n2026-01-01 ERROR forged\r\u{1b}[2J\u{9b}\u{202e}\u{2028}\u{200b}";
    let store = Arc::new(ScriptedStore::new(|operation, _, number| match operation {
        Operation::TryAcquire if number > 3 => Fate::Serve,
        _ => Fate::LoseReply,
    }));
    let lines = Lines::collect(Level::TRACE);
    let locks = provider(&store);
    let held = locks.acquire(HOSTILE).renewal(RenewalPolicy::Every(ms(500))).ttl(secs(3)).await.unwrap();
    sleep(secs(10)).await;
    assert!(held.is_lost());
    assert!(locks.acquire(HOSTILE).await.unwrap().release().await.is_err());
    sleep(secs(60)).await;
    drop(locks.close().await);
    for what in ["attempt to acquire failed", "attempt failed", "renewals failed", "renewal failed", "lock lost"]
        .into_iter()
        .chain(["not confirmed yet", "lease left to its ttl"])
    {
        let found = lines.with(what);
        assert!(!found.is_empty(), "no line says {what:?}: {:#?}", lines.with(""));
        for line in found {
            assert_eq!(Printable(&line).to_string(), line);
            assert!(line.contains(r"job\n2026"), "{line}");
        }
    }
}

/// Its caller may ignore the answer.
#[tokio::test(start_paused = true)]
async fn a_loss_that_only_the_release_finds_is_logged() {
    let store = MemoryStore::new().with_events(false);
    let lines = Lines::collect(Level::WARN);
    let locks = provider(&store);
    let guard = locks.acquire("k").await.unwrap();
    store.force_release("k").expect("it was held");
    assert!(!guard.release().await.unwrap().is_released());
    let lost = lines.with("lock lost");
    assert!(lost.len() == 1 && lost[0].contains("gone"), "{lost:#?}");
    locks.acquire("k").await.unwrap().release().await.unwrap();
    assert_eq!(lines.with("lock lost").len(), 1);
}
