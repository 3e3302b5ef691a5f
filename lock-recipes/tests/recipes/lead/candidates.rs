//! Terms, losses, resignations, drops.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use distlock_api::{ErrorKind, LockKey, LockProvider, LockProviderExt};
use distlock_memory::{MemoryProvider, MemoryStore, Operation};
use distlock_recipes::lead::{LeadExt, LeadHealth, LeadStatus, Led};
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, yield_now};
use tokio::time::{Instant, advance, sleep, timeout};

use super::kit::{Journal, TTL, poll_without_budget};

/// A candidate in a task of its own, which stops when the sender is used.
fn candidate(
    locks: Arc<dyn LockProvider>,
    name: &'static str,
    journal: &Journal,
) -> (LeadHealth, oneshot::Sender<()>, JoinHandle<Led<()>>) {
    let (health, (stop, stopped)) = (LeadHealth::new(), oneshot::channel::<()>());
    let (reports, journal) = (health.clone(), journal.clone());
    let task = tokio::spawn(async move {
        let lead = locks.lead("k").owner(name).ttl(TTL).report_to(&reports).until(stopped);
        lead.run(move |term| journal.clone().work(name, term)).await.unwrap()
    });
    (health, stop, task)
}

async fn leading(health: &mut LeadHealth) -> distlock_api::FencingToken {
    loop {
        if let LeadStatus::Leading { term } = health.get() {
            return term;
        }
        health.changed().await;
    }
}

#[tokio::test(start_paused = true)]
async fn l4_a_resignation_hands_over_at_once() {
    let store = MemoryStore::new();
    let journal = Journal::default();
    let (mut a, stop, ended) = candidate(Arc::new(store.provider()), "a", &journal);
    let first = leading(&mut a).await;
    let (mut b, _stop_b, _b) = candidate(Arc::new(store.provider()), "b", &journal);
    sleep(TTL * 3).await;
    assert_eq!(b.get(), LeadStatus::Following);

    let resigned = Instant::now();
    stop.send(()).unwrap();
    assert_eq!(ended.await.unwrap(), Led::Stopped);
    let second = leading(&mut b).await;
    assert!(resigned.elapsed() < TTL / 10, "{:?}", resigned.elapsed());
    assert!(second > first, "L2");
    assert_eq!(a.get(), LeadStatus::Idle);
    assert_eq!(journal.lines(), ["a starts", "a is dropped", "b starts"]);
}

#[tokio::test(start_paused = true)]
async fn l3_a_lost_leader_drops_its_task_before_the_next_one_starts() {
    let store = MemoryStore::new();
    let journal = Journal::default();
    let (mut a, _stop_a, _a) = candidate(Arc::new(store.provider()), "a", &journal);
    let first = leading(&mut a).await;
    let (mut b, _stop_b, _b) = candidate(Arc::new(store.provider()), "b", &journal);
    sleep(TTL).await;

    // From now on no renewal of anyone is answered.
    for operation in [Operation::Renew, Operation::Release, Operation::Withdraw] {
        store.fail_always(operation, ErrorKind::Unavailable);
    }
    let second = leading(&mut b).await;
    assert!(second > first, "L2");
    assert_eq!(journal.lines()[..3], ["a starts", "a is dropped", "b starts"]);
    // The margin of a tenth of the ttl lies between.
    assert!(journal.time("b starts") - journal.time("a is dropped") >= TTL / 20);

    // The one that has lost campaigns again.
    store.clear_faults();
    store.force_release("k");
    let third = leading(&mut a).await;
    assert!(third > second, "L2");
}

#[tokio::test(start_paused = true)]
async fn l3_a_leadership_taken_by_force_ends_the_task_before_the_deadline() {
    let store = MemoryStore::new();
    let journal = Journal::default();
    let (mut a, _stop, _a) = candidate(Arc::new(store.provider()), "a", &journal);
    let first = leading(&mut a).await;
    let taken = Instant::now();
    store.force_release("k");
    while leading(&mut a).await == first {
        a.changed().await;
    }
    // With the next renewal at the latest.
    assert!(taken.elapsed() < TTL / 2, "{:?}", taken.elapsed());
    assert_eq!(journal.lines(), ["a starts", "a is dropped", "a starts"]);
}

/// A task that runs beside a channel that is never empty, say, is polled without budget.
#[tokio::test(start_paused = true)]
async fn l3_a_loss_drops_the_task_whatever_was_polled_before_it() {
    let (store, memory) = (MemoryStore::new(), MemoryProvider::new());
    for locks in [Arc::new(store.provider()) as Arc<dyn LockProvider>, Arc::new(memory)] {
        let (journal, mut health) = (Journal::default(), LeadHealth::new());
        let lead = locks.lead("k").owner("a").ttl(TTL).report_to(&health);
        let mut run = Box::pin(lead.run(|term| journal.clone().work("a", term)));
        tokio::select! {
            _ = &mut run => unreachable!("it leads until it is stopped"),
            _ = leading(&mut health) => {}
        }
        assert!(poll_without_budget(run.as_mut()).await.is_pending());
        assert_eq!(journal.lines(), ["a starts"]);
        let admin = locks.admin().unwrap();
        assert!(admin.force_release(&LockKey::new("k").unwrap(), "test").await.unwrap().is_some());
        // A renewal finds it.
        advance(TTL / 2).await;
        for _ in 0..100 {
            yield_now().await;
        }
        let _ = poll_without_budget(run.as_mut()).await;
        assert_eq!(journal.lines()[..2], ["a starts", "a is dropped"]);
    }
}

#[tokio::test(start_paused = true)]
async fn l4_a_finished_task_ends_the_candidacy_and_frees_the_key() {
    let store = MemoryStore::new();
    // The provider's leases linger. A leader's does not.
    let lease = distlock_api::LeaseOptions::new().linger(Duration::from_secs(5));
    let locks = store.builder().lease(lease).build().unwrap();
    let led = locks.lead("k").run(async |term| Ok::<_, Infallible>(term.fencing_token())).await.unwrap();
    let term = led.finished().unwrap();
    assert!(store.peek("k").is_none(), "released when `run` has returned");
    let next = store.provider().try_acquire("k").await.unwrap().unwrap();
    assert!(next.fencing_token() > term);
}

#[tokio::test(start_paused = true)]
async fn l4_the_release_is_awaited() {
    let store = MemoryStore::new();
    let locks = store.provider();
    let mut release = store.hang_next(Operation::Release);
    let mut led = Box::pin(locks.lead("k").run(async |_| Ok::<_, Infallible>(())));
    tokio::select! {
        biased;
        led = &mut led => panic!("it has ended before its release: {led:?}"),
        () = release.reached() => {}
    }
    assert!(store.peek("k").is_some());
    release.proceed();
    assert_eq!(led.await.unwrap(), Led::Finished(()));
    assert!(store.peek("k").is_none());
}

#[tokio::test(start_paused = true)]
async fn l7_a_dropped_candidate_leaves_nothing_behind() {
    for locks in [Arc::new(MemoryStore::new().provider()) as Arc<dyn LockProvider>, Arc::new(MemoryProvider::new())] {
        let journal = Journal::default();
        // While leading: the task is dropped before the lock is free.
        let (mut health, _stop, task) = candidate(Arc::clone(&locks), "a", &journal);
        leading(&mut health).await;
        task.abort();
        assert!(task.await.unwrap_err().is_cancelled());
        assert_eq!((health.get(), journal.lines()), (LeadStatus::Idle, vec!["a starts".into(), "a is dropped".into()]));

        // While campaigning.
        let held = timeout(TTL / 10, locks.acquire("k").into_future()).await.expect("it is free").unwrap();
        let (mut health, _stop, task) = candidate(Arc::clone(&locks), "b", &journal);
        while locks.accounting().waiting == 0 {
            sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(health.changed().await, LeadStatus::Following);
        task.abort();
        assert!(task.await.unwrap_err().is_cancelled());
        assert!(held.release().await.unwrap().is_released());
        assert!(locks.try_acquire("k").await.unwrap().is_some());
        assert_eq!(locks.accounting().waiting, 0);
        assert_eq!(journal.lines().len(), 2, "b has never led");
    }
}

#[tokio::test(start_paused = true)]
async fn l4_a_candidate_that_is_stopped_before_it_begins_sends_nothing() {
    let store = MemoryStore::new();
    let locks = store.provider();
    let led = locks.lead("k").until(std::future::ready(())).run(async |_| Ok::<_, Infallible>(())).await;
    assert_eq!(led.unwrap(), Led::Stopped);
    assert_eq!(store.calls(Operation::TryAcquire), 0);
}

#[tokio::test(start_paused = true)]
async fn l1_of_many_candidates_one_leads_at_a_time() {
    let store = MemoryStore::new();
    let journal = Journal::default();
    let inside = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let mut candidates = tokio::task::JoinSet::new();
    for _ in 0..6 {
        let (locks, journal, inside) = (store.provider(), journal.clone(), Arc::clone(&inside));
        candidates.spawn(async move {
            let work = |term: distlock_recipes::lead::Term| {
                let (journal, inside) = (journal.clone(), Arc::clone(&inside));
                async move {
                    assert_eq!(inside.fetch_add(1, std::sync::atomic::Ordering::SeqCst), 0);
                    sleep(Duration::from_millis(30)).await;
                    journal.note(format!("{:020}", term.fencing_token().get()));
                    inside.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
                    Ok::<_, Infallible>(())
                }
            };
            locks.lead("k").run(work).await.unwrap()
        });
    }
    assert_eq!(candidates.join_all().await, [Led::Finished(()); 6]);
    let terms = journal.lines();
    assert!(terms.len() == 6 && terms.is_sorted_by(|a, b| a < b), "L2: {terms:?}");
}
