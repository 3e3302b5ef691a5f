use super::*;
use crate::state::batch::{Batch, Due};
use crate::state::lease::Origin;
use crate::state::local_queue::tests::NoLease;
use crate::store::{Grant, Home, Lane, Lanes, Permit, ProviderId};
use crate::test_kit::ms;
use distlock_api::{FencingToken, LeaseOptions, LockKey, RenewalPolicy};

fn home() -> HomeId {
    tokio::runtime::Handle::current().id()
}

fn unbounded(lane: Lane) -> Option<Permit> {
    let home = Home { provider: ProviderId::random(), runtime: home(), kind: None };
    Lanes::unbounded().try_permit(lane, home)
}

fn sizes(due: &Due<NoLease>) -> Vec<usize> {
    due.batches.iter().map(|batch| batch.items.len()).collect()
}

fn lease(name: &str, ttl: u64, renewal: RenewalPolicy, now: Instant) -> Arc<Lease<NoLease>> {
    let claim = Claim::new(LockKey::new(name).unwrap(), ProviderId::random().acquisition_id());
    let terms = LeaseOptions::new().ttl(ms(ttl)).renewal(renewal).terms().unwrap();
    let deadline = crate::state::lease::deadline(now, ms(ttl), &terms);
    let grant = Grant::new(FencingToken::new(1), ms(ttl));
    Lease::granted(
        claim,
        &grant,
        (terms, distlock_api::Holder::new()),
        (now, deadline),
        &now.into(),
        Origin { home: (), home_id: home(), in_group: false },
        None,
    )
    .unwrap_or_else(|_| panic!())
}

#[tokio::test(start_paused = true)]
async fn leases_of_one_cadence_gather_in_one_batch() {
    let (start, mut ledger) = (Instant::now(), Ledger::<NoLease>::default());
    for n in 0..10 {
        let at = start + ms(n * 20);
        let entered = ledger.enter(&lease(&n.to_string(), 3000, RenewalPolicy::Auto, at), at, &at.into());
        assert_eq!(matches!(entered, Registration::NeedsKeeper(_)), n == 0, "one keeper for all");
    }
    assert_eq!(ledger.plan(home()), Some(start + ms(1000)));
    let due = ledger.take_due(home(), &(start + ms(1000)).into(), 100, 0, unbounded);
    assert!(due.over.is_empty());
    assert_eq!(sizes(&due), [10], "all of them may go after 750 ms");
    let due = ledger.take_due(home(), &(start + ms(1000)).into(), 100, 0, unbounded);
    assert!(due.batches.is_empty(), "sent ones are not due at once");
}

#[tokio::test(start_paused = true)]
async fn c14_an_unanswered_batch_is_sent_again_in_smaller_ones() {
    let (start, mut ledger) = (Instant::now(), Ledger::<NoLease>::default());
    for n in 0..100 {
        ledger.enter(&lease(&n.to_string(), 30_000, RenewalPolicy::Auto, start), start, &start.into());
    }
    let mut largest = Vec::new();
    while let Some(at) = ledger.plan(home()).filter(|at| *at < start + ms(26_000)) {
        let due = ledger.take_due(home(), &at.into(), 100, 64, unbounded);
        assert!(due.over.is_empty() && due.batches.len() <= 64);
        largest.extend(sizes(&due).into_iter().max());
    }
    assert_eq!(largest[..4], [100, 25, 6, 1], "{largest:?}");
}

/// The batches of a keeper's look, if the store takes this many calls.
fn batches(ledger: &mut Ledger<NoLease>, at: Instant, mut calls: usize) -> Vec<Vec<String>> {
    let permit = |lane| {
        calls = calls.checked_sub(1)?;
        unbounded(lane)
    };
    let due = ledger.take_due(home(), &at.into(), 360, 256, permit);
    let keys = |batch: &Batch<NoLease>| batch.items.iter().map(|item| item.key().to_string()).collect();
    due.batches.iter().map(keys).collect()
}

/// The same when something is due.
fn next(ledger: &mut Ledger<NoLease>, calls: usize) -> Vec<Vec<String>> {
    let at = ledger.plan(home()).unwrap();
    batches(ledger, at, calls)
}

/// A ledger with leases of 3 s, whose keys are numbers.
fn of_leases(count: usize) -> Ledger<NoLease> {
    let (start, mut ledger) = (Instant::now(), Ledger::<NoLease>::default());
    for n in 10..10 + count {
        ledger.enter(&lease(&n.to_string(), 3000, RenewalPolicy::Auto, start), start, &start.into());
    }
    ledger
}

#[tokio::test(start_paused = true)]
async fn c14_a_few_leases_with_a_poisoned_key_are_divided_at_once() {
    for (count, first, second) in [(21, vec![5, 5, 5, 5, 1], 21), (24, vec![6; 4], 24), (3, vec![1; 3], 3)] {
        let mut ledger = of_leases(count);
        let mut sizes = || next(&mut ledger, 100).iter().map(Vec::len).collect::<Vec<_>>();
        assert_eq!(sizes(), [count]);
        assert_eq!(sizes(), first);
        assert_eq!(sizes(), vec![1; second]);
        assert_eq!(sizes(), vec![1; second]);
    }
}

/// A call that hangs holds its permit for seconds then, and few calls are better than many.
#[tokio::test(start_paused = true)]
async fn a_few_long_leases_stay_together_while_there_is_time() {
    let (start, mut ledger) = (Instant::now(), Ledger::<NoLease>::default());
    for n in 0..8 {
        ledger.enter(&lease(&n.to_string(), 30_000, RenewalPolicy::Auto, start), start, &start.into());
    }
    let sizes: Vec<Vec<usize>> = (0..5).map(|_| next(&mut ledger, 8).iter().map(Vec::len).collect()).collect();
    assert_eq!(sizes, [vec![8], vec![8], vec![8], vec![5, 3], vec![1; 8]]);
}

/// Calls of hung keys hold their permits until just before they are due again. If they went first
/// then, those behind them would get none.
#[tokio::test(start_paused = true)]
async fn c14_what_was_sent_least_often_goes_first() {
    let mut ledger = of_leases(10);
    assert_eq!(next(&mut ledger, 4).len(), 1);
    assert_eq!(next(&mut ledger, 5).len(), 5, "of two each");
    let sent = next(&mut ledger, 4);
    assert_eq!(sent.iter().map(Vec::len).collect::<Vec<_>>(), [1; 4]);
    // None of these was answered, and all ten are due.
    let after = batches(&mut ledger, Instant::now() + ms(2600), 6);
    assert!(after.len() == 6 && after.iter().all(|batch| !sent.contains(batch)), "{sent:?}, then {after:?}");
}

#[tokio::test(start_paused = true)]
async fn a_slow_store_is_distinguished_from_a_poisoned_key() {
    let (start, mut ledger) = (Instant::now(), Ledger::<NoLease>::default());
    for n in 0..800 {
        ledger.enter(&lease(&n.to_string(), 30_000, RenewalPolicy::Auto, start), start, &start.into());
    }
    let next = |ledger: &mut Ledger<NoLease>| {
        let at = ledger.plan(home()).unwrap();
        ledger.take_due(home(), &at.into(), 400, 256, unbounded)
    };
    assert_eq!(sizes(&next(&mut ledger)), [400, 400]);
    assert_eq!(sizes(&next(&mut ledger)), [400, 400], "nothing was answered: the store is away");
    // Others are answered, so there may be poisoned keys among these.
    ledger.call_answered(start + ms(29_000));
    assert_eq!(sizes(&next(&mut ledger)), [100; 8]);
}

#[tokio::test(start_paused = true)]
async fn what_finds_no_permit_stays_due() {
    let (start, mut ledger) = (Instant::now(), Ledger::<NoLease>::default());
    for n in 0..300 {
        ledger.enter(&lease(&n.to_string(), 30_000, RenewalPolicy::Auto, start), start, &start.into());
    }
    let at = start + ms(10_000);
    let mut permits = vec![unbounded(Lane::Renew).unwrap()];
    let due = ledger.take_due(home(), &at.into(), 100, 0, |_| permits.pop());
    assert_eq!((sizes(&due), &due.full[..]), (vec![100], &[Lane::Renew][..]));
    let due = ledger.take_due(home(), &at.into(), 100, 0, unbounded);
    assert_eq!((sizes(&due), due.full.len()), (vec![100, 100], 0), "as whole batches, and not as failed ones");
}

#[tokio::test(start_paused = true)]
async fn the_earliest_deadline_goes_first_even_before_what_waits_for_a_permit() {
    let (start, mut ledger) = (Instant::now(), Ledger::<NoLease>::default());
    for n in 0..300 {
        ledger.enter(&lease(&n.to_string(), 30_000, RenewalPolicy::Auto, start), start, &start.into());
    }
    let short = lease("short", 1_500, RenewalPolicy::Auto, start + ms(9_650));
    let short_id = short.claim().id().clone();
    ledger.enter(&short, start + ms(9_650), &(start + ms(9_650)).into());
    let one = |ledger: &mut Ledger<NoLease>, at| {
        let mut permits = vec![unbounded(Lane::Renew).unwrap()];
        let mut due = ledger.take_due(home(), &(start + ms(at)).into(), 100, 0, |_| permits.pop());
        due.batches.remove(0).items
    };
    assert_eq!(one(&mut ledger, 10_000).len(), 100);
    let items = one(&mut ledger, 10_160);
    assert_eq!((items.len(), items[0].id()), (100, &short_id));
    let released = ledger.leases().into_iter().find(|lease| {
        let due = ledger.leases[lease.claim().id()].pacing.due();
        due.is_some_and(|due| due <= start + ms(10_160))
    });
    ledger.release_begun(&released.unwrap(), &start.into());
    assert_eq!(one(&mut ledger, 10_160).len(), 100, "without the released one");
    let due = ledger.take_due(home(), &(start + ms(10_160)).into(), 100, 0, unbounded);
    assert!(sizes(&due).is_empty(), "each goes once");
}

#[tokio::test(start_paused = true)]
async fn a_hundred_thousand_leases_are_not_looked_through_for_each_call() {
    let (start, mut ledger) = (Instant::now(), Ledger::<NoLease>::default());
    for n in 0..100_000 {
        ledger.enter(&lease(&n.to_string(), 60_000, RenewalPolicy::Auto, start), start, &start.into());
    }
    let (began, mut sent, mut calls) = (std::time::Instant::now(), 0, 0);
    while sent < 100_000 {
        let mut permits = vec![unbounded(Lane::Renew).unwrap()];
        let due = ledger.take_due(home(), &(start + ms(20_000)).into(), 360, 0, |_| permits.pop());
        sent += sizes(&due).into_iter().sum::<usize>();
        calls += 1;
    }
    assert_eq!(calls, 278);
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_lease_without_renewal_is_due_at_its_deadline() {
    let (start, mut ledger) = (Instant::now(), Ledger::<NoLease>::default());
    ledger.enter(&lease("a", 1000, RenewalPolicy::Never, start), start, &start.into());
    assert_eq!(ledger.plan(home()), Some(start + ms(900)));
    let due = ledger.take_due(home(), &(start + ms(900)).into(), 100, 0, unbounded);
    assert_eq!((due.over.len(), due.batches.len()), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn c23_a_lease_leaves_the_ledger_once() {
    let (start, mut ledger) = (Instant::now(), Ledger::<NoLease>::default());
    let lease = lease("a", 1000, RenewalPolicy::Auto, start);
    ledger.enter(&lease, start, &start.into());
    assert_eq!(ledger.accounting().held, 1);
    ledger.end(&lease, End::Lost);
    ledger.end(&lease, End::Released);
    let accounting = ledger.accounting();
    assert_eq!((accounting.acquired, accounting.lost, accounting.released, accounting.held), (1, 1, 0, 0));
    assert!(accounting.balances() && ledger.plan(home()).is_none());
    ledger.close();
    assert!(matches!(ledger.enter(&lease, start, &start.into()), Registration::Closed));
}

#[tokio::test(start_paused = true)]
async fn a_runtime_that_has_ended_is_forgotten() {
    let (start, mut ledger) = (Instant::now(), Ledger::<NoLease>::default());
    let lease = lease("key", 3000, RenewalPolicy::Auto, start);
    ledger.enter(&lease, start, &start.into());
    ledger.keeper_ended(home());
    ledger.make_all_due(&start.into());
    ledger.renewal_succeeded(&lease, start, &start.into());
    ledger.release_begun(&lease, &start.into());
    assert!(ledger.keepers.is_empty(), "whatever is due there");
    ledger.end(&lease, End::Released);
    assert!(ledger.keepers.is_empty() && ledger.is_idle());
}
