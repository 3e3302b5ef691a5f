//! Times that are too short for the store: refused before any I/O, and what a waiter reports whose
//! attempts are not answered.

use std::sync::Arc;
use std::time::Duration;

use distlock_api::{ErrorKind, LeaseOptions, LockError, LockProvider, LockProviderExt, RenewalPolicy};
use distlock_engine::{LeaseProviderBuilder, QueueOptions};
use distlock_memory::Operation;
use tracing::Level;

use crate::kit::{Deployment, Lines, ms, provider, secs};
use crate::store::{Fate, ScriptedStore};

const FLOOR: Duration = secs(1);

fn with_floor() -> Arc<ScriptedStore> {
    ScriptedStore::honest().with(|store| store.capabilities.min_ttl = FLOOR)
}

fn refused(error: &LockError, expected: &str) {
    assert_eq!(error.kind(), ErrorKind::InvalidOptions, "{error}");
    let text = error.to_string();
    assert!(text.contains(expected) && text.contains("min_ttl"), "{text} should contain {expected:?}");
}

#[tokio::test(start_paused = true)]
async fn c20_a_ttl_below_that_of_the_store_is_refused_before_any_call() {
    let store = with_floor();
    let locks = provider(&store);
    let options = LeaseOptions::new();
    for (lease, expected) in [
        (options.ttl(ms(1)), "ttl of 1ms"),
        (options.ttl(ms(999)), "its shortest ttl is 1s"),
        (options.ttl(secs(1)).safety_margin(ms(501)), "margin of 501ms leaves 499ms"),
        (options.ttl(secs(30)).safety_margin(ms(29_600)), "leaves 400ms"),
        (options.ttl(secs(1)).renewal(RenewalPolicy::Every(ms(801))), "interval of 801ms leaves 99ms"),
    ] {
        let try_it = distlock_api::AcquireOptions::new().with_lease(lease);
        refused(&locks.acquire("k").options(try_it).await.unwrap_err(), expected);
        refused(&store.provider_builder().lease(lease).build().unwrap_err(), expected);
    }
    assert_eq!(store.memory.calls(Operation::TryAcquire), 0);
    let shortest = options.ttl(FLOOR).safety_margin(ms(500)).renewal(RenewalPolicy::Every(ms(400)));
    let shortest = distlock_api::AcquireOptions::new().with_lease(shortest);
    assert!(locks.acquire("k").options(shortest).await.unwrap().release().await.unwrap().is_released());
}

#[tokio::test(start_paused = true)]
async fn times_of_the_provider_that_are_too_short_for_the_store_are_refused() {
    type Change = fn(LeaseProviderBuilder) -> LeaseProviderBuilder;
    let changes: [(Change, &str); 3] = [
        (|builder| builder.request_timeout(ms(99)), "request timeout of 99ms"),
        (|builder| builder.queue(QueueOptions::new().claim(ms(99))), "claim window of 99ms"),
        (|builder| builder.queue(QueueOptions::new().ticket_ttl(ms(999))), "ticket ttl of 999ms"),
    ];
    for (change, expected) in changes {
        refused(&change(with_floor().provider_builder()).build().unwrap_err(), expected);
        change(Arc::new(ScriptedStore::honest()).provider_builder()).build().unwrap();
    }
}

/// Answers that come after the lease has ended, and attempts that are not answered at all.
#[tokio::test(start_paused = true)]
async fn a_waiter_without_an_answer_warns_once() {
    for fate in [|| Fate::Never, || Fate::After(ms(4800)), || Fate::Late(ms(4800)), || Fate::LoseReply] {
        let store = Arc::new(ScriptedStore::new(move |operation, _, _| match operation {
            Operation::TryAcquire => fate(),
            _ => Fate::Serve,
        }));
        let warnings = Lines::collect(Level::WARN);
        let locks = provider(&store);
        let waits = locks.acquire("k").ttl(ms(5000)).timeout(secs(60));
        assert!(waits.await.is_err());
        assert_eq!(warnings.with("attempt to acquire failed").len(), 1);
        drop(locks.close().await);
    }
}
