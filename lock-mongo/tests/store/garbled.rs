//! Records that another program has changed: random BSON in every field, and then each operation.
//!
//! Whatever a record contains, no operation grants a key that the record says is held, panics,
//! disturbs another key, or changes a record and reports that it did not. The seed is printed with
//! a failure, and `DISTLOCK_GARBLED_SEED` sets it; `DISTLOCK_GARBLED_CASES` is the number of cases.

use std::future::IntoFuture;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use distlock_api::{
    ErrorKind, FencingToken, LeaseOptions, LockEvent, LockFilter, LockKey, LockProvider, LockProviderExt, Mode,
    RenewalPolicy, Result,
};
use distlock_conformance::Level;
use distlock_engine::store::{
    Attempt, BatchRenewStore, BatchStore, Claim, EventStore, LeaseStore, ProviderId, QueueStore, Release, Renewal,
    Reply, Standing, StoreEvent, Watch,
};
use distlock_mongo::mongodb::Collection;
use distlock_mongo::mongodb::bson::oid::ObjectId;
use distlock_mongo::mongodb::bson::{Binary, Bson, DateTime, Decimal128, Document, Timestamp, doc, spec};
use distlock_mongo::{DocumentLocks, MongoProvider, MongoStore};
use fastrand::Rng;
use futures_util::TryStreamExt;
use tokio::sync::OnceCell;
use tokio::time::{sleep, timeout};

use super::Checks;
use super::world::{LONG, World, admin, busy, claim, granted, key, queued, random_name, release, renew, ticket};

pub(super) fn add(checks: &mut Checks<'_>) {
    check!(checks, R32 no_value_in_a_record_grants_a_held_key);
    check!(checks, R32 no_value_in_a_lock_field_grants_a_held_key);
    if checks.is_replica_set() {
        check!(checks, R32 no_value_in_a_record_ends_a_stream);
    }
    check!(checks, R32 values_near_null_and_below_all_tokens_decide_nothing);
    check!(checks, R32 an_array_in_the_scratch_field_grants_no_held_key);
    check!(checks, R32 a_waiter_behind_a_garbled_queue_gets_an_error);
    check!(checks, R32 a_ticket_that_never_dies_is_dead);
    check!(checks, R32 a_record_without_a_known_end_is_freed_by_force);
    check!(checks, R32 a_holder_without_end_costs_the_others_nothing);
    check!(checks, R32 a_list_without_bound_disturbs_no_neighbour);
    check!(checks, R32 no_date_is_beyond_the_year_9999);
    check!(checks, alone R32 a_list_goes_on_by_one_record_at_a_time);
    check!(checks, alone R32 an_error_after_a_change_leaves_its_outcome_open);
}

/// The number of cases of each check, at the level standard; below it a fifth.
const CASES: u64 = 120;
/// The field of the application, in the documents with a lock field.
const APPLICATION: &str = "balance";

fn cases() -> u64 {
    if Level::from_env().expect("a level") < Level::Standard { CASES / 5 } else { CASES }
}

async fn no_value_in_a_record_grants_a_held_key(world: World) {
    let name = random_name("locks");
    run(Place::new(world.store_on(&world.client, &name), world.raw(&name), "")).await;
}

async fn no_value_in_a_lock_field_grants_a_held_key(world: World) {
    let raw = world.raw(&random_name("documents"));
    let store = DocumentLocks::<Document>::builder(&raw).build_store().expect("valid options");
    run(Place::new(store, raw, "lock.")).await;
}

/// Each change by hand is an event of the stream that all stores of the client share.
async fn no_value_in_a_record_ends_a_stream(world: World) {
    let name = random_name("locks");
    let place = Place::new(world.store_on(&world.client, &name), world.raw(&name), "");
    let watched = key();
    let me = ProviderId::random();
    let mut events = EventStore::subscribe(&place.store, &Watch::provider(me)).await.expect("a stream");
    let mut seen = admin(&place.store).watch().await.expect("a stream");
    let seed = number("DISTLOCK_GARBLED_SEED", fastrand::u64(..));
    let mut rng = Rng::with_seed(seed);
    for _ in 0..number("DISTLOCK_GARBLED_CASES", cases()) {
        let id = key();
        let claim = claim(&id);
        granted(&place.store, &claim, LONG).await;
        let fields = |rng: &mut Rng| (0..5).map(|_| (random_field(rng), random_value(rng, 3))).collect::<Document>();
        let mut set = fields(&mut rng);
        // Two paths of which one begins with the other are refused.
        for list in ["holders", "queue", "audit"] {
            let names: Vec<String> = set.keys().filter(|field| field.starts_with(list)).cloned().collect();
            names.iter().skip(1).for_each(|field| drop(set.remove(field)));
        }
        if rng.bool() {
            let last = doc! { "token": random_value(&mut rng, 2), "why": "by hand" };
            set.insert("audit", vec![last]);
            set.insert("revoked", "by hand");
        }
        let _ = place.raw.update_one(doc! { "_id": id.as_str() }, doc! { "$set": set }).await;
        if let Some(document) = place.read(&id).await
            && rng.bool()
        {
            let _ = place.raw.replace_one(doc! { "_id": id.as_str() }, document).await;
        }
    }
    // Both streams go on: this event is the last one.
    let own = Claim::new(watched.clone(), me.acquisition_id());
    granted(&place.store, &own, LONG).await;
    admin(&place.store).force_release(&watched, "check").await.expect("an answer");
    let is_last = |event: &StoreEvent| matches!(event, StoreEvent::Gone { id, .. } if id == own.id());
    let last = async { while !is_last(&events.try_next().await.expect("no error").expect("it goes on")) {} };
    timeout(Duration::from_secs(30), last).await.unwrap_or_else(|_| panic!("no event after the seed {seed}"));
    let is_last = |event: &LockEvent| matches!(event, LockEvent::ForceReleased { id, .. } if id == own.id());
    let last = async { while !is_last(&seen.try_next().await.expect("no error").expect("it goes on")) {} };
    timeout(Duration::from_secs(30), last).await.unwrap_or_else(|_| panic!("not seen after the seed {seed}"));
}

/// The first token of a block may be less than every 64-bit integer, and no conversion yields it.
/// MinKey is less than null, and still no absent field, nor is an array that contains null.
async fn values_near_null_and_below_all_tokens_decide_nothing(world: World) {
    const PERMITS: Mode = Mode::Permits { take: 1, of: 3 };
    let least = |token: &str, tokens: &str| vec![(token.to_owned(), i64::MIN.into()), (tokens.to_owned(), true.into())];
    let min_key = |field: &str| vec![(field.to_owned(), Bson::MinKey)];
    let with_null = |field: &str| vec![(field.to_owned(), vec![Bson::Null].into())];
    let name = random_name("locks");
    let place = Arc::new(Place::new(world.store_on(&world.client, &name), world.raw(&name), ""));
    for (before, changes, operation) in [
        (Before::Queue, least("fencingToken", "tokens"), Operation::Refresh),
        (Before::Held, least("fencingToken", "tokens"), Operation::ReleaseTogether),
        (Before::Readers, least("holders.0.token", "holders.0.tokens"), Operation::ReleaseTogether),
        (Before::Permits, min_key("closedUntil"), Operation::TryAcquire(PERMITS)),
        (Before::Permits, min_key("lockId"), Operation::Acquire(PERMITS)),
        (Before::Held, min_key("queue"), Operation::Acquire(Mode::Exclusive)),
        (Before::Free, with_null("closedUntil"), Operation::TryAcquire(Mode::Exclusive)),
        (Before::Free, with_null("closedUntil"), Operation::AcquireTogether),
        (Before::Held, with_null("lockId"), Operation::AcquireTogether),
    ] {
        let case = Case { before, changes, wrapped: None, operations: vec![operation] };
        check(&place, &case).await.unwrap_or_else(|failure| panic!("{case:?}: {failure}"));
    }
}

/// The case that was seen first: a `$set` of `step.do` sets it in each element of an array, and the
/// array counts as true.
async fn an_array_in_the_scratch_field_grants_no_held_key(world: World) {
    let (store, name) = world.named_store();
    for scratch in [Bson::Array(vec![]), vec![1].into(), doc! { "do": { "take": true } }.into(), true.into()] {
        let key = key();
        let holder = claim(&key);
        let token = granted(&store, &holder, LONG).await.token;
        let set = doc! { "$set": { "step": &scratch } };
        let _ = world.raw(&name).update_one(doc! { "_id": key.as_str() }, set).await.expect("an answer");
        for mode in [Mode::Exclusive, Mode::Shared] {
            let stranger = claim(&key).with_mode(mode);
            busy(&store, &stranger).await;
        }
        assert_eq!(renew(&store, &holder, token, LONG).await, Standing::Held { remaining: LONG }, "{scratch}");
        assert!(release(&store, &holder).await.is_released());
    }
}

/// The error names the record, also after the holder has left.
async fn a_waiter_behind_a_garbled_queue_gets_an_error(world: World) {
    let name = random_name("locks");
    let locks = || {
        let builder = MongoProvider::builder(world.client.database("distlock_test")).collection(&*name);
        builder.build().expect("valid options")
    };
    let (here, there) = (locks(), locks());
    let key = key();
    let held = here.acquire(&key).await.expect("free");
    let set = doc! { "$set": { "queue": 7 } };
    let _ = world.raw(&name).update_one(doc! { "_id": key.as_str() }, set).await.expect("an answer");
    // Without a limit.
    let waiting = timeout(Duration::from_secs(30), there.acquire(&key).into_future());
    let error = waiting.await.expect("not for ever").unwrap_err();
    assert_eq!((error.kind(), error.key()), (ErrorKind::Corrupt, Some(&key)), "{error}");
    assert!(error.to_string().contains("`queue` is no list"), "{error}");
    assert!(!held.is_lost());
    assert!(held.release().await.expect("an answer").is_released());
    let next = timeout(Duration::from_secs(30), there.acquire(&key).into_future());
    drop(next.await.expect("not for ever").expect("the release has repaired it"));
    for locks in [here, there] {
        locks.close().await.expect("an answer");
        assert!(locks.accounting().balances());
    }
}

async fn a_ticket_that_never_dies_is_dead(world: World) {
    let (store, name) = world.named_store();
    let endless = [
        Bson::Double(f64::NAN),
        f64::INFINITY.into(),
        f64::NEG_INFINITY.into(),
        1e300.into(),
        i64::MAX.into(),
        "1E+6000".parse::<Decimal128>().expect("a number").into(),
    ];
    let mut keys = Vec::new();
    for ttl in endless {
        let key = key();
        granted(&store, &claim(&key), LONG).await;
        let ticket = doc! { "id": "x", "seen": DateTime::now(), "ttl": ttl, "claim": 1000, "tokens": 1 };
        let set = doc! { "$set": { "queue": [ticket] } };
        let _ = world.raw(&name).update_one(doc! { "_id": key.as_str() }, set).await.expect("an answer");
        keys.push(key);
    }
    let listed = admin(&store).page(&LockFilter::new(), None, NonZeroUsize::MAX).await.expect("all");
    assert_eq!(listed.len(), keys.len());
    assert!(listed.iter().all(|info| info.waiting == Some(0) && info.unreadable.is_none()), "{listed:?}");
    for key in keys {
        assert!(admin(&store).force_release(&key, "check").await.expect("an answer").is_some(), "{key}");
        granted(&store, &claim(&key), LONG).await;
    }
}

async fn a_record_without_a_known_end_is_freed_by_force(world: World) {
    let (store, name) = world.named_store();
    let timestamp = Timestamp { time: 7, increment: 7 };
    for (field, end) in [
        ("expiresAt", Bson::from("tomorrow")),
        ("expiresAt", timestamp.into()),
        ("expiresAt", DateTime::MAX.into()),
        ("closedUntil", true.into()),
        ("closedUntil", Bson::MinKey),
        ("closedUntil", Bson::MaxKey),
    ] {
        let key = key();
        let holder = claim(&key);
        granted(&store, &holder, LONG).await;
        if field == "closedUntil" {
            assert!(release(&store, &holder).await.is_released());
        }
        let set = doc! { "$set": { field: &end } };
        let _ = world.raw(&name).update_one(doc! { "_id": key.as_str() }, set).await.expect("an answer");
        for attempt in [Attempt::new(claim(&key), LONG), Attempt::new(claim(&key), LONG).with_ticket(ticket())] {
            let error = store.try_acquire(&attempt).await.unwrap_err();
            assert_eq!((error.kind(), error.key()), (ErrorKind::Corrupt, Some(&key)), "{field} {end}: {error}");
            crate::guide::lists(&error);
        }
        let listed = admin(&store).page(&LockFilter::new().prefix(key.as_str()), None, NonZeroUsize::MIN).await;
        assert!(listed.expect("an answer")[0].unreadable.as_deref().is_some_and(|why| why.contains(field)));
        assert!(admin(&store).force_release(&key, "check").await.expect("an answer").is_some(), "{field} {end}");
        granted(&store, &claim(&key), LONG).await;
    }
}

/// The end of one reader is beyond the year 9999. Each change of the record computes the latest end
/// of all.
async fn a_holder_without_end_costs_the_others_nothing(world: World) {
    let (store, name) = world.named_store();
    let reader = |key: &LockKey| claim(key).with_mode(Mode::Shared);
    for leaves in [false, true] {
        let key = key();
        let [garbled, other, next] = [reader(&key), reader(&key), reader(&key)];
        granted(&store, &garbled, LONG).await;
        let token = granted(&store, &other, LONG).await.token;
        let set = doc! { "$set": { "holders.0.expiresAt": DateTime::MAX } };
        let _ = world.raw(&name).update_one(doc! { "_id": key.as_str() }, set).await.expect("an answer");
        if leaves {
            assert!(release(&store, &other).await.is_released());
        } else {
            assert_eq!(renew(&store, &other, token, LONG).await, Standing::Held { remaining: LONG });
        }
        granted(&store, &next, LONG).await;
        for attempt in [Attempt::new(claim(&key), LONG), Attempt::new(claim(&key), LONG).with_ticket(ticket())] {
            let error = store.try_acquire(&attempt).await.unwrap_err();
            assert_eq!((error.kind(), error.key()), (ErrorKind::Corrupt, Some(&key)), "{error}");
        }
        let others = if leaves { vec![&next] } else { vec![&next, &other] };
        for reader in others.into_iter().chain([&garbled]) {
            assert!(release(&store, reader).await.is_released());
        }
        granted(&store, &claim(&key), LONG).await;
    }
}

/// A record with more holders, or more tickets, than any operation makes.
async fn a_list_without_bound_disturbs_no_neighbour(world: World) {
    let name = random_name("locks");
    let locks = MongoProvider::builder(world.client.database("distlock_test")).collection(&*name);
    let every = RenewalPolicy::Every(Duration::from_secs(1));
    let lease = LeaseOptions::new().ttl(Duration::from_secs(6)).renewal(every);
    let locks = locks.lease(lease).build().expect("valid options");
    let end = later();
    let holder = |n: i32| doc! { "id": format!("{n}"), "token": 7_i64, "tokens": 1, "expiresAt": end, "shared": true };
    let ticket =
        |n: i32| doc! { "id": format!("{n}"), "seen": DateTime::now(), "ttl": 60_000, "claim": 1, "tokens": 1 };
    for (list, lock_id, entries) in [
        ("holders", "shared", (0..40_000).map(holder).collect::<Vec<_>>()),
        ("queue", "another", (0..40_000).map(ticket).collect()),
    ] {
        let key = key();
        let record =
            doc! { "_id": key.as_str(), "lockId": lock_id, "fencingToken": 7_i64, "expiresAt": end, list: entries };
        world.raw(&name).insert_one(record).await.expect("an answer");
        let mut neighbours = Vec::new();
        for _ in 0..8 {
            neighbours.push(locks.acquire(self::key()).await.expect("free"));
        }
        let error = locks.acquire(&key).await.unwrap_err();
        assert_eq!((error.kind(), error.key()), (ErrorKind::Corrupt, Some(&key)), "{error}");
        assert!(error.to_string().contains(&format!("`{list}` is longer")), "{error}");
        let forced = locks.admin().expect("there is one").force_release(&key, "check").await;
        assert_eq!(forced.unwrap_err().kind(), ErrorKind::Corrupt);
        for neighbour in neighbours {
            assert!(neighbour.release().await.expect("an answer").is_released(), "beside `{list}`");
        }
    }
    locks.close().await.expect("an answer");
}

/// A projection is computed after the change, so the error may be that of a change that was made.
async fn an_error_after_a_change_leaves_its_outcome_open(world: World) {
    let (name, key) = (random_name("locks"), key());
    // Each call has a client of its own: the clean-up of another one would meet its fault.
    let with_fault = async |command: &'static str, code: i32| {
        let (client, app) = world.client_of_app().await;
        let builder = MongoProvider::builder(client.database("distlock_test")).collection(&*name);
        let locks = builder.build().expect("valid");
        world.fail(&app, command, doc! { "errorCode": code }).await;
        locks
    };
    for code in [14, 15, 241, 16554] {
        let operator = with_fault("findAndModify", code).await;
        let forced = operator.admin().expect("there is one").force_release(&key, "check").await.unwrap_err();
        let locks = with_fault("findAndModify", code).await;
        // Without a limit: no wait mends the record.
        let acquired = timeout(Duration::from_secs(30), locks.acquire(&key).into_future()).await.expect("not for ever");
        for error in [forced, acquired.map(drop).unwrap_err()] {
            assert_eq!((error.kind(), error.is_outcome_unknown()), (ErrorKind::Corrupt, true), "{code}: {error}");
            crate::guide::lists(&error);
        }
        drop(locks.acquire(&key).await.expect("free again"));
        locks.close().await.expect("an answer");
        assert!(locks.accounting().balances() && locks.accounting().unsettled == 0);
        let operator = with_fault("find", code).await;
        let error = operator.admin().expect("there is one").inspect(&key).await.unwrap_err();
        assert_eq!((error.kind(), error.is_outcome_unknown()), (ErrorKind::Corrupt, false), "{code}: {error}");
    }
}

/// The server fails to compute with the first query, as it does for all records if it does for one.
async fn a_list_goes_on_by_one_record_at_a_time(world: World) {
    let (client, app) = world.client_of_app().await;
    let store = world.store_on(&client, &random_name("locks"));
    let mut keys: Vec<LockKey> = (0..5).map(|_| key()).collect();
    for key in &keys {
        granted(&store, &claim(key), LONG).await;
    }
    keys.sort();
    for after in [None, Some(&keys[1])] {
        // The first query, and that of the second key it is followed by.
        let data = doc! { "failCommands": ["find"], "appName": &app, "errorCode": 241 };
        world.admin(doc! { "configureFailPoint": "failCommand", "mode": { "times": 1 }, "data": data }).await;
        let limit = NonZeroUsize::new(3).expect("not zero");
        let page = admin(&store).page(&LockFilter::new(), after, limit).await.expect("the others");
        let listed: Vec<_> = page.iter().map(|info| (&info.key, info.unreadable.is_some())).collect();
        let from = if after.is_some() { 2 } else { 0 };
        assert_eq!(listed, [0, 1, 2].map(|at| (&keys[from + at], false)));
    }
}

/// Tokens of another scale, such as nanoseconds, are reached by the clock long after that.
async fn no_date_is_beyond_the_year_9999(world: World) {
    let (store, name) = world.named_store();
    let key = key();
    granted(&store, &claim(&key), LONG).await;
    let far = 1_700_000_000_000_000_000_i64;
    let set = doc! { "$set": { "fencingToken": far } };
    let _ = world.raw(&name).update_one(doc! { "_id": key.as_str() }, set).await.expect("an answer");
    let latest = DateTime::from_millis(253_402_300_799_999);
    let ends_in_time = async || {
        let record =
            world.raw(&name).find_one(doc! { "_id": key.as_str() }).await.expect("an answer").expect("a record");
        let end = *record.get_datetime("expiresAt").expect("a date");
        assert!(end <= latest, "{end}");
    };
    assert!(admin(&store).force_release(&key, "check").await.expect("an answer").is_some());
    ends_in_time().await;
    for hold in [None, Some(Duration::from_millis(1))] {
        let next = claim(&key);
        assert!(granted(&store, &next, LONG).await.token.get() > far.unsigned_abs());
        let mut release = Release::new(next);
        release.hold_at_least = hold;
        assert!(store.release(&release).await.expect("an answer").is_released());
        ends_in_time().await;
        while admin(&store).inspect(&key).await.expect("an answer").is_some() {
            sleep(Duration::from_millis(1)).await;
        }
    }
    // A floor from which the clock is so far away is refused, before anything is sent.
    let floor = FencingToken::new(far.unsigned_abs());
    let builder = MongoProvider::builder(world.client.database("distlock_test")).token_floor(floor);
    for error in [builder.build().map(drop).unwrap_err(), store.raise_tokens(floor).await.unwrap_err()] {
        assert_eq!(error.kind(), ErrorKind::InvalidOptions, "{error}");
        assert!(error.to_string().contains("year 9999"), "{error}");
    }
}

/// A store, and its documents by hand.
struct Place {
    store: MongoStore,
    raw: Collection<Document>,
    /// Of the paths of a record's fields.
    prefix: &'static str,
    /// The neighbours of all keys that are changed.
    neighbour: OnceCell<Neighbour>,
}

/// A key that no check changes, with its holder and a waiter.
struct Neighbour {
    holder: Claim,
    token: FencingToken,
    waiter: Claim,
}

fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).map_or(otherwise, |text| text.parse().expect("a number"))
}

async fn run(place: Place) {
    let seed = number("DISTLOCK_GARBLED_SEED", fastrand::u64(..));
    let cases = number("DISTLOCK_GARBLED_CASES", cases());
    let place = Arc::new(place);
    for number in 0..cases {
        let case = Case::random(&mut Rng::with_seed(seed.wrapping_add(number)));
        let Err(failure) = check(&place, &case).await else { continue };
        // Of several fields, the first one that is enough.
        let singles = case.changes.iter().map(|one| Case { changes: vec![one.clone()], wrapped: None, ..case.clone() });
        let wrapped = case.wrapped.iter().map(|_| Case { changes: vec![], ..case.clone() });
        for single in singles.chain(wrapped) {
            if let Err(failure) = check(&place, &single).await {
                panic!("DISTLOCK_GARBLED_SEED={} with 1 case: {single:?}: {failure}", seed.wrapping_add(number));
            }
        }
        panic!("DISTLOCK_GARBLED_SEED={} with 1 case: {case:?}: {failure}", seed.wrapping_add(number));
    }
    println!("{cases} cases from the seed {seed}");
}

/// What a record is like before it is changed by hand.
#[derive(Clone, Copy, Debug)]
enum Before {
    Free,
    Held,
    /// Held, with two waiters.
    Queue,
    /// Held by two readers.
    Readers,
    /// Held by two readers, with a writer and a reader behind them.
    ReadersAndQueue,
    /// Two of three permits are taken.
    Permits,
    /// Closed by a minimum hold.
    Closed,
}

const BEFORE: [Before; 7] = [
    Before::Free,
    Before::Held,
    Before::Queue,
    Before::Readers,
    Before::ReadersAndQueue,
    Before::Permits,
    Before::Closed,
];

#[derive(Clone, Copy, Debug)]
enum Operation {
    TryAcquire(Mode),
    /// With a ticket, which goes by the fast paths first.
    Acquire(Mode),
    AcquireTogether,
    Release,
    ReleaseTogether,
    Withdraw,
    WithdrawTogether,
    Renew,
    Refresh,
    Waiters,
    Inspect,
    List,
    History,
    ForceRelease,
    ForceReleaseHolder,
    ReleaseOwner,
}

const OPERATIONS: [Operation; 21] = [
    Operation::TryAcquire(Mode::Exclusive),
    Operation::TryAcquire(Mode::Shared),
    Operation::TryAcquire(Mode::Permits { take: 1, of: 3 }),
    Operation::Acquire(Mode::Exclusive),
    Operation::Acquire(Mode::Shared),
    Operation::Acquire(Mode::Permits { take: 1, of: 3 }),
    Operation::AcquireTogether,
    Operation::Release,
    Operation::Release,
    Operation::ReleaseTogether,
    Operation::Withdraw,
    Operation::WithdrawTogether,
    Operation::Renew,
    Operation::Refresh,
    Operation::Waiters,
    Operation::Inspect,
    Operation::List,
    Operation::History,
    Operation::ForceRelease,
    Operation::ForceReleaseHolder,
    Operation::ReleaseOwner,
];

#[derive(Clone, Debug)]
struct Case {
    before: Before,
    /// Paths below the record, and their new values.
    changes: Vec<(String, Bson)>,
    /// A field whose value becomes the only element of an array, which a filter by the value finds.
    wrapped: Option<String>,
    operations: Vec<Operation>,
}

const FIELDS: [&str; 21] = [
    "lockId",
    "fencingToken",
    "tokens",
    "acquiredAt",
    "expiresAt",
    "ttl",
    "holders",
    "grants",
    "queue",
    "passed",
    "closedUntil",
    "lastReleased",
    "released",
    "written",
    "revoked",
    "expired",
    "owner",
    "meta",
    "audit",
    "step",
    "unknown",
];

const OF_HOLDER: [&str; 12] =
    ["id", "token", "tokens", "acquiredAt", "expiresAt", "ttl", "owner", "meta", "kept", "shared", "take", "of"];
const OF_TICKET: [&str; 10] = ["id", "seen", "ttl", "claim", "tokens", "owner", "meta", "shared", "take", "of"];

/// Fields that an expression computes with together.
const NUMBERS: [[&str; 2]; 6] = [
    ["fencingToken", "tokens"],
    ["holders.0.token", "holders.0.tokens"],
    ["holders.0.take", "holders.0.of"],
    ["queue.0.claim", "queue.0.tokens"],
    ["queue.0.take", "queue.0.of"],
    ["queue.0.seen", "queue.0.ttl"],
];

impl Case {
    fn random(rng: &mut Rng) -> Self {
        let before = BEFORE[rng.usize(0..BEFORE.len())];
        let mut changes: Vec<_> = (0..rng.usize(1..=3)).map(|_| (random_field(rng), random_value(rng, 3))).collect();
        if rng.u8(0..4) == 0 {
            let numbers = NUMBERS[rng.usize(0..NUMBERS.len())];
            changes.extend(numbers.map(|field| (field.to_owned(), random_value(rng, 0))));
        }
        let wrapped = (rng.u8(0..4) == 0).then(|| random_field(rng));
        let operations = (0..rng.usize(1..=3)).map(|_| OPERATIONS[rng.usize(0..OPERATIONS.len())]).collect();
        Self { before, changes, wrapped, operations }
    }
}

fn random_field(rng: &mut Rng) -> String {
    let index = rng.u8(0..2);
    match rng.u8(0..10) {
        0..6 => FIELDS[rng.usize(0..FIELDS.len())].to_owned(),
        6 => format!("holders.{index}.{}", OF_HOLDER[rng.usize(0..OF_HOLDER.len())]),
        7 => format!("queue.{index}.{}", OF_TICKET[rng.usize(0..OF_TICKET.len())]),
        8 => format!("holders.{index}"),
        _ => format!("queue.{index}"),
    }
}

/// A value of any type, often one at an edge.
fn random_value(rng: &mut Rng, depth: u8) -> Bson {
    const DATES: [i64; 9] = [
        i64::MIN,
        i64::MIN + 1,
        -1,
        0,
        1_700_000_000_000,
        4_000_000_000_000,
        253_402_300_800_000,
        i64::MAX - 1,
        i64::MAX,
    ];
    const LONGS: [i64; 8] = [i64::MIN, -7, 0, 1, 7, 1 << 53, i64::MAX - 1, i64::MAX];
    const DOUBLES: [f64; 10] =
        [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 1e300, -1e300, -0.0, 0.5, 1.0, 9.3e18, f64::MIN_POSITIVE];
    const DECIMALS: [&str; 6] = ["NaN", "Infinity", "-Infinity", "1E+6000", "-1E+6000", "1.5"];
    const TEXTS: [&str; 8] = ["", "shared", "$expiresAt", "$$ROOT", "a;b", "s", "+x 1 1 5 s;~y;", "\0"];
    let kinds = if depth == 0 { 18 } else { 24 };
    match rng.u8(0..kinds) {
        0 => Bson::Null,
        1 => Bson::Boolean(rng.bool()),
        2 => Bson::Int32([i32::MIN, -1, 0, 1, 2, i32::MAX][rng.usize(0..6)]),
        3 | 4 => Bson::Int64(LONGS[rng.usize(0..LONGS.len())]),
        5..8 => Bson::Double(DOUBLES[rng.usize(0..DOUBLES.len())]),
        8 => DECIMALS[rng.usize(0..DECIMALS.len())].parse::<Decimal128>().expect("a number").into(),
        9..12 => DateTime::from_millis(DATES[rng.usize(0..DATES.len())]).into(),
        12 => later().into(),
        13 => TEXTS[rng.usize(0..TEXTS.len())].into(),
        14 => Timestamp { time: rng.u32(..), increment: rng.u32(..) }.into(),
        15 => ObjectId::new().into(),
        16 => [Bson::MinKey, Bson::MaxKey, Bson::Undefined][rng.usize(0..3)].clone(),
        17 => Binary { subtype: spec::BinarySubtype::Generic, bytes: vec![7; rng.usize(0..9)] }.into(),
        18..21 => (0..rng.usize(0..4)).map(|_| random_value(rng, depth - 1)).collect::<Vec<_>>().into(),
        _ => {
            let names = ["id", "take", "do", "ttl", "seen", "x", "$x", "live"];
            let fields = (0..rng.usize(0..4))
                .map(|_| (names[rng.usize(0..names.len())].to_owned(), random_value(rng, depth - 1)));
            fields.collect::<Document>().into()
        }
    }
}

/// An hour from now.
fn later() -> DateTime {
    DateTime::from_system_time(SystemTime::now() + Duration::from_secs(3600))
}

/// The parties of one key.
struct Parties {
    key: LockKey,
    /// The leases of the key, with their first tokens.
    holders: Vec<(Claim, FencingToken)>,
    waiters: Vec<Claim>,
}

/// Carries out a case. A failure is described.
async fn check(place: &Arc<Place>, case: &Case) -> std::result::Result<(), String> {
    let (place, case) = (Arc::clone(place), case.clone());
    match tokio::spawn(async move { place.check(&case).await }).await {
        Ok(answer) => answer,
        Err(error) => Err(format!("panic: {}", crate::panic_text(error))),
    }
}

impl Place {
    fn new(store: MongoStore, raw: Collection<Document>, prefix: &'static str) -> Self {
        Self { store, raw, prefix, neighbour: OnceCell::new() }
    }

    async fn check(&self, case: &Case) -> std::result::Result<(), String> {
        let parties = self.arrange(case.before).await;
        let path = |field: &str| format!("{}{field}", self.prefix);
        for (field, value) in &case.changes {
            let set = doc! { "$set": { path(field): value.clone() } };
            // A path that the record does not have in this form is no case.
            let _ = self.raw.update_one(doc! { "_id": parties.key.as_str() }, set).await;
        }
        if let Some(field) = &case.wrapped {
            let set = doc! { "$set": { path(field): [format!("${}", path(field))] } };
            let _ = self.raw.update_one(doc! { "_id": parties.key.as_str() }, vec![set]).await;
        }
        for operation in &case.operations {
            let before = self.read(&parties.key).await;
            let answer = self.carry_out(*operation, &parties, before.as_ref()).await;
            let after = self.read(&parties.key).await;
            if after.is_none() && self.may_be_purged(before.as_ref()) {
                let _ = answer?;
                break;
            }
            let outcome = match answer? {
                Ok(()) => Ok(()),
                Err(error)
                    if error.is_outcome_unknown() || self.bytes(before.as_ref()) == self.bytes(after.as_ref()) =>
                {
                    Ok(())
                }
                Err(error) => Err(format!("{operation:?} says that it has done nothing, and has: {error:?}")),
            };
            outcome.map_err(|text| format!("{text}\nbefore: {before:?}\nafter: {after:?}"))?;
            if let Some(Bson::Int32(balance)) = after.and_then(|after| after.get(APPLICATION).cloned())
                && balance != 7
            {
                return Err(format!("{operation:?} has changed the application's field to {balance}"));
            }
        }
        self.neighbours_are_well(&parties).await?;
        let _ = self.raw.delete_one(doc! { "_id": parties.key.as_str() }).await;
        Ok(())
    }

    async fn read(&self, key: &LockKey) -> Option<Document> {
        self.raw.find_one(doc! { "_id": key.as_str() }).await.expect("an answer")
    }

    /// Whether the TTL index removes the record.
    fn may_be_purged(&self, before: Option<&Document>) -> bool {
        let yesterday = DateTime::from_system_time(SystemTime::now() - Duration::from_secs(86_400));
        self.prefix.is_empty()
            && before
                .is_some_and(|record| matches!(record.get("expiresAt"), Some(Bson::DateTime(at)) if *at < yesterday))
    }

    /// The bytes of the document without the scratch field, which operations remove. A value that
    /// is no number equals nothing, not even itself.
    fn bytes(&self, document: Option<&Document>) -> Option<Vec<u8>> {
        let mut document = document?.clone();
        let record = if self.prefix.is_empty() { Some(&mut document) } else { document.get_document_mut("lock").ok() };
        record.and_then(|record| record.remove("step"));
        let mut bytes = Vec::new();
        document.to_writer(&mut bytes).expect("as it was read");
        Some(bytes)
    }

    /// A new key, with its document if the lock is in one.
    async fn new_key(&self) -> LockKey {
        let key = key();
        if !self.prefix.is_empty() {
            self.raw.insert_one(doc! { "_id": key.as_str(), APPLICATION: 7 }).await.expect("an answer");
        }
        key
    }

    async fn neighbour(&self) -> &Neighbour {
        let make = async || {
            let key = self.new_key().await;
            let (holder, waiter) = (claim(&key), claim(&key));
            let token = granted(&self.store, &holder, LONG).await.token;
            queued(&self.store, &waiter).await;
            Neighbour { holder, token, waiter }
        };
        self.neighbour.get_or_init(make).await
    }

    async fn arrange(&self, before: Before) -> Parties {
        let store = &self.store;
        let key = self.new_key().await;
        let (mut holders, mut waiters) = (Vec::new(), Vec::new());
        let permits = Mode::Permits { take: 1, of: 3 };
        let (held, waiting): (&[Mode], &[Mode]) = match before {
            Before::Free | Before::Closed | Before::Held => (&[Mode::Exclusive], &[]),
            Before::Queue => (&[Mode::Exclusive], &[Mode::Exclusive; 2]),
            Before::Readers => (&[Mode::Shared; 2], &[]),
            Before::ReadersAndQueue => (&[Mode::Shared; 2], &[Mode::Exclusive, Mode::Shared]),
            Before::Permits => (&[permits; 2], &[]),
        };
        for mode in held {
            let holder = claim(&key).with_mode(*mode);
            let token = granted(store, &holder, LONG).await.token;
            holders.push((holder, token));
        }
        for mode in waiting {
            let waiter = claim(&key).with_mode(*mode);
            queued(store, &waiter).await;
            waiters.push(waiter);
        }
        let hold = match before {
            Before::Free => Some(Duration::ZERO),
            Before::Closed => Some(LONG),
            _ => None,
        };
        if let Some(hold) = hold {
            let (holder, _) = &holders[0];
            let _ = store.release(&Release::new(holder.clone()).with_hold_at_least(hold)).await.expect("an answer");
        }
        Parties { key, holders, waiters }
    }

    /// Carries out an operation. The outer error is that of the check, the inner one the answer.
    async fn carry_out(
        &self,
        operation: Operation,
        parties: &Parties,
        before: Option<&Document>,
    ) -> std::result::Result<Result<()>, String> {
        let store = &self.store;
        let Parties { key, holders, waiters } = parties;
        let neighbour = self.neighbour().await;
        let (holder, _) = &holders[0];
        let waiter = waiters.first().unwrap_or(holder);
        let stranger = |mode| claim(key).with_mode(mode);
        let granted = |mode, reply: &Result<Reply>| match reply {
            Ok(Reply::Granted(_)) => self.may_grant(mode, before),
            _ => Ok(()),
        };
        Ok(match operation {
            Operation::TryAcquire(mode) => {
                let reply = store.try_acquire(&Attempt::new(stranger(mode), LONG)).await;
                granted(mode, &reply)?;
                reply.map(drop)
            }
            Operation::Acquire(mode) => {
                let reply = store.try_acquire(&Attempt::new(stranger(mode), LONG).with_ticket(ticket())).await;
                granted(mode, &reply)?;
                reply.map(drop)
            }
            Operation::AcquireTogether => {
                let (own, other) = (stranger(Mode::Exclusive), claim(&self.new_key().await));
                let attempts = [own, other].map(|claim| Attempt::new(claim, LONG).with_ticket(ticket()));
                let mut replies = store.try_acquire_many(&attempts).await;
                let other = replies.pop().expect("two replies");
                // A document that was just inserted may be unknown to a batch: undecided.
                if other.is_err() {
                    return Err(format!("the other key of a batch failed: {other:?}"));
                }
                let reply = replies.pop().expect("two replies");
                granted(Mode::Exclusive, &reply)?;
                reply.map(drop)
            }
            Operation::Release => store.release(&Release::new(holder.clone())).await.map(drop),
            Operation::ReleaseTogether => {
                let other_key = self.new_key().await;
                let other = claim(&other_key);
                self::granted(store, &other, LONG).await;
                let releases = [holder, &other].map(|claim| Release::new(claim.clone()));
                let mut answers = store.release_many(&releases).await;
                let of_other = answers.pop().expect("two answers");
                if !of_other.as_ref().is_ok_and(|outcome| outcome.is_released()) {
                    return Err(format!("the other release of a batch failed: {of_other:?}"));
                }
                answers.pop().expect("two answers").map(drop)
            }
            Operation::Withdraw => store.withdraw(waiter, LONG).await,
            Operation::WithdrawTogether => {
                let other = claim(&self.new_key().await);
                self::granted(store, &other, LONG).await;
                let mut answers = store.withdraw_many(&[waiter.clone(), other], LONG).await;
                let of_other = answers.pop().expect("two answers");
                if of_other.is_err() {
                    return Err(format!("the other withdrawal of a batch failed: {of_other:?}"));
                }
                answers.pop().expect("two answers")
            }
            Operation::Renew => {
                let renewals: Vec<Renewal> = holders
                    .iter()
                    .map(|(claim, token)| Renewal::lease(claim.clone(), *token, LONG))
                    .chain([Renewal::lease(neighbour.holder.clone(), neighbour.token, LONG)])
                    .collect();
                let mut answers = store.renew_many(&renewals).await;
                let of_neighbour = answers.pop().expect("an answer");
                if !matches!(of_neighbour, Ok(Standing::Held { .. })) {
                    return Err(format!("the neighbour's renewal failed: {of_neighbour:?}"));
                }
                answers.into_iter().find(Result::is_err).unwrap_or(Ok(Standing::Held { remaining: LONG })).map(drop)
            }
            Operation::Refresh => {
                let renewals: Vec<Renewal> = waiters
                    .iter()
                    .chain([&neighbour.waiter])
                    .map(|claim| Renewal::ticket(claim.clone(), ticket()))
                    .collect();
                let mut answers = store.renew_many(&renewals).await;
                let of_neighbour = answers.pop().expect("an answer");
                if !matches!(of_neighbour, Ok(Standing::Waiting(_))) {
                    return Err(format!("the neighbour's ticket was not refreshed: {of_neighbour:?}"));
                }
                answers.into_iter().find(Result::is_err).unwrap_or(Ok(Standing::Held { remaining: LONG })).map(drop)
            }
            Operation::Waiters => store.waiters(holder, LONG).await.map(drop),
            Operation::Inspect => admin(store).inspect(key).await.map(drop),
            Operation::List => self.lists_neighbour().await?,
            Operation::History => admin(store).history(key).await.map(drop),
            Operation::ForceRelease => admin(store).force_release(key, "check").await.map(drop),
            Operation::ForceReleaseHolder => {
                admin(store).force_release_holder(key, holder.id(), "check").await.map(drop)
            }
            Operation::ReleaseOwner => {
                let filter = LockFilter::new().prefix(key.as_str());
                admin(store).release_matching(&filter, "check").await.map(drop)
            }
        })
    }

    /// Fails if a grant in this mode is not due by what the record says.
    fn may_grant(&self, mode: Mode, before: Option<&Document>) -> std::result::Result<(), String> {
        let wrong = |why: &str| Err(format!("granted {mode} although {why}: {before:?}"));
        let Some(document) = before else { return Ok(()) };
        let record = match self.prefix {
            "" => document,
            _ => match document.get("lock") {
                None => return Ok(()),
                Some(Bson::Document(lock)) => lock,
                Some(_) => return wrong("the field is no lock"),
            },
        };
        let now = DateTime::now();
        let is_past = |field: &str| matches!(record.get(field), Some(Bson::DateTime(at)) if *at <= now);
        let is_absent = |field: &str| matches!(record.get(field), None | Some(Bson::Null | Bson::Undefined));
        if !matches!(record.get("fencingToken"), Some(Bson::Int64(_))) {
            return wrong("it is no record");
        }
        if !is_absent("closedUntil") && !is_past("closedUntil") {
            return wrong("it is closed");
        }
        if is_absent("lockId") || is_past("expiresAt") {
            return Ok(());
        }
        if record.get("lockId") != Some(&Bson::String("shared".into())) {
            return wrong("another acquisition holds it");
        }
        let Some(Bson::Array(holders)) = record.get("holders") else { return wrong("its holders are no list") };
        let live: Vec<Mode> = holders.iter().filter_map(|holder| live_mode(holder, now)).collect();
        if !live.is_empty() && mode.fits(live.iter().copied()) {
            return Ok(());
        }
        wrong("its holders leave no room")
    }

    async fn lists_neighbour(&self) -> std::result::Result<Result<()>, String> {
        let (neighbour, limit) = (self.neighbour().await.holder.key(), NonZeroUsize::new(1000).expect("not zero"));
        let filter = LockFilter::new();
        let listed = admin(&self.store).page(&filter, None, limit).await;
        match &listed {
            Ok(page) if page.iter().any(|info| info.key == *neighbour && info.unreadable.is_none()) => Ok(Ok(())),
            _ => Err(format!("a list lacks the neighbour: {listed:?}")),
        }
    }

    async fn neighbours_are_well(&self, parties: &Parties) -> std::result::Result<(), String> {
        self.lists_neighbour().await?.map_err(|error| error.to_string())?;
        for operation in [Operation::Renew, Operation::Refresh] {
            let _ = self.carry_out(operation, parties, None).await?;
        }
        Ok(())
    }
}

/// The mode of a holder that a record says is there. One in a form that no grant has made is none.
fn live_mode(holder: &Bson, now: DateTime) -> Option<Mode> {
    const NUMBERS: Range<f64> = 1.0..4_294_967_296.0;
    let holder = holder.as_document()?;
    let is_number =
        matches!(holder.get("tokens"), Some(Bson::Int32(_) | Bson::Int64(_) | Bson::Double(_) | Bson::Decimal128(_)));
    let has_form = holder.get_str("id").is_ok() && holder.get_i64("token").is_ok() && is_number;
    let is_live = matches!(holder.get("expiresAt"), Some(Bson::DateTime(at)) if *at > now);
    if !has_form || !is_live {
        return None;
    }
    if holder.get_bool("shared").unwrap_or(false) {
        return Some(Mode::Shared);
    }
    let number = |field: &str| {
        let value = match holder.get(field)? {
            Bson::Int32(value) => f64::from(*value),
            #[allow(clippy::cast_precision_loss)]
            Bson::Int64(value) => *value as f64,
            Bson::Double(value) => *value,
            Bson::Decimal128(value) => value.to_string().parse().ok()?,
            _ => return None,
        };
        NUMBERS.contains(&value).then_some(value)
    };
    // Parts of a permit count as whole ones.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    match (number("take"), number("of")) {
        (Some(take), Some(of)) if take <= of => Some(Mode::Permits { take: take.ceil() as u32, of: of.floor() as u32 }),
        _ => Some(Mode::Exclusive),
    }
}
