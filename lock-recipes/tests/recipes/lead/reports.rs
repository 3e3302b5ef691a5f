//! What a recorder of metrics and a subscriber get.

use std::convert::Infallible;
use std::future::pending;

use distlock_api::ErrorKind;
use distlock_memory::{MemoryStore, Operation};
use distlock_recipes::lead::{LeadExt, LeadHealth, LeadStatus, Led, Term};
use metrics_util::debugging::DebuggingRecorder;
use tokio::time::{sleep, timeout};
use tracing::{Dispatch, Span};

use super::kit::TTL;
use crate::measured::measured;

/// A task that works until it is dropped.
async fn work(_: Term) -> Result<(), Infallible> {
    pending().await
}

#[tokio::test(start_paused = true)]
async fn a_fleet_without_a_leader_is_seen() {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    let _installed = metrics::set_default_local_recorder(&recorder);
    let candidates = || measured(&snapshotter, "distlock_lead_candidates");
    let store = MemoryStore::new();
    // One handle has the last report of any candidate: the metrics have each.
    let health = LeadHealth::new();
    let tasks = [(); 2].map(|()| {
        let (locks, health) = (store.provider(), health.clone());
        tokio::spawn(async move {
            let lead = locks.lead("k").named("mailer").ttl(TTL).report_to(&health);
            lead.run(work).await
        })
    });
    sleep(TTL).await;
    assert_eq!(candidates(), ["mailer following = 1", "mailer leading = 1"]);
    for operation in [Operation::TryAcquire, Operation::Renew, Operation::Release] {
        store.fail_always(operation, ErrorKind::Unavailable);
    }
    sleep(TTL * 12).await;
    assert_eq!(candidates(), ["mailer failing = 2", "mailer following = -1", "mailer leading = -1"]);
    for task in tasks {
        task.abort();
        assert!(task.await.unwrap_err().is_cancelled());
    }
    assert_eq!(candidates(), ["mailer failing = -2"]);
    assert_eq!(health.get(), LeadStatus::Idle);
}

#[tokio::test(start_paused = true)]
async fn each_term_has_its_outcome() {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    let _installed = metrics::set_default_local_recorder(&recorder);
    let store = MemoryStore::new();
    let locks = store.provider();
    let mut terms = 0;
    let led = locks.lead("k").named("job").run(|_| {
        terms += 1;
        std::future::ready(if terms < 3 { Err("not yet") } else { Ok(terms) })
    });
    assert_eq!(led.await.unwrap(), Led::Finished(3));
    assert_eq!(locks.lead("k").named("job").until(sleep(TTL)).run(work).await.unwrap(), Led::Stopped);
    assert!(timeout(TTL, locks.lead("k").named("job").run(work)).await.is_err());
    let taken_away = async {
        sleep(TTL).await;
        assert!(store.force_release("k").is_some());
    };
    // Without a name that of the provider.
    let (led, ()) = tokio::join!(locks.lead("k").until(sleep(TTL * 3)).run(work), taken_away);
    assert_eq!(led.unwrap(), Led::Stopped);
    let expected = [
        "job dropped = 1".to_owned(),
        "job failed = 2".to_owned(),
        "job finished = 1".to_owned(),
        "job stopped = 1".to_owned(),
        format!("{locks} lost = 1"),
        format!("{locks} stopped = 1"),
    ];
    assert_eq!(measured(&snapshotter, "distlock_lead_term_seconds"), expected);
}

#[tokio::test(start_paused = true)]
async fn a_task_runs_in_the_span_of_its_term() {
    // While there is a single subscriber, a span that is first met on a thread without it stays
    // disabled everywhere.
    let (_other, subscriber) =
        (Dispatch::new(tracing_subscriber::registry()), Dispatch::new(tracing_subscriber::registry()));
    let _log = tracing::dispatcher::set_default(&subscriber);
    let name = || Span::current().metadata().map(|metadata| metadata.name());
    let locks = MemoryStore::new().provider();
    let led = locks.lead("k").run(|_| {
        let called = name();
        async move { Ok::<_, Infallible>((called, name())) }
    });
    assert_eq!(led.await.unwrap(), Led::Finished((Some("distlock.term"), Some("distlock.term"))));
    assert_eq!(name(), None);
}
