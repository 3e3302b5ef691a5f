use super::*;
use crate::store::{Grant, ProviderId};
use distlock_api::{FencingToken, LeaseOptions, LockKey, RenewalPolicy};

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn home() -> runtime::Id {
    runtime::Handle::current().id()
}

fn unbounded(_: Lane) -> Option<Room> {
    Some(Room::Unbounded)
}

fn sizes(due: &Due) -> Vec<usize> {
    due.batches.iter().map(|batch| batch.items.len()).collect()
}

fn lease(name: &str, ttl: u64, renewal: RenewalPolicy, now: Instant) -> Arc<Lease> {
    let claim = Claim::new(LockKey::new(name).unwrap(), ProviderId::random().acquisition_id());
    let terms = LeaseOptions::new().ttl(ms(ttl)).renewal(renewal).terms().unwrap();
    let deadline = crate::engine::lease::deadline(now, ms(ttl), &terms);
    let grant = Grant::new(FencingToken::new(1), ms(ttl));
    Lease::granted(claim, &grant, (terms, distlock_api::Holder::new()), (now, deadline), now, None)
        .unwrap_or_else(|_| panic!())
}

#[tokio::test(start_paused = true)]
async fn leases_of_one_cadence_gather_in_one_beat() {
    let (start, mut registry) = (Instant::now(), Registry::default());
    for n in 0..10 {
        let at = start + ms(n * 20);
        let entered = registry.enter(&lease(&n.to_string(), 3000, RenewalPolicy::Auto, at), at);
        assert_eq!(matches!(entered, Entered::Unkept(_)), n == 0, "one keeper for all");
    }
    assert_eq!(registry.plan(home()), Some(start + ms(1000)));
    let due = registry.take_due(home(), start + ms(1000), 100, 0, unbounded);
    assert!(due.over.is_empty());
    assert_eq!(sizes(&due), [10], "all of them may go after 750 ms");
    let due = registry.take_due(home(), start + ms(1000), 100, 0, unbounded);
    assert!(due.batches.is_empty(), "sent ones are not due at once");
}

#[tokio::test(start_paused = true)]
async fn c14_an_unanswered_batch_is_sent_again_in_smaller_ones() {
    let (start, mut registry) = (Instant::now(), Registry::default());
    for n in 0..100 {
        registry.enter(&lease(&n.to_string(), 30_000, RenewalPolicy::Auto, start), start);
    }
    let mut largest = Vec::new();
    while let Some(at) = registry.plan(home()).filter(|at| *at < start + ms(26_000)) {
        let due = registry.take_due(home(), at, 100, 64, unbounded);
        assert!(due.over.is_empty() && due.batches.len() <= 64);
        largest.extend(sizes(&due).into_iter().max());
    }
    assert_eq!(largest[..4], [100, 25, 6, 1], "{largest:?}");
}

#[tokio::test(start_paused = true)]
async fn a_slow_store_is_told_from_a_poisoned_key() {
    let (start, mut registry) = (Instant::now(), Registry::default());
    for n in 0..800 {
        registry.enter(&lease(&n.to_string(), 30_000, RenewalPolicy::Auto, start), start);
    }
    let next = |registry: &mut Registry| {
        let at = registry.plan(home()).unwrap();
        registry.take_due(home(), at, 400, 256, unbounded)
    };
    assert_eq!(sizes(&next(&mut registry)), [400, 400]);
    assert_eq!(sizes(&next(&mut registry)), [400, 400], "nothing was answered: the store is away");
    // Others are answered, so there may be poisoned keys among these.
    registry.answered(start + ms(29_000));
    assert_eq!(sizes(&next(&mut registry)), [100; 8]);
}

#[tokio::test(start_paused = true)]
async fn what_finds_no_room_stays_due() {
    let (start, mut registry) = (Instant::now(), Registry::default());
    for n in 0..300 {
        registry.enter(&lease(&n.to_string(), 30_000, RenewalPolicy::Auto, start), start);
    }
    let at = start + ms(10_000);
    let mut rooms = vec![Room::Unbounded];
    let due = registry.take_due(home(), at, 100, 0, |_| rooms.pop());
    assert_eq!((sizes(&due), &due.full[..]), (vec![100], &[Lane::Renew][..]));
    let due = registry.take_due(home(), at, 100, 0, unbounded);
    assert_eq!((sizes(&due), due.full.len()), (vec![100, 100], 0), "as whole batches, and not as failed ones");
}

#[tokio::test(start_paused = true)]
async fn the_earliest_deadline_goes_first_also_before_what_waits_for_room() {
    let (start, mut registry) = (Instant::now(), Registry::default());
    for n in 0..300 {
        registry.enter(&lease(&n.to_string(), 30_000, RenewalPolicy::Auto, start), start);
    }
    let short = lease("short", 1_500, RenewalPolicy::Auto, start + ms(9_650));
    let short_id = short.claim().id().clone();
    registry.enter(&short, start + ms(9_650));
    let one = |registry: &mut Registry, at| {
        let mut rooms = vec![Room::Unbounded];
        let mut due = registry.take_due(home(), start + ms(at), 100, 0, |_| rooms.pop());
        due.batches.remove(0).items
    };
    assert_eq!(one(&mut registry, 10_000).len(), 100);
    let items = one(&mut registry, 10_160);
    assert_eq!((items.len(), items[0].id()), (100, &short_id));
    let released = registry.leases().into_iter().find(|lease| {
        let due = registry.leases[lease.claim().id()].beat.due;
        due.is_some_and(|due| due <= start + ms(10_160))
    });
    registry.releasing(&released.unwrap());
    assert_eq!(one(&mut registry, 10_160).len(), 100, "without the released one");
    let due = registry.take_due(home(), start + ms(10_160), 100, 0, unbounded);
    assert_eq!(sizes(&due), [], "each goes once");
}

#[tokio::test(start_paused = true)]
async fn a_hundred_thousand_leases_are_not_looked_through_for_each_call() {
    let (start, mut registry) = (Instant::now(), Registry::default());
    for n in 0..100_000 {
        registry.enter(&lease(&n.to_string(), 60_000, RenewalPolicy::Auto, start), start);
    }
    let (began, mut sent, mut calls) = (std::time::Instant::now(), 0, 0);
    while sent < 100_000 {
        let mut rooms = vec![Room::Unbounded];
        let due = registry.take_due(home(), start + ms(20_000), 360, 0, |_| rooms.pop());
        sent += sizes(&due).into_iter().sum::<usize>();
        calls += 1;
    }
    assert_eq!(calls, 278);
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_lease_without_renewal_is_due_at_its_deadline() {
    let (start, mut registry) = (Instant::now(), Registry::default());
    registry.enter(&lease("a", 1000, RenewalPolicy::Never, start), start);
    assert_eq!(registry.plan(home()), Some(start + ms(900)));
    let due = registry.take_due(home(), start + ms(900), 100, 0, unbounded);
    assert_eq!((due.over.len(), due.batches.len()), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn c23_a_lease_leaves_the_books_once() {
    let (start, mut registry) = (Instant::now(), Registry::default());
    let lease = lease("a", 1000, RenewalPolicy::Auto, start);
    registry.enter(&lease, start);
    assert_eq!(registry.accounting().held, 1);
    registry.end(&lease, End::Lost);
    registry.end(&lease, End::Released);
    let books = registry.accounting();
    assert_eq!((books.acquired, books.lost, books.released, books.held), (1, 1, 0, 0));
    assert!(books.balances() && registry.plan(home()).is_none());
    registry.close();
    assert!(matches!(registry.enter(&lease, start), Entered::Closed));
}

#[tokio::test(start_paused = true)]
async fn a_runtime_that_has_ended_is_forgotten() {
    let (start, mut registry) = (Instant::now(), Registry::default());
    let lease = lease("key", 3000, RenewalPolicy::Auto, start);
    registry.enter(&lease, start);
    registry.unkept(home());
    registry.all_due(start);
    registry.settled(&lease, start);
    registry.releasing(&lease);
    assert!(registry.homes.is_empty(), "whatever is due there");
    registry.end(&lease, End::Released);
    assert!(registry.homes.is_empty() && registry.is_idle());
}
