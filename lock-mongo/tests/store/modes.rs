//! Shared leases and permits (R25–R30), each check on one key with several claims.

mod admin;
mod batch;
mod documents;
mod events;
mod faults;
mod older;
mod provider;
mod random;
mod renewal;

use std::num::NonZeroU32;
use std::time::Duration;

use distlock_api::ReleaseOutcome::{AlreadyLost, Released};
use distlock_api::{LockKey, Mode};
use distlock_engine::store::{
    Attempt, BusyReply, Claim, Grant, LeaseStore, QueueStanding, QueueStore, Release, Renewal, Reply, StoreCapabilities,
};
use distlock_mongo::MongoStore;
use distlock_mongo::mongodb::bson::{Bson, DateTime, Document, doc};

use super::Checks;
use super::world::{
    LONG, Sent, World, admin as admin_of, busy, claim, granted, key, opened, queued, random_name, release, size, ticket,
};

pub(super) fn add(checks: &mut Checks<'_>) {
    check!(checks, modes_are_declared);
    check!(checks, C26 readers_hold_a_key_together);
    check!(checks, R25 holders_beside_another_id_mean_nothing);
    check!(checks, R26 the_end_of_the_lease_is_the_latest);
    check!(checks, C27 permits_are_never_exceeded);
    check!(checks, C27 a_request_is_judged_by_its_own_number);
    check!(checks, R27 no_one_overtakes_a_waiting_writer);
    check!(checks, R27 large_permits_are_not_overtaken_by_small_ones);
    check!(checks, R28 a_release_grants_a_run_by_one_write);
    check!(checks, R28 a_run_ends_where_permits_do_not_fit);
    check!(checks, R28 a_waiter_that_leaves_lets_others_in);
    check!(checks, C29 a_dead_reader_delays_a_writer_to_its_own_expiry);
    check!(checks, C29 dead_permits_are_free_at_their_own_expiry);
    check!(checks, C6 a_repeated_attempt_has_the_same_tokens);
    check!(checks, C10 many_releases_are_remembered);
    check!(checks, C25 a_minimum_hold_stays_among_the_holders);
    check!(checks, a_full_key_has_room_again);
    check!(checks, a_waiter_beside_holders_knows_when_to_look);
    check!(checks, odd_holders_are_none);
    renewal::add(checks);
    admin::add(checks);
    batch::add(checks);
    documents::add(checks);
    events::add(checks);
    faults::add(checks);
    older::add(checks);
    provider::add(checks);
    random::add(checks);
}

const fn permits(take: u32, of: u32) -> Mode {
    Mode::Permits { take, of }
}

/// Makes a new claim of a key in a mode.
fn claim_in(mode: Mode, key: &LockKey) -> Claim {
    claim(key).with_mode(mode)
}

fn reader(key: &LockKey) -> Claim {
    claim_in(Mode::Shared, key)
}

async fn waiters(store: &MongoStore, claim: &Claim) -> u32 {
    store.waiters(claim, LONG).await.expect("an answer")
}

/// Returns the ids of those that hold a key, in the order of their grants.
async fn holders(store: &MongoStore, key: &LockKey) -> Vec<distlock_api::AcquisitionId> {
    let info = admin_of(store).inspect(key).await.expect("an answer");
    info.map(|info| info.holders.into_iter().map(|holder| holder.id).collect()).unwrap_or_default()
}

async fn record(world: &World, name: &str, key: &LockKey) -> Document {
    world.raw(name).find_one(doc! { "_id": key.as_str() }).await.expect("an answer").expect("a record")
}

/// A store, the name of its collection, and what it sends.
async fn watched_store(world: &World) -> (MongoStore, String, Sent) {
    let (client, sent) = world.recorded_client().await;
    let name = random_name("locks");
    let store = world.store_on(&client, &name);
    granted(&store, &claim(&key()), LONG).await; // sends `hello` to the server
    sent.take();
    (store, name, sent)
}

async fn modes_are_declared(world: World) {
    let declares = |capabilities: StoreCapabilities| capabilities.shared && capabilities.permits;
    let store = world.store();
    assert!(declares(store.capabilities()), "before the first answer");
    granted(&store, &claim(&key()), LONG).await;
    assert!(declares(store.capabilities()));
}

async fn readers_hold_a_key_together(world: World) {
    let (store, name, sent) = watched_store(&world).await;
    let key = key();
    let readers = [(); 3].map(|()| reader(&key));
    let mut last = 0;
    for reader in &readers {
        let grant = granted(&store, reader, LONG).await;
        assert!(grant.token.get() > last);
        last = grant.token.get();
    }
    assert_eq!(sent.take().len(), 3, "one command each");
    assert_eq!(holders(&store, &key).await, readers.each_ref().map(|reader| reader.id().clone()));
    for mode in [Mode::Exclusive, permits(1, 9)] {
        let reply = busy(&store, &claim_in(mode, &key)).await;
        assert!(reply.holder_remaining.unwrap() > LONG / 2, "{reply:?}");
    }
    let before = record(&world, &name, &key).await;
    assert_eq!(before.get_str("lockId").unwrap(), "shared");
    sent.take();
    for reader in &readers {
        assert_eq!(release(&store, reader).await, Released);
        assert_eq!(release(&store, reader).await, Released, "repeated");
    }
    assert_eq!(sent.take().len(), 7, "one command each, and one more for the first, which came alone");
    let after = record(&world, &name, &key).await;
    for gone in ["lockId", "holders", "grants", "queue", "owner", "step"] {
        assert!(!after.contains_key(gone), "{gone} in {after}");
    }
    let writer = claim(&key);
    assert!(granted(&store, &writer, LONG).await.token.get() > last, "C5");
    assert!(matches!(busy(&store, &reader(&key)).await.standing, QueueStanding::NotQueued));
    assert_eq!(release(&store, &writer).await, Released);
    assert_eq!(release(&store, &readers[0]).await, Released, "it is remembered");
    assert_eq!(release(&store, &reader(&key)).await, AlreadyLost);
}

/// As a process that knows no modes leaves them.
async fn holders_beside_another_id_mean_nothing(world: World) {
    let (store, name) = world.named_store();
    let (mut left, later) = (reader(&key()), DateTime::from_millis(DateTime::now().timestamp_millis() + 60_000));
    let holder = |claim: &Claim| {
        doc! {
            "id": claim.id().as_str(), "token": 7_i64, "tokens": 1, "shared": true, "expiresAt": later,
            "acquiredAt": later, "ttl": 60_000_i64, "owner": "me",
        }
    };
    for lock_id in ["another", ""] {
        let key = key();
        left = Claim::new(key.clone(), left.id().clone()).with_mode(Mode::Shared);
        let mut found = doc! { "_id": key.as_str(), "fencingToken": 7_i64, "tokens": 1, "holders": [holder(&left)] };
        if !lock_id.is_empty() {
            found.extend(doc! { "lockId": lock_id, "expiresAt": later });
        }
        world.raw(&name).insert_one(found).await.unwrap();
        assert_eq!(admin_of(&store).release_owner("me", "test").await.unwrap(), 0);
        assert_eq!(holders(&store, &key).await, []);
        assert_eq!(release(&store, &left).await, AlreadyLost);
        let new = reader(&key);
        if lock_id.is_empty() {
            granted(&store, &new, LONG).await;
            assert_eq!(holders(&store, &key).await, [new.id().clone()]);
        } else {
            busy(&store, &new).await;
            assert!(admin_of(&store).force_release(&key, "test").await.unwrap().is_some());
            assert!(!record(&world, &name, &key).await.contains_key("holders"));
        }
    }
}

async fn the_end_of_the_lease_is_the_latest(world: World) {
    let (store, name) = world.named_store();
    let key = key();
    let (long, brief) = (reader(&key), reader(&key));
    let end = async || {
        let record = record(&world, &name, &key).await;
        let of = |holder: &Document| holder.get_datetime("expiresAt").unwrap().timestamp_millis();
        let holders = record.get_array("holders").unwrap().iter().map(|holder| of(holder.as_document().unwrap()));
        let (latest, end) = (holders.max().unwrap(), of(&record));
        assert_eq!(latest, end, "{record}");
        end
    };
    granted(&store, &long, LONG).await;
    let first = end().await;
    let token = granted(&store, &brief, LONG / 2).await.token;
    assert_eq!(end().await, first, "it is not shortened");
    super::world::renew(&store, &brief, token, LONG * 2).await;
    let second = end().await;
    assert!(second > first, "the TTL index spares the record");
    assert_eq!(release(&store, &brief).await, Released);
    assert_eq!(end().await, first, "that of the reader that is left");
    granted(&store, &long, LONG * 3).await;
    assert!(end().await > second, "by a repeated attempt");
}

async fn permits_are_never_exceeded(world: World) {
    let store = world.store();
    let key = key();
    let (two, one) = (claim_in(permits(2, 3), &key), claim_in(permits(1, 3), &key));
    let first = granted(&store, &two, LONG).await;
    let second = granted(&store, &one, LONG).await;
    assert!(second.token > first.token);
    for mode in [permits(1, 3), permits(3, 3), Mode::Shared, Mode::Exclusive] {
        busy(&store, &claim_in(mode, &key)).await;
    }
    assert_eq!(release(&store, &two).await, Released);
    let [a, b] = [(); 2].map(|()| claim_in(permits(1, 3), &key));
    granted(&store, &a, LONG).await;
    granted(&store, &b, LONG).await;
    busy(&store, &claim_in(permits(1, 3), &key)).await;
    for claim in [one, a, b] {
        assert_eq!(release(&store, &claim).await, Released);
    }
    granted(&store, &claim(&key), LONG).await;
}

async fn a_request_is_judged_by_its_own_number(world: World) {
    let store = world.store();
    let key = key();
    let held = [(); 3].map(|()| claim_in(permits(1, 5), &key));
    for claim in &held {
        granted(&store, claim, LONG).await;
    }
    busy(&store, &claim_in(permits(1, 3), &key)).await;
    granted(&store, &claim_in(permits(1, 4), &key), LONG).await;
    busy(&store, &claim_in(permits(u32::MAX, u32::MAX), &key)).await;
    granted(&store, &claim_in(permits(1, u32::MAX), &key), LONG).await;
}

async fn ahead(store: &MongoStore, claim: &Claim) -> u32 {
    match queued(store, claim).await.standing {
        QueueStanding::Queued { ahead } => ahead,
        other => panic!("{other:?}"),
    }
}

async fn no_one_overtakes_a_waiting_writer(world: World) {
    let store = world.store();
    let key = key();
    let (held, writer, behind) = (reader(&key), claim(&key), reader(&key));
    granted(&store, &held, LONG).await;
    assert_eq!(ahead(&store, &writer).await, 0);
    busy(&store, &reader(&key)).await;
    assert_eq!(ahead(&store, &behind).await, 1, "it would fit");
    assert_eq!(ahead(&store, &behind).await, 1, "and it is repeated");
    granted(&store, &held, LONG).await;
    assert_eq!(release(&store, &held).await, Released);
    assert_eq!(waiters(&store, &writer).await, 1, "the writer was granted");
    let info = admin_of(&store).inspect(&key).await.unwrap().unwrap();
    assert_eq!((info.id.as_ref(), info.mode()), (Some(writer.id()), Mode::Exclusive));
    assert_eq!(release(&store, &writer).await, Released);
    assert_eq!(holders(&store, &key).await, [behind.id().clone()]);
}

async fn large_permits_are_not_overtaken_by_small_ones(world: World) {
    let store = world.store();
    let key = key();
    let held = [(); 2].map(|()| claim_in(permits(1, 3), &key));
    for claim in &held {
        granted(&store, claim, LONG).await;
    }
    let (large, small) = (claim_in(permits(3, 3), &key), claim_in(permits(1, 3), &key));
    assert_eq!(ahead(&store, &large).await, 0);
    busy(&store, &small).await;
    assert_eq!(ahead(&store, &small).await, 1);
    assert_eq!(release(&store, &held[0]).await, Released);
    assert_eq!(waiters(&store, &large).await, 2, "there is no room for the head");
    assert_eq!(release(&store, &held[1]).await, Released);
    assert_eq!(holders(&store, &key).await, [large.id().clone()]);
    assert_eq!(release(&store, &large).await, Released);
    assert_eq!(holders(&store, &key).await, [small.id().clone()]);
}

/// An attempt for a block of tokens.
fn attempt(claim: &Claim, tokens: u32) -> Attempt {
    Attempt::new(claim.clone(), LONG).with_ticket(ticket()).with_tokens(NonZeroU32::new(tokens).unwrap())
}

async fn again(store: &MongoStore, claim: &Claim) -> Grant {
    granted(store, claim, LONG).await
}

async fn a_release_grants_a_run_by_one_write(world: World) {
    let (store, name, sent) = watched_store(&world).await;
    let key = key();
    let (first, second) = (claim(&key), claim(&key));
    let readers = [(); 4].map(|()| reader(&key));
    let grant = granted(&store, &first, LONG).await;
    for (at, reader) in readers[..3].iter().enumerate() {
        super::world::queue_up(&store, &attempt(reader, 1 + u32::try_from(at).unwrap())).await;
    }
    queued(&store, &second).await;
    queued(&store, &readers[3]).await;
    sent.take();
    assert_eq!(release(&store, &first).await, Released);
    let commands = sent.take();
    // The fast path for a lease without a waiter comes first, and changes nothing.
    assert_eq!(commands.len(), 2, "{commands:?}");
    assert_eq!(holders(&store, &key).await, readers[..3].iter().map(|reader| reader.id().clone()).collect::<Vec<_>>());
    assert_eq!(waiters(&store, &second).await, 2);
    let mut last = grant.token.get();
    for (at, reader) in readers[..3].iter().enumerate() {
        let grant = again(&store, reader).await;
        assert!(grant.token.get() > last, "{at}");
        assert_eq!(grant.tokens.get() as usize, 1 + at);
        last = grant.token.get() + at as u64;
    }
    assert_eq!(record(&world, &name, &key).await.get_i64("fencingToken").unwrap().unsigned_abs(), last);
    for (at, reader) in readers[..3].iter().enumerate() {
        assert_eq!(admin_of(&store).inspect(&key).await.unwrap().unwrap().holders.len(), 3 - at);
        sent.take();
        assert_eq!(release(&store, reader).await, Released);
        assert_eq!(sent.take().len(), 1, "one command");
    }
    assert_eq!(admin_of(&store).inspect(&key).await.unwrap().unwrap().id.as_ref(), Some(second.id()));
    let writing = again(&store, &second).await;
    assert!(writing.token.get() > last);
    assert_eq!(release(&store, &second).await, Released);
    assert!(again(&store, &readers[3]).await.token > writing.token);
    assert_eq!(waiters(&store, &second).await, 0);
}

async fn a_run_ends_where_permits_do_not_fit(world: World) {
    let store = world.store();
    let key = key();
    let writer = claim(&key);
    granted(&store, &writer, LONG).await;
    let waiting = [2, 1, 2, 1].map(|take| claim_in(permits(take, 4), &key));
    for claim in &waiting {
        queued(&store, claim).await;
    }
    assert_eq!(release(&store, &writer).await, Released);
    assert_eq!(holders(&store, &key).await, [waiting[0].id().clone(), waiting[1].id().clone()]);
    assert_eq!(release(&store, &waiting[1]).await, Released);
    assert_eq!(holders(&store, &key).await, [waiting[0].id().clone(), waiting[2].id().clone()]);
    assert_eq!(release(&store, &waiting[0]).await, Released);
    assert_eq!(holders(&store, &key).await, [waiting[2].id().clone(), waiting[3].id().clone()]);
    // Another mode ends a run, too.
    let others = [Mode::Shared, permits(1, 4)].map(|mode| claim_in(mode, &key));
    for claim in &others {
        queued(&store, claim).await;
    }
    for claim in &waiting[2..] {
        assert_eq!(release(&store, claim).await, Released);
    }
    assert_eq!(holders(&store, &key).await, [others[0].id().clone()]);
    assert_eq!(release(&store, &others[0]).await, Released);
    assert_eq!(holders(&store, &key).await, [others[1].id().clone()]);
}

async fn a_waiter_that_leaves_lets_others_in(world: World) {
    let store = world.store();
    for withdraws in [true, false] {
        let key = key();
        let (held, writer, [a, b]) = (reader(&key), claim(&key), [(); 2].map(|()| reader(&key)));
        granted(&store, &held, LONG).await;
        for waiter in [&writer, &a, &b] {
            queued(&store, waiter).await;
        }
        if withdraws {
            store.withdraw(&writer, LONG).await.unwrap();
        } else {
            assert_eq!(release(&store, &writer).await, AlreadyLost);
        }
        assert_eq!(holders(&store, &key).await, [held.id(), a.id(), b.id()].map(Clone::clone));
        assert_eq!(waiters(&store, &held).await, 0);
        for reader in [held, a, b] {
            assert_eq!(release(&store, &reader).await, Released);
        }
        assert!(admin_of(&store).inspect(&key).await.unwrap().is_none());
    }
}

async fn a_dead_reader_delays_a_writer_to_its_own_expiry(world: World) {
    let store = world.store();
    let key = key();
    let (dead, alive, writer) = (reader(&key), reader(&key), claim(&key));
    let brief = Duration::from_secs(6);
    let lost = granted(&store, &dead, brief).await.token;
    let kept = granted(&store, &alive, LONG).await.token;
    // It looks by then, because the other one may have released.
    let reply = queued(&store, &writer).await;
    assert!(reply.holder_remaining.unwrap() <= brief, "{reply:?}");
    let refreshed = store.renew(&Renewal::ticket(writer.clone(), ticket())).await.expect("an answer");
    let distlock_engine::store::Standing::Waiting(reply) = refreshed else { panic!("not waiting: {refreshed:?}") };
    assert!(reply.holder_remaining.unwrap() <= brief, "{reply:?}");
    assert_eq!(release(&store, &alive).await, Released);
    assert_eq!(waiters(&store, &writer).await, 1, "the dead one still counts");
    let reply = queued(&store, &writer).await;
    assert!(reply.holder_remaining.unwrap() <= brief, "{reply:?}");
    opened(&store, &key).await;
    let grant = granted(&store, &writer, LONG).await;
    assert!(grant.token > kept && kept > lost);
    let gone = distlock_engine::store::Standing::Gone(distlock_api::Loss::Gone);
    assert_eq!(super::world::renew(&store, &dead, lost, LONG).await, gone, "by the server's clock");
    assert_eq!(release(&store, &dead).await, AlreadyLost);
    assert_eq!(release(&store, &writer).await, Released);
}

async fn expired(store: &MongoStore, key: &LockKey, id: &distlock_api::AcquisitionId) {
    while holders(store, key).await.contains(id) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn dead_permits_are_free_at_their_own_expiry(world: World) {
    let (store, name) = world.named_store();
    let key = key();
    let (dead, alive, waiter) =
        (claim_in(permits(1, 2), &key), claim_in(permits(1, 2), &key), claim_in(permits(1, 2), &key));
    let brief = Duration::from_secs(6);
    granted(&store, &dead, brief).await;
    let kept = granted(&store, &alive, LONG).await.token;
    let reply = queued(&store, &waiter).await;
    assert!(reply.holder_remaining.unwrap() <= brief, "at the first of them: {reply:?}");
    expired(&store, &key, dead.id()).await;
    granted(&store, &waiter, LONG).await;
    assert_eq!(holders(&store, &key).await, [alive.id().clone(), waiter.id().clone()]);
    let record = record(&world, &name, &key).await;
    assert_eq!(record.get_str("expired").unwrap(), dead.id().as_str());
    assert_eq!(record.get_array("holders").unwrap().len(), 2, "the dead one is dropped");
    let held = distlock_engine::store::Standing::Held { remaining: LONG };
    assert_eq!(super::world::renew(&store, &alive, kept, LONG).await, held);
    assert_eq!(release(&store, &dead).await, AlreadyLost);
}

async fn a_repeated_attempt_has_the_same_tokens(world: World) {
    let store = world.store();
    let key = key();
    let (a, b) = (reader(&key), reader(&key));
    let Reply::Granted(first) = store.try_acquire(&attempt(&a, 10)).await.unwrap() else { panic!("busy") };
    assert_eq!(first.tokens.get(), 10);
    let second = granted(&store, &b, LONG).await;
    assert!(second.token.get() > first.token.get() + 9, "beyond the whole block");
    for (claim, grant) in [(&a, &first), (&b, &second)] {
        let repeated = again(&store, claim).await;
        assert_eq!((repeated.token, repeated.tokens), (grant.token, grant.tokens));
    }
    assert_eq!(holders(&store, &key).await, [a.id().clone(), b.id().clone()], "once each");
}

async fn many_releases_are_remembered(world: World) {
    let store = world.store();
    let key = key();
    let readers = [(); 20].map(|()| reader(&key));
    for reader in &readers {
        granted(&store, reader, LONG).await;
    }
    for reader in &readers {
        assert_eq!(release(&store, reader).await, Released);
    }
    for reader in &readers {
        assert_eq!(release(&store, reader).await, Released, "repeated");
    }
}

async fn a_minimum_hold_stays_among_the_holders(world: World) {
    let store = world.store();
    let key = key();
    let hold = Duration::from_secs(5);
    let (quick, other, writer) = (reader(&key), reader(&key), claim(&key));
    let token = granted(&store, &quick, LONG).await.token;
    let quickly = Release::new(quick.clone()).with_hold_at_least(hold);
    assert_eq!(store.release(&quickly).await.unwrap(), Released);
    assert_eq!(store.release(&quickly).await.unwrap(), Released, "repeated");
    assert_eq!(holders(&store, &key).await, [quick.id().clone()]);
    let gone = distlock_engine::store::Standing::Gone(distlock_api::Loss::Gone);
    assert_eq!(super::world::renew(&store, &quick, token, LONG).await, gone, "it is renewed no longer");
    granted(&store, &other, LONG).await;
    assert_eq!(release(&store, &other).await, Released);
    let reply = queued(&store, &writer).await;
    assert!(reply.holder_remaining.unwrap() <= hold, "{reply:?}");
    opened(&store, &key).await;
    granted(&store, &writer, LONG).await;
    // Later than that time it is a plain release.
    let slow = Release::new(writer).with_hold_at_least(Duration::from_millis(1));
    tokio::time::sleep(Duration::from_millis(5)).await;
    assert_eq!(store.release(&slow).await.unwrap(), Released);
    assert!(admin_of(&store).inspect(&key).await.unwrap().is_none());
}

/// The largest number of holders, with the owner and the remarks that providers write.
async fn a_full_key_has_room_again(world: World) {
    let (store, name) = world.named_store();
    let key = key();
    let readers: Vec<Claim> = (0..Mode::MAX_HOLDERS).map(|_| reader(&key)).collect();
    let holder = distlock_api::Holder::default().with_owner("web-123 pid 12345").with_metadata("program", "server");
    for reader in &readers {
        let reply = store.try_acquire(&Attempt::new(reader.clone(), LONG).with_holder(holder.clone())).await.unwrap();
        assert!(matches!(reply, Reply::Granted(_)), "{reply:?}");
    }
    let size = size(&record(&world, &name, &key).await);
    assert!(size < 64 << 10, "{size} bytes");
    let more = reader(&key);
    queued(&store, &more).await;
    assert_eq!(release(&store, &readers[7]).await, Released);
    assert_eq!(holders(&store, &key).await.last(), Some(more.id()));
}

async fn a_waiter_beside_holders_knows_when_to_look(world: World) {
    let store = world.store();
    let key = key();
    let (held, writer, behind) = (reader(&key), claim(&key), reader(&key));
    granted(&store, &held, LONG).await;
    let remaining = |reply: BusyReply| reply.holder_remaining.expect("known");
    let life = Duration::from_secs(6);
    let brief = distlock_engine::store::Ticket::new(life, LONG, 64);
    let attempt = Attempt::new(writer.clone(), LONG).with_ticket(brief);
    assert!(remaining(super::world::queue_up(&store, &attempt).await) > LONG / 2);
    let reply = remaining(queued(&store, &behind).await);
    assert!(reply <= life, "when the ticket ahead may have died: {reply:?}");
    tokio::time::sleep(reply).await;
    granted(&store, &behind, LONG).await;
}

/// As other programs may have written them.
async fn odd_holders_are_none(world: World) {
    let (store, name) = world.named_store();
    let later = DateTime::from_millis(DateTime::now().timestamp_millis() + 60_000);
    let holder = |id: &str| doc! { "id": id, "token": 7_i64, "tokens": 1, "shared": true, "expiresAt": later };
    for odd in [
        doc! { "holders": "odd" },
        doc! { "holders": [7, "odd", { "id": 7 }] },
        doc! { "holders": [{ "id": 7 }, { "id": 8 }] },
        doc! { "holders": [{ "expiresAt": "later", "id": "a", "token": 7_i64 }] },
    ] {
        let key = key();
        let mut found = doc! { "_id": key.as_str(), "fencingToken": 7_i64, "lockId": "shared", "expiresAt": later };
        found.extend(odd);
        world.raw(&name).insert_one(found).await.unwrap();
        // It is held until its end, by no one that is known.
        busy(&store, &reader(&key)).await;
        busy(&store, &claim(&key)).await;
        let waiter = claim(&key);
        queued(&store, &waiter).await;
        store.withdraw(&waiter, LONG).await.unwrap();
        assert!(!record(&world, &name, &key).await.contains_key("queue"));
        assert_eq!(release(&store, &reader(&key)).await, AlreadyLost);
        let info = admin_of(&store).inspect(&key).await.unwrap().unwrap();
        assert_eq!((info.id, info.holders.len()), (None, 0));
        admin_of(&store).force_release(&key, "test").await.unwrap().unwrap();
        granted(&store, &reader(&key), LONG).await;
    }
    // One that has the form of a holder beside others that do not.
    let key = key();
    let mut mixed = vec![Bson::from("odd")];
    mixed.push(holder("known").into());
    let found = doc! {
        "_id": key.as_str(), "fencingToken": 7_i64, "lockId": "shared", "expiresAt": later, "holders": mixed,
    };
    world.raw(&name).insert_one(found).await.unwrap();
    granted(&store, &reader(&key), LONG).await;
    assert_eq!(holders(&store, &key).await.len(), 2);
}
