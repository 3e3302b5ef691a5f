//! Failures of the store and of the task: pauses, health, and what ends a candidacy.

use std::convert::Infallible;
use std::future::pending;
use std::time::Duration;

use distlock_api::{AcquireOptions, ErrorKind, LockProvider, LockProviderExt, Wait};
use distlock_memory::MemoryStore;
use distlock_recipes::lead::{LeadExt, LeadHealth, LeadStatus, Led};
use tokio::time::{Instant, sleep};

use super::kit::{Answer, Scripted, TTL};

const FIRST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(2);

fn failures(count: usize) -> Vec<Answer> {
    (0..count).map(|_| Answer::Error(ErrorKind::Unavailable)).collect()
}

/// Whether each pause is between half of the doubled one before and that one.
fn assert_backed_off(pauses: &[Duration]) {
    let mut full = FIRST;
    for pause in pauses {
        // Tokio's timer has a resolution of a millisecond.
        assert!(full / 2 <= *pause && *pause <= full + Duration::from_millis(2), "{pause:?} of {full:?}: {pauses:?}");
        full = (full * 2).min(LONGEST);
    }
}

#[tokio::test(start_paused = true)]
async fn l5_pauses_grow_after_errors_of_the_store() {
    let locks = Scripted::new(&MemoryStore::new(), failures(9));
    let health = LeadHealth::new();
    let mut seen = health.clone();
    let statuses = tokio::spawn(async move {
        let mut statuses = Vec::new();
        while statuses.last() != Some(&LeadStatus::Idle) {
            statuses.push(seen.changed().await);
        }
        statuses
    });
    tokio::task::yield_now().await;
    let began = Instant::now();
    let lead = locks.lead("k").backoff(FIRST, LONGEST).report_to(&health);
    let led = lead.run(async |_| {
        sleep(Duration::from_millis(1)).await;
        Ok::<_, Infallible>(7)
    });
    assert_eq!(led.await.unwrap(), Led::Finished(7));
    assert_eq!(locks.pauses().len(), 9);
    assert_backed_off(&locks.pauses());
    let full = (0..9).map(|failures| (FIRST * (1 << failures)).min(LONGEST));
    let is_shortened = |(pause, full): (&Duration, Duration)| *pause + Duration::from_millis(3) < full;
    assert!(locks.pauses().iter().zip(full).any(is_shortened), "not jittered: {:?}", locks.pauses());

    // L6: one failure from the first error to the grant.
    let statuses = statuses.await.unwrap();
    let LeadStatus::Failing { since, error } = &statuses[0] else { panic!("{statuses:?}") };
    assert!(*since - began < Duration::from_millis(5) && &**error == "scripted", "{statuses:?}");
    assert!(matches!(statuses[1], LeadStatus::Leading { .. }), "{statuses:?}");
    assert_eq!(*statuses.last().unwrap(), LeadStatus::Idle);
}

#[tokio::test(start_paused = true)]
async fn l5_a_failed_task_resigns_pauses_and_is_run_again() {
    let store = MemoryStore::new();
    let (locks, health) = (Scripted::new(&store, []), LeadHealth::new());
    let mut terms = Vec::new();
    let led = locks.lead("k").backoff(FIRST, LONGEST).report_to(&health).run(|term| {
        terms.push(term.fencing_token());
        std::future::ready(if terms.len() < 5 { Err("disk full") } else { Ok(()) })
    });
    let mut led = Box::pin(led);
    tokio::select! {
        biased;
        led = &mut led => panic!("{led:?}"),
        () = sleep(FIRST / 4) => {}
    }
    let LeadStatus::Failing { error, .. } = health.get() else { panic!("{health:?}") };
    assert_eq!(&*error, "disk full");
    assert!(store.peek("k").is_none(), "it has resigned before it pauses");
    assert_eq!(led.await.unwrap(), Led::Finished(()));
    assert!(terms.len() == 5 && terms.is_sorted_by(|a, b| a < b), "L2: {terms:?}");
    assert_backed_off(&locks.pauses());
}

#[tokio::test(start_paused = true)]
async fn l5_a_long_term_begins_again_with_the_first_pause() {
    let locks = Scripted::new(&MemoryStore::new(), failures(4));
    let mut terms = 0;
    let led = locks.lead("k").backoff(FIRST, LONGEST).run(|_| {
        terms += 1;
        let is_last = terms == 2;
        async move {
            sleep(LONGEST).await;
            if is_last { Ok(()) } else { Err("late failure") }
        }
    });
    assert_eq!(led.await.unwrap(), Led::Finished(()));
    let last = *locks.pauses().last().unwrap() - LONGEST;
    assert!(last <= FIRST + Duration::from_millis(2), "{last:?}");
}

#[tokio::test(start_paused = true)]
async fn l6_a_candidate_that_finds_a_leader_after_a_failure_follows() {
    let store = MemoryStore::new();
    let held = store.provider();
    let held = held.acquire("k").ttl(TTL).await.unwrap();
    let (locks, health) = (Scripted::new(&store, failures(1)), LeadHealth::new());
    let lead = locks.lead("k").round(TTL * 2).report_to(&health);
    let candidate = lead.run(async |_| Ok::<_, Infallible>(()));
    let check = async {
        sleep(Duration::from_secs(1)).await;
        assert!(matches!(health.get(), LeadStatus::Failing { .. }), "{health:?}");
        sleep(Duration::from_secs(6)).await;
        assert_eq!(health.get(), LeadStatus::Following);
        sleep(TTL * 4).await;
        assert!(held.release().await.unwrap().is_released());
    };
    let (led, ()) = tokio::join!(candidate, check);
    assert_eq!(led.unwrap(), Led::Finished(()));
    // The first campaign, the one after the failure, and full rounds again.
    let (full, short) = (Wait::UpTo(TTL * 2), Wait::UpTo(Duration::from_secs(5)));
    assert_eq!(locks.waits()[..4], [full, short, full, full]);
}

#[tokio::test(start_paused = true)]
async fn l5_only_what_cannot_succeed_ends_a_candidacy() {
    for kind in [ErrorKind::PermissionDenied, ErrorKind::Corrupt, ErrorKind::QueueFull, ErrorKind::Other] {
        let locks = Scripted::new(&MemoryStore::new(), [Answer::Error(kind), Answer::Real]);
        let led = locks.lead("k").run(async |_| Ok::<_, Infallible>(())).await;
        assert_eq!(led.unwrap(), Led::Finished(()), "{kind:?}");
    }
    for kind in [ErrorKind::Unsupported, ErrorKind::Closed] {
        let locks = Scripted::new(&MemoryStore::new(), [Answer::Error(kind)]);
        let health = LeadHealth::new();
        let led = locks.lead("k").report_to(&health).run(async |_| Ok::<_, Infallible>(())).await;
        assert_eq!((led.unwrap_err().kind(), health.get()), (kind, LeadStatus::Idle));
    }
}

#[tokio::test(start_paused = true)]
async fn l5_mistakes_are_refused_before_any_io() {
    let locks = Scripted::new(&MemoryStore::new(), []);
    let second = Duration::from_secs(1);
    let candidates = [
        (locks.lead(""), ErrorKind::InvalidKey),
        (locks.lead("k").round(Duration::ZERO), ErrorKind::InvalidOptions),
        (locks.lead("k").options(AcquireOptions::try_once()), ErrorKind::InvalidOptions),
        (locks.lead("k").backoff(Duration::ZERO, second), ErrorKind::InvalidOptions),
        (locks.lead("k").backoff(second * 2, second), ErrorKind::InvalidOptions),
    ];
    for (candidate, kind) in candidates {
        let error = candidate.run(async |_| Ok::<_, Infallible>(())).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
    }
    assert_eq!(locks.waits(), []);
}

#[tokio::test(start_paused = true)]
async fn l5_a_closed_provider_ends_the_candidacy_and_the_task() {
    let locks = MemoryStore::new().provider();
    let candidate = locks.lead("k").run(async |_| pending::<Result<(), Infallible>>().await);
    let (led, closed) = tokio::join!(candidate, async {
        sleep(TTL).await;
        locks.close().await
    });
    assert_eq!(led.unwrap_err().kind(), ErrorKind::Closed);
    closed.unwrap();
}
