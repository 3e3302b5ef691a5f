//! The queue and hand-overs (C15, R8, R12, R13, R15).

use std::num::NonZeroU32;
use std::time::Duration;

use distlock_api::ReleaseOutcome::{AlreadyLost, Released};
use distlock_api::{AcquireOptions, ErrorKind, FencingToken, Holder, LockKey, Loss};
use distlock_engine::store::{
    Attempt, BatchRenewStore, BatchStore, BusyReply, Claim, Grant, LeaseStore, QueueStanding, QueueStore, Release,
    Renewal, Reply, Standing, Ticket,
};
use distlock_mongo::MongoStore;
use distlock_mongo::mongodb::bson::{Bson, DateTime, Document, doc};
use futures_util::StreamExt;
use tokio::time::timeout;

use super::Checks;
use super::world::{
    LONG, SHORT, World, admin, age_ticket, busy, claim, end_lease, granted, key, opened, queue_up, queued, release,
    renew, size, ticket, try_once, twin,
};

const WINDOW: Duration = Duration::from_millis(200);

pub(super) fn add(checks: &mut Checks<'_>) {
    check!(checks, C15 grants_follow_the_order);
    check!(checks, R12 a_grant_has_the_terms_of_the_ticket);
    check!(checks, C5 tokens_increase_across_blocks_of_waiters);
    check!(checks, R12 a_withdrawal_hands_a_crossed_grant_over);
    check!(checks, R12 leaving_is_one_step_and_spares_the_holder);
    check!(checks, R12 an_expired_lease_is_given_up_for_good);
    check!(checks, R12 a_repeated_release_hands_nothing_over);
    check!(checks, R13 no_grant_before_the_end_of_a_minimum_hold);
    check!(checks, R8 positions_wait_for_their_windows);
    check!(checks, C15 newcomers_keep_the_order);
    check!(checks, C15 dead_head_costs_its_claim);
    check!(checks, dead_tickets_are_skipped);
    check!(checks, full_queue);
    check!(checks, a_queue_is_small);
    check!(checks, C15 thousands_wait_in_one_queue);
    check!(checks, C15 empty_places_keep_the_order);
    check!(checks, C15 a_queue_with_an_empty_place_is_a_queue);
    if checks.is_replica_set() {
        check!(checks, a_change_of_a_long_queue_is_small);
    }
    check!(checks, a_repeated_attempt_keeps_the_position);
    check!(checks, R15 refreshed_and_never_added);
    check!(checks, refreshes_of_many);
    check!(checks, waiters_are_counted);
    check!(checks, force_release_leaves_the_queue);
    check!(checks, C20 odd_values_in_tickets);
    check!(checks, odd_queues_are_none);
    check!(checks, C1 two_stores_hand_over_in_a_crowd);
}

fn block(length: u32) -> NonZeroU32 {
    NonZeroU32::new(length).unwrap()
}

/// A new key with its holder and two waiters, in their order.
async fn holder_and_two_waiters(store: &MongoStore) -> (LockKey, [Claim; 3]) {
    let key = key();
    let claims = [(); 3].map(|()| claim(&key));
    granted(store, &claims[0], LONG).await;
    for waiter in &claims[1..] {
        queued(store, waiter).await;
    }
    (key, claims)
}

fn standing(claim: &Claim) -> Renewal {
    Renewal::ticket(claim.clone(), ticket())
}

/// Returns the acquisition that holds the lease.
async fn holder(store: &MongoStore, key: &LockKey) -> Option<distlock_api::AcquisitionId> {
    admin(store).inspect(key).await.unwrap().and_then(|info| info.id)
}

fn ahead(busy: &BusyReply) -> u32 {
    match busy.standing {
        QueueStanding::Queued { ahead } => ahead,
        other => panic!("{other:?}"),
    }
}

async fn record(world: &World, name: &str, key: &LockKey) -> Document {
    world.raw(name).find_one(doc! { "_id": key.as_str() }).await.unwrap().unwrap()
}

async fn grants_follow_the_order(world: World) {
    let ([one, two], name) = world.two_stores().await;
    let key = key();
    let claims: Vec<Claim> = (0..6).map(|_| claim(&key)).collect();
    let first = granted(&one, &claims[0], LONG).await;
    for (at, waiter) in claims.iter().enumerate().skip(1) {
        let busy = queued(if at % 2 == 0 { &one } else { &two }, &twin(waiter)).await;
        assert_eq!(ahead(&busy) as usize, at - 1);
        assert_eq!(busy.token, Some(first.token));
    }
    let mut last = first.token;
    for (at, pair) in claims.windows(2).enumerate() {
        assert_eq!(release(if at % 2 == 0 { &one } else { &two }, &twin(&pair[0])).await, Released);
        assert_eq!(holder(&one, &key).await.as_ref(), Some(pair[1].id()), "after {at}");
        // A newcomer does not get a lease that was handed over.
        busy(&two, &claim(&key)).await;
        let grant = granted(&one, &pair[1], LONG).await;
        assert!(grant.token > last);
        last = grant.token;
    }
    assert_eq!(release(&one, &claims[5]).await, Released);
    let record = record(&world, &name, &key).await;
    assert!(
        !record.contains_key("queue") && !record.contains_key("lockId") && !record.contains_key("step"),
        "{record}"
    );
    // The lease is handed over, and then taken: change streams report each.
    assert!(record.contains_key("passed"), "{record}");
    granted(&one, &claim(&key), LONG).await;
    assert!(!self::record(&world, &name, &key).await.contains_key("passed"));
}

async fn a_grant_has_the_terms_of_the_ticket(world: World) {
    let store = world.store();
    let key = key();
    let (a, b) = (claim(&key), claim(&key));
    granted(&store, &a, LONG).await;
    let said = AcquireOptions::new().with_owner("$me").with_metadata("$job", "$$NOW");
    let attempt = Attempt::new(b.clone(), LONG).with_ticket(Ticket::new(LONG, LONG / 2, 8)).with_tokens(block(10));
    queue_up(&store, &attempt.with_holder(said.holder().clone())).await;
    assert_eq!(release(&store, &a).await, Released);
    let info = admin(&store).inspect(&key).await.unwrap().unwrap();
    assert_eq!((info.id.as_ref(), info.owner.as_deref()), (Some(b.id()), Some("$me")));
    assert_eq!(info.metadata["$job"], "$$NOW");
    assert!(info.remaining <= LONG / 2 && info.remaining > LONG / 4, "{:?}", info.remaining);
    // The grant is found by a refresh of the ticket, by a renewal of the lease, and by an attempt.
    let Standing::Held { remaining } = store.renew(&standing(&b)).await.unwrap() else { panic!("not held") };
    assert!(remaining <= LONG / 2 && remaining > LONG / 4, "{remaining:?}");
    assert_eq!(renew(&store, &b, info.token, LONG).await, Standing::Held { remaining: LONG });
    let grant = granted(&store, &b, LONG).await;
    assert_eq!((grant.tokens, grant.token.get() + 9), (block(10), info.token.get()));
    assert_eq!(admin(&store).release_owner("$me", "test").await.unwrap(), 1);
    // Nothing of the waiter is left for the next holder.
    let c = claim(&key);
    granted(&store, &c, LONG).await;
    queued(&store, &claim(&key)).await;
    assert_eq!(release(&store, &c).await, Released);
    let info = admin(&store).inspect(&key).await.unwrap().unwrap();
    assert_eq!((info.owner, info.metadata.len()), (None, 0));
}

async fn tokens_increase_across_blocks_of_waiters(world: World) {
    let store = world.store();
    let key = key();
    let lengths = [3, 1, 1000, 1, 7, 7, 2];
    let attempt = |claim: &Claim, length: u32| Attempt::new(claim.clone(), LONG).with_tokens(block(length));
    let claims: Vec<Claim> = lengths.iter().map(|_| claim(&key)).collect();
    let mut last = FencingToken::new(0);
    for (claim, length) in claims.iter().zip(lengths) {
        store.try_acquire(&attempt(claim, length).with_ticket(ticket())).await.unwrap();
    }
    for (claim, length) in claims.iter().zip(lengths) {
        let Reply::Granted(grant) = store.try_acquire(&attempt(claim, 1)).await.unwrap() else { panic!("busy") };
        assert_eq!(grant.tokens.get(), length);
        assert!(grant.token > last, "{} after {last}", grant.token);
        last = FencingToken::new(grant.token.get() + u64::from(length) - 1);
        assert_eq!(renew(&store, claim, last, LONG).await, Standing::Held { remaining: LONG });
        assert_eq!(release(&store, claim).await, Released);
    }
    assert!(granted(&store, &claim(&key), LONG).await.token > last);
}

async fn a_withdrawal_hands_a_crossed_grant_over(world: World) {
    let store = world.store();
    let (key, [a, b, c]) = holder_and_two_waiters(&store).await;
    assert_eq!(release(&store, &a).await, Released);
    // The waiter has not received its grant, and leaves.
    store.withdraw(&twin(&b), LONG).await.unwrap();
    assert_eq!(holder(&store, &key).await.as_ref(), Some(c.id()));
    store.withdraw(&c, LONG).await.unwrap();
    assert_eq!(holder(&store, &key).await, None);
    granted(&store, &claim(&key), LONG).await;
}

async fn leaving_is_one_step_and_spares_the_holder(world: World) {
    let store = world.store();
    let key = key();
    let [a, b, c] = [(); 3].map(|()| claim(&key));
    let grant = granted(&store, &a, LONG).await;
    queued(&store, &b).await;
    queued(&store, &c).await;
    assert_eq!(release(&store, &b).await, AlreadyLost);
    assert_eq!(release(&store, &b).await, AlreadyLost, "repeated");
    assert_eq!(store.waiters(&a, LONG).await.unwrap(), 1);
    assert_eq!(renew(&store, &a, grant.token, LONG).await, Standing::Held { remaining: LONG });
    assert_eq!(ahead(&queued(&store, &c).await), 0);
    assert_eq!(release(&store, &a).await, Released);
    assert_eq!(holder(&store, &key).await.as_ref(), Some(c.id()));
    // A holder with an old ticket, as a late call could leave it: its release does not grant to
    // itself.
    let d = claim(&key);
    queued(&store, &d).await;
    assert_eq!(release(&store, &c).await, Released);
    assert_eq!(release(&store, &d).await, Released);
    assert_eq!(holder(&store, &key).await, None);
}

/// A renewal that started before the expiry and stalled could otherwise revive the lease.
async fn an_expired_lease_is_given_up_for_good(world: World) {
    let ([store, _], name) = world.two_stores().await;
    let key = key();
    let [a, b, c] = [(); 3].map(|()| claim(&key));
    granted(&store, &a, SHORT).await;
    opened(&store, &key).await;
    assert_eq!(record(&world, &name, &key).await.get_str("lockId").unwrap(), a.id().as_str());
    assert_eq!(release(&store, &a).await, AlreadyLost);
    let left = record(&world, &name, &key).await;
    assert!(!left.contains_key("lockId") && !left.contains_key("released") && !left.contains_key("owner"), "{left}");
    assert_eq!(left.get_str("expired").unwrap(), a.id().as_str());
    assert_eq!(release(&store, &a).await, AlreadyLost, "repeated");

    // The first waiter gets it, as after a release.
    granted(&store, &b, LONG).await;
    queued(&store, &c).await;
    end_lease(&world, &name, &key).await;
    opened(&store, &key).await;
    assert_eq!(release(&store, &b).await, AlreadyLost);
    assert_eq!(holder(&store, &key).await.as_ref(), Some(c.id()));
    assert_eq!(release(&store, &b).await, AlreadyLost, "what passed it on was no release");
    assert_eq!(release(&store, &c).await, Released);
}

async fn a_repeated_release_hands_nothing_over(world: World) {
    let store = world.store();
    let (key, [a, b, c]) = holder_and_two_waiters(&store).await;
    for _ in 0..3 {
        assert_eq!(release(&store, &a).await, Released);
        assert_eq!(holder(&store, &key).await.as_ref(), Some(b.id()));
    }
    assert_eq!(ahead(&queued(&store, &c).await), 0);
}

async fn no_grant_before_the_end_of_a_minimum_hold(world: World) {
    let store = world.store();
    let key = key();
    let [a, b, c] = [(); 3].map(|()| claim(&key));
    let hold = Duration::from_secs(5);
    granted(&store, &a, LONG).await;
    queued(&store, &b).await;
    queued(&store, &c).await;
    assert_eq!(store.release(&Release::new(a.clone()).with_hold_at_least(hold)).await.unwrap(), Released);
    assert_eq!(holder(&store, &key).await, None);
    let answers = [queued(&store, &b).await, queued(&store, &c).await];
    let between = answers[1].now.unwrap().saturating_since(answers[0].now.unwrap());
    let [first, second] = answers.map(|busy| busy.holder_remaining.unwrap());
    assert!(first <= hold && second <= hold + WINDOW && second + between > first, "{first:?} {second:?} {between:?}");
    tokio::time::sleep(first).await;
    granted(&store, &b, LONG).await;
    // A minimum hold that is over keeps nothing closed.
    let over = Release::new(b.clone()).with_hold_at_least(Duration::from_millis(1));
    tokio::time::sleep(Duration::from_millis(5)).await;
    assert_eq!(store.release(&over).await.unwrap(), Released);
    assert_eq!(holder(&store, &key).await.as_ref(), Some(c.id()));
}

async fn positions_wait_for_their_windows(world: World) {
    let (store, name) = world.named_store();
    let key = key();
    let [a, b, c] = [(); 3].map(|()| claim(&key));
    let window = Duration::from_secs(6);
    let attempt = |claim: &Claim| Attempt::new(claim.clone(), LONG).with_ticket(ticket()).with_turn_window(window);
    granted(&store, &a, LONG).await;
    let first = queue_up(&store, &attempt(&b)).await;
    let second = queue_up(&store, &attempt(&c)).await;
    assert!(first.holder_remaining.unwrap() <= LONG);
    let wait = second.holder_remaining.unwrap();
    assert!(wait > window + LONG / 2 && wait <= window + LONG, "{wait:?}");
    let ended = std::time::Instant::now();
    end_lease(&world, &name, &key).await;
    opened(&store, &key).await;
    // The lease is free, but only the first waiter may take it for a while.
    let busy = queue_up(&store, &attempt(&c)).await;
    assert_eq!(ahead(&busy), 1);
    assert!(busy.holder_remaining.unwrap() <= window);
    tokio::time::sleep(busy.holder_remaining.unwrap()).await;
    let Reply::Granted(_) = store.try_acquire(&attempt(&c)).await.unwrap() else { panic!("its window has come") };
    assert!(ended.elapsed() >= window);
    assert_eq!(store.waiters(&c, LONG).await.unwrap(), 1, "taking takes the ticket");
    assert_eq!(ahead(&queue_up(&store, &attempt(&b)).await), 0, "it has lost no place");
    assert_eq!(release(&store, &c).await, Released);
    assert_eq!(holder(&store, &key).await.as_ref(), Some(b.id()));
}

async fn newcomers_keep_the_order(world: World) {
    let (store, name) = world.named_store();
    let key = key();
    let [a, b, c] = [(); 3].map(|()| claim(&key));
    let window = LONG;
    granted(&store, &a, LONG).await;
    queued(&store, &b).await;
    end_lease(&world, &name, &key).await;
    opened(&store, &key).await;
    let newcomer = Attempt::new(c.clone(), LONG).with_turn_window(window);
    let Reply::Busy(busy) = store.try_acquire(&newcomer).await.unwrap() else { panic!("overtook the queue") };
    assert_eq!(busy.standing, QueueStanding::NotQueued);
    let wait = busy.holder_remaining.unwrap();
    assert!(wait > LONG / 2 && wait <= LONG, "{wait:?}");
    granted(&store, &b, LONG).await;
    assert_eq!(store.waiters(&b, LONG).await.unwrap(), 0);
}

/// The first waiter died after its last refresh. It is granted, and the next one takes over at the
/// end of the claim.
async fn dead_head_costs_its_claim(world: World) {
    let store = world.store();
    let key = key();
    let [a, dead, c] = [(); 3].map(|()| claim(&key));
    let first = granted(&store, &a, LONG).await;
    let short_claim = Ticket::new(LONG, Duration::from_millis(300), 8);
    queue_up(&store, &Attempt::new(dead.clone(), LONG).with_ticket(short_claim)).await;
    queued(&store, &c).await;
    assert_eq!(release(&store, &a).await, Released);
    let Standing::Waiting(reported) = store.renew(&standing(&c)).await.unwrap() else { panic!("not waiting") };
    assert_eq!(ahead(&reported), 0);
    assert!(reported.token.unwrap() > first.token);
    let wait = reported.holder_remaining.unwrap();
    assert!(wait <= Duration::from_millis(300), "{wait:?}");
    tokio::time::sleep(wait).await;
    granted(&store, &c, LONG).await;
    assert_eq!(release(&store, &dead).await, AlreadyLost);
}

async fn dead_tickets_are_skipped(world: World) {
    let (store, name) = world.named_store();
    let key = key();
    let [a, dead, late, c] = [(); 4].map(|()| claim(&key));
    granted(&store, &a, LONG).await;
    let life = LONG / 2;
    let brief = Ticket::new(life, LONG, 8);
    for claim in [&dead, &late] {
        queue_up(&store, &Attempt::new(claim.clone(), LONG).with_ticket(brief)).await;
    }
    for claim in [&dead, &late] {
        age_ticket(&world, &name, claim, life).await;
    }
    assert_eq!(store.waiters(&a, LONG).await.unwrap(), 0);
    let before = record(&world, &name, &key).await;
    assert_eq!(before.get_array("queue").unwrap().len(), 2);
    busy(&store, &claim(&key)).await;
    assert_eq!(record(&world, &name, &key).await, before, "a busy answer without a ticket cleans nothing up");
    assert_eq!(ahead(&queued(&store, &c).await), 0);
    assert_eq!(record(&world, &name, &key).await.get_array("queue").unwrap().len(), 1);
    // It is at the end of the queue again.
    assert_eq!(ahead(&queued(&store, &late).await), 1);
    assert_eq!(store.renew(&standing(&dead)).await.unwrap(), Standing::Gone(Loss::Gone));
    assert_eq!(release(&store, &a).await, Released);
    assert_eq!(holder(&store, &key).await.as_ref(), Some(c.id()));

    // All tickets are dead: the lease is free.
    let other = claim(&key);
    assert_eq!(release(&store, &late).await, AlreadyLost);
    queue_up(&store, &Attempt::new(other.clone(), LONG).with_ticket(brief)).await;
    age_ticket(&world, &name, &other, life).await;
    assert_eq!(release(&store, &c).await, Released);
    assert_eq!(holder(&store, &key).await, None);
    granted(&store, &claim(&key), LONG).await;
}

async fn full_queue(world: World) {
    let store = world.store();
    let key = key();
    let [a, b, c, d] = [(); 4].map(|()| claim(&key));
    granted(&store, &a, LONG).await;
    let small = |claim: &Claim| Attempt::new(claim.clone(), LONG).with_ticket(Ticket::new(LONG, LONG, 2));
    for claim in [&b, &c, &b] {
        queue_up(&store, &small(claim)).await;
    }
    let Reply::Busy(busy) = store.try_acquire(&small(&d)).await.unwrap() else { panic!("granted") };
    assert_eq!(busy.standing, QueueStanding::Full);
    assert_eq!(store.renew(&standing(&d)).await.unwrap(), Standing::Gone(Loss::Gone));
    assert_eq!(release(&store, &b).await, AlreadyLost);
    assert_eq!(ahead(&queue_up(&store, &small(&d)).await), 1);
    let none = Attempt::new(claim(&key), LONG).with_ticket(Ticket::new(LONG, LONG, 0));
    let Reply::Busy(busy) = store.try_acquire(&none).await.unwrap() else { panic!("granted") };
    assert_eq!(busy.standing, QueueStanding::Full);
}

/// Every change of the queue writes all tickets to the data, if not to the log.
async fn a_queue_is_small(world: World) {
    const WAITERS: usize = 63;
    let (store, name) = world.named_store();
    let key = key();
    granted(&store, &claim(&key), LONG).await;
    let holder = Holder::default().with_owner("web-123 pid 12345").with_metadata("program", "server");
    for _ in 0..WAITERS {
        let attempt = Attempt::new(claim(&key), LONG).with_ticket(ticket()).with_tokens(block(1 << 16));
        queue_up(&store, &attempt.with_holder(holder.clone())).await;
    }
    let record = record(&world, &name, &key).await;
    assert_eq!(record.get_array("queue").unwrap().len(), WAITERS);
    let size = size(&record);
    assert!(size < 11_000, "{size} bytes");
}

async fn thousands_wait_in_one_queue(world: World) {
    const PLACES: u32 = 4_000;
    let (store, name) = world.named_store();
    let key = key();
    let [first, last, none] = [(); 3].map(|()| claim(&key));
    granted(&store, &first, LONG).await;
    let life = LONG.as_millis() as i64;
    let line = (1..PLACES).map(|at| {
        let id = format!("ABCDEFGH-{at:016}");
        doc! { "id": id, "seen": DateTime::now(), "ttl": life, "claim": life, "tokens": 1 << 16, "owner": "web-123 pid 12345" }
    });
    let (of_key, queue) = (doc! { "_id": key.as_str() }, doc! { "queue": line.collect::<Vec<Document>>() });
    world.raw(&name).update_one(of_key, doc! { "$set": queue }).await.unwrap();
    let attempt = |claim: &Claim| Attempt::new(claim.clone(), LONG).with_ticket(Ticket::new(LONG, LONG, PLACES));
    assert_eq!(ahead(&queue_up(&store, &attempt(&last)).await), PLACES - 1);
    let Reply::Busy(busy) = store.try_acquire(&attempt(&none)).await.unwrap() else { panic!("granted") };
    assert_eq!(busy.standing, QueueStanding::Full);
    assert_eq!(release(&store, &first).await, Released);
    let head = "ABCDEFGH-0000000000000001";
    assert_eq!(holder(&store, &key).await.map(|id| id.to_string()), Some(head.to_owned()));
    let Standing::Waiting(busy) = store.renew(&standing(&last)).await.unwrap() else { panic!("not waiting") };
    assert_eq!(ahead(&busy), PLACES - 2);
    assert!(size(&record(&world, &name, &key).await) < 1 << 20);
}

/// Tickets that leave from the middle, and turns that are taken while others come.
async fn empty_places_keep_the_order(world: World) {
    let ([one, two], name) = world.two_stores().await;
    let key = key();
    let mut holder_now = claim(&key);
    granted(&one, &holder_now, LONG).await;
    let mut line = std::collections::VecDeque::new();
    for _ in 0..12 {
        line.push_back(claim(&key));
        queued(&one, &twin(line.back().unwrap())).await;
    }
    let mut had_empty_places = 0;
    for turn in 0..40 {
        if turn % 3 == 0 {
            let left = line.remove(line.len() / 2).unwrap();
            assert_eq!(release(&two, &twin(&left)).await, AlreadyLost);
        }
        line.push_back(claim(&key));
        assert_eq!(ahead(&queued(&two, &twin(line.back().unwrap())).await) as usize, line.len() - 1);
        let of_middle = &line[line.len() / 2];
        assert_eq!(ahead(&queued(&one, &twin(of_middle)).await) as usize, line.len() / 2, "refreshed where it is");
        let queue = record(&world, &name, &key).await.get_array("queue").unwrap().clone();
        let empty = queue.iter().filter(|place| place.as_document().is_some_and(Document::is_empty)).count();
        assert_eq!(queue.len() - empty, line.len());
        assert!(2 * empty <= line.len(), "{empty} empty places of {}", queue.len());
        had_empty_places += usize::from(empty > 0);
        assert_eq!(release(&one, &twin(&holder_now)).await, Released);
        holder_now = line.pop_front().unwrap();
        let after = record(&world, &name, &key).await;
        assert_eq!(after.get_str("lockId").unwrap(), holder_now.id().as_str(), "{turn}: {after}");
        if line.len() < 6 {
            for _ in 0..8 {
                line.push_back(claim(&key));
                queued(&one, &twin(line.back().unwrap())).await;
            }
        }
    }
    assert!(had_empty_places >= 20, "{had_empty_places}");
    for waiter in line.drain(..) {
        assert_eq!(release(&one, &twin(&holder_now)).await, Released);
        holder_now = waiter;
        assert_eq!(holder(&two, &key).await.as_ref(), Some(holder_now.id()));
    }
    assert_eq!(release(&one, &twin(&holder_now)).await, Released);
    assert!(record(&world, &name, &key).await.get("queue").is_none());
    granted(&one, &claim(&key), LONG).await;
}

/// The fast paths are for records without a queue.
async fn a_queue_with_an_empty_place_is_a_queue(world: World) {
    let ([one, two], name) = world.two_stores().await;
    let waiters_behind = async |key: &LockKey| {
        let line = [(); 4].map(|()| claim(key));
        for waiter in &line {
            queued(&two, waiter).await;
        }
        assert_eq!(release(&two, &line[1]).await, AlreadyLost);
        assert_eq!(record(&world, &name, key).await.get_array("queue").unwrap().len(), line.len());
        line
    };
    let [key, seen_free] = &[key(), key()];
    let first = claim(key);
    granted(&one, &first, LONG).await;
    let line = waiters_behind(key).await;
    assert_eq!(release(&one, &first).await, Released);
    assert_eq!(holder(&one, key).await.as_ref(), Some(line[0].id()));

    // The process has seen the key free before, so it tries the fast path.
    let key = seen_free;
    let before = claim(key);
    granted(&one, &before, LONG).await;
    assert_eq!(release(&one, &before).await, Released);
    granted(&two, &claim(key), LONG).await;
    let _ = waiters_behind(key).await;
    assert!(admin(&two).force_release(key, "a test").await.unwrap().is_some());
    assert_eq!(ahead(&queued(&one, &claim(key)).await), 3);
    let attempts = [claim(key)].map(|claim| Attempt::new(claim, LONG).with_ticket(ticket()));
    let replies = one.try_acquire_many(&attempts).await;
    assert!(replies.iter().all(|reply| matches!(reply, Ok(Reply::Busy(_)))), "{replies:?}");
}

/// Other members and change streams read what is written to the log.
async fn a_change_of_a_long_queue_is_small(world: World) {
    const WAITERS: usize = 32;
    let (store, name) = world.named_store();
    let key = key();
    let first = claim(&key);
    granted(&store, &first, LONG).await;
    let line: Vec<Claim> = (0..WAITERS).map(|_| claim(&key)).collect();
    for waiter in &line {
        queued(&store, waiter).await;
    }
    let mut changes = world.raw(&name).watch().await.unwrap();
    assert_eq!(release(&store, &first).await, Released);
    assert_eq!(release(&store, &line[WAITERS / 2]).await, AlreadyLost);
    queued(&store, &claim(&key)).await;
    for change in ["a hand-over", "a waiter that leaves", "a new waiter"] {
        let event = timeout(LONG, changes.next()).await.expect(change).unwrap().unwrap();
        let updated = event.update_description.unwrap().updated_fields;
        let size = size(&updated);
        assert!(size < 1_024, "{change} wrote {size} bytes: {updated}");
    }
}

async fn a_repeated_attempt_keeps_the_position(world: World) {
    let (store, name) = world.named_store();
    let key = key();
    let [a, b, c] = [(); 3].map(|()| claim(&key));
    granted(&store, &a, LONG).await;
    queued(&store, &b).await;
    queued(&store, &c).await;
    let seen = |record: &Document, at: usize| -> DateTime {
        *record.get_array("queue").unwrap()[at].as_document().unwrap().get_datetime("seen").unwrap()
    };
    let before = record(&world, &name, &key).await;
    tokio::time::sleep(Duration::from_millis(5)).await;
    let longer = Attempt::new(b.clone(), LONG).with_ticket(Ticket::new(LONG * 2, SHORT, 64)).with_tokens(block(5));
    assert_eq!(ahead(&queue_up(&store, &longer).await), 0);
    let after = record(&world, &name, &key).await;
    assert!(seen(&after, 0) > seen(&before, 0), "{after}");
    assert_eq!(seen(&after, 1), seen(&before, 1));
    assert_eq!(after.get_array("queue").unwrap()[0].as_document().unwrap().get_i32("tokens").unwrap(), 5);
    // Without a ticket an attempt returns the position, and refreshes nothing.
    assert_eq!(ahead(&busy(&store, &c).await), 1);
    assert_eq!(record(&world, &name, &key).await, after);
}

async fn refreshed_and_never_added(world: World) {
    let (store, name) = world.named_store();
    let key = key();
    let [a, b, c] = [(); 3].map(|()| claim(&key));
    let token = granted(&store, &a, LONG).await.token;
    assert_eq!(store.renew(&standing(&b)).await.unwrap(), Standing::Gone(Loss::Gone));
    assert_eq!(store.waiters(&a, LONG).await.unwrap(), 0, "added by a refresh");
    // The ticket lives as long as it is refreshed. Without that it would die in the second round.
    let life = LONG / 2;
    let brief = Ticket::new(life, LONG, 8);
    queue_up(&store, &Attempt::new(b.clone(), LONG).with_ticket(brief)).await;
    queued(&store, &c).await;
    for _ in 0..6 {
        age_ticket(&world, &name, &b, life / 2).await;
        let Standing::Waiting(busy) = store.renew(&standing(&b)).await.unwrap() else { panic!("not waiting") };
        assert_eq!((ahead(&busy), busy.token), (0, Some(token)));
        assert!(busy.holder_remaining.unwrap() > LONG / 2 && busy.holder_remaining.unwrap() <= LONG);
    }
    let Standing::Waiting(second) = store.renew(&standing(&c)).await.unwrap() else { panic!("not waiting") };
    let answer = queued(&store, &c).await;
    assert_eq!((second.standing, second.token), (answer.standing, answer.token));
    assert!(answer.now.unwrap() >= second.now.unwrap());
    let step = answer.now.unwrap().saturating_since(second.now.unwrap());
    assert_eq!(second.holder_remaining.unwrap(), answer.holder_remaining.unwrap() + step, "one account of the turn");
    assert_eq!(release(&store, &b).await, AlreadyLost);
    let before = record(&world, &name, &key).await;
    assert_eq!(store.renew(&standing(&b)).await.unwrap(), Standing::Gone(Loss::Gone));
    assert_eq!(record(&world, &name, &key).await, before, "added again by a refresh");
}

/// Tickets and leases on many keys, several on one, some gone, some granted.
async fn refreshes_of_many(world: World) {
    let store = world.store();
    let keys: Vec<LockKey> = (0..4).map(|_| key()).collect();
    let mut holders: Vec<(Claim, Grant)> = Vec::new();
    for key in &keys {
        let claim = claim(key);
        let grant = granted(&store, &claim, LONG).await;
        holders.push((claim, grant));
    }
    let waiters: Vec<Claim> = [0, 0, 1, 2, 3].map(|at: usize| claim(&keys[at])).into();
    for waiter in &waiters {
        queued(&store, waiter).await;
    }
    assert_eq!(release(&store, &holders[1].0).await, Released);
    assert_eq!(release(&store, &waiters[3]).await, AlreadyLost);
    let unknown = claim(&key());
    let lease = |at: usize| Renewal::lease(holders[at].0.clone(), holders[at].1.token, LONG);
    let batch = [
        standing(&waiters[0]),
        lease(0),
        standing(&waiters[1]),
        standing(&waiters[2]),
        lease(1),
        standing(&waiters[3]),
        standing(&unknown),
        standing(&waiters[4]),
        standing(&waiters[0]),
    ];
    let answers: Vec<String> = store
        .renew_many(&batch)
        .await
        .into_iter()
        .map(|answer| match answer.unwrap() {
            Standing::Waiting(busy) => format!("waiting {}", ahead(&busy)),
            Standing::Held { .. } => "held".into(),
            Standing::Gone(loss) => loss.as_str().into(),
            other => panic!("{other:?}"),
        })
        .collect();
    let expected = ["waiting 0", "held", "waiting 1", "held", "gone", "gone", "gone", "waiting 0", "waiting 0"];
    assert_eq!(answers, expected);
    let forced = admin(&store).force_release(&keys[1], "test").await.unwrap().unwrap();
    assert_eq!(forced.id.as_ref(), Some(waiters[2].id()));
    assert_eq!(store.renew(&standing(&waiters[2])).await.unwrap(), Standing::Gone(Loss::ForceReleased));
}

async fn waiters_are_counted(world: World) {
    let store = world.store();
    let a = claim(&key());
    assert_eq!(store.waiters(&a, LONG).await.unwrap(), 0, "no record");
    granted(&store, &a, LONG).await;
    for count in 1..4 {
        queued(&store, &claim(a.key())).await;
        assert_eq!(store.waiters(&a, LONG).await.unwrap(), count);
        assert_eq!(admin(&store).inspect(a.key()).await.unwrap().unwrap().waiting, Some(count));
    }
}

async fn force_release_leaves_the_queue(world: World) {
    let store = world.store();
    let key = key();
    let [a, b, c] = [(); 3].map(|()| claim(&key));
    let first = granted(&store, &a, LONG).await;
    queued(&store, &b).await;
    queued(&store, &c).await;
    admin(&store).force_release(&key, "test").await.unwrap().unwrap();
    assert_eq!(renew(&store, &a, first.token, LONG).await, Standing::Gone(Loss::ForceReleased));
    // The window of the second waiter has not begun.
    let attempt = Attempt::new(c.clone(), LONG).with_ticket(ticket()).with_turn_window(LONG);
    assert_eq!(ahead(&queue_up(&store, &attempt).await), 1);
    assert!(granted(&store, &b, LONG).await.token.get() > first.token.get() + 1);
    assert_eq!(release(&store, &a).await, AlreadyLost, "of the victim");
    assert_eq!(holder(&store, &key).await.as_ref(), Some(b.id()));
}

async fn odd_values_in_tickets(world: World) {
    let store = world.store();
    for text in ["$expiresAt", "$$NOW", "$$ROOT", "a.b", "\0", "$", "{}", "🔒"] {
        let key = LockKey::new(text).unwrap();
        let a = claim(&key);
        granted(&store, &a, LONG).await;
        let b = Claim::new(key.clone(), distlock_api::AcquisitionId::new(text));
        let said = AcquireOptions::new().with_owner(text).with_metadata(text, text);
        for _ in 0..2 {
            let attempt = Attempt::new(b.clone(), LONG).with_ticket(ticket()).with_holder(said.holder().clone());
            assert_eq!(ahead(&queue_up(&store, &attempt).await), 0);
            assert!(matches!(store.renew(&standing(&b)).await.unwrap(), Standing::Waiting(_)));
        }
        assert_eq!(release(&store, &a).await, Released);
        let info = admin(&store).inspect(&key).await.unwrap().unwrap();
        assert_eq!((info.id.as_ref().unwrap().as_str(), info.owner.as_deref()), (text, Some(text)));
        assert_eq!(info.metadata.get(text).map(String::as_str), Some(text));
        assert_eq!(release(&store, &b).await, Released);
    }
}

/// Tickets that an older or newer version has written, or a person.
async fn odd_queues_are_none(world: World) {
    let (store, name) = world.named_store();
    let now = DateTime::now();
    let odd_tickets = vec![
        doc! { "id": "a" },
        doc! { "id": 7, "seen": now, "ttl": 60_000, "claim": 1000, "tokens": 1 },
        doc! { "id": "a", "seen": "now", "ttl": 60_000, "claim": 1000, "tokens": 1 },
        doc! { "id": "a", "seen": now, "ttl": "$x", "claim": 1000, "tokens": 1 },
        doc! { "id": "a", "seen": now, "ttl": 60_000, "claim": "1000", "tokens": 1 },
        doc! { "id": "a", "seen": now, "ttl": 60_000, "claim": 1000 },
    ];
    let mut odd: Vec<Bson> = odd_tickets.into_iter().map(|ticket| Bson::Array(vec![ticket.into()])).collect();
    odd.extend([
        Bson::from("queue"),
        7.into(),
        Bson::Null,
        doc! { "id": "a" }.into(),
        Bson::Array(vec![7.into(), Bson::Null]),
    ]);
    let mut tickets = Vec::new();
    for queue in odd {
        let key = key();
        world
            .raw(&name)
            .insert_one(doc! { "_id": key.as_str(), "fencingToken": 7_i64, "queue": &queue })
            .await
            .unwrap();
        let (a, b, c) = (claim(&key), claim(&key), claim(&key));
        assert_eq!(release(&store, &a).await, AlreadyLost, "{queue}");
        assert_eq!(store.waiters(&a, LONG).await.unwrap(), 0, "{queue}");
        let grant = granted(&store, &a, LONG).await;
        world.raw(&name).update_one(doc! { "_id": key.as_str() }, doc! { "$set": { "queue": &queue } }).await.unwrap();
        renew(&store, &a, grant.token, LONG).await;
        assert!(matches!(store.renew(&standing(&b)).await.unwrap(), Standing::Gone(_)), "{queue}");
        if !matches!(queue, Bson::Array(_) | Bson::Null) {
            // Whatever stood there is lost: a waiter must not wait as if it had the first place.
            let attempt = Attempt::new(b.clone(), LONG).with_ticket(ticket());
            let error = store.try_acquire(&attempt).await.unwrap_err();
            assert_eq!((error.kind(), error.is_outcome_unknown()), (ErrorKind::Corrupt, false), "{queue}: {error}");
            crate::guide::lists(&error);
            assert_eq!(release(&store, &a).await, Released, "{queue}");
            assert_eq!(holder(&store, &key).await, None, "{queue}");
            tickets.push(standing(&c));
            continue;
        }
        assert_eq!(ahead(&queued(&store, &b).await), 0, "{queue}");
        assert_eq!(release(&store, &a).await, Released);
        assert_eq!(holder(&store, &key).await.as_ref(), Some(b.id()), "{queue}");
        queued(&store, &c).await;
        world.raw(&name).update_one(doc! { "_id": key.as_str() }, doc! { "$set": { "queue": &queue } }).await.unwrap();
        assert_eq!(release(&store, &b).await, Released, "{queue}");
        assert_eq!(holder(&store, &key).await, None, "{queue}");
        let queue = if queue.as_document().is_some() { doc! { "id": c.id().as_str() }.into() } else { queue };
        world.raw(&name).update_one(doc! { "_id": key.as_str() }, doc! { "$set": { "queue": &queue } }).await.unwrap();
        tickets.push(standing(&c));
    }
    // None of them makes a batch fail.
    let well = claim(&key());
    granted(&store, &claim(well.key()), LONG).await;
    queued(&store, &well).await;
    tickets.push(standing(&well));
    let answers = store.renew_many(&tickets).await;
    assert!(matches!(answers.last().unwrap(), Ok(Standing::Waiting(_))), "{answers:?}");
}

/// Many claims of two stores. Each tries until it is granted, and then releases.
async fn two_stores_hand_over_in_a_crowd(world: World) {
    let ([one, two], _) = world.two_stores().await;
    let key = key();
    let held = std::sync::atomic::AtomicBool::new(false);
    let last = std::sync::Mutex::new(FencingToken::new(0));
    let turns = (0..16).map(async |at| {
        let store = if at % 2 == 0 { &one } else { &two };
        for _ in 0..4 {
            let claim = claim(&key);
            let attempt = Attempt::new(claim.clone(), LONG).with_ticket(ticket()).with_tokens(block(1 + at));
            loop {
                match store.try_acquire(&attempt).await.unwrap() {
                    Reply::Granted(grant) => {
                        assert!(!held.swap(true, std::sync::atomic::Ordering::SeqCst), "two at once");
                        let mut last = last.lock().unwrap();
                        assert!(grant.token > *last);
                        *last = FencingToken::new(grant.token.get() + u64::from(grant.tokens.get()) - 1);
                        break;
                    }
                    _ => tokio::time::sleep(Duration::from_millis(u64::from(10 + at))).await,
                }
            }
            held.store(false, std::sync::atomic::Ordering::SeqCst);
            assert_eq!(release(store, &claim).await, Released);
        }
    });
    futures_util::future::join_all(turns).await;
    assert_eq!(holder(&one, &key).await, None);
    assert!(matches!(try_once(&one, &claim(&key), LONG).await, Reply::Granted(_)));
}
