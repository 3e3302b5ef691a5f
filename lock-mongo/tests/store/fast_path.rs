//! The fast paths of acquisitions and releases: fewer expressions for the server, and the same
//! record.

use std::time::Duration;

use distlock_api::{AcquisitionId, Holder, LockKey, Mode};
use distlock_engine::store::{
    Attempt, BatchStore, Claim, Grant, LeaseStore, QueueStore, Release, Reply, Standing, Ticket,
};
use distlock_mongo::MongoStore;
use distlock_mongo::mongodb::bson::{Bson, DateTime, Document, doc};

use super::Checks;
use super::world::{
    LONG, SHORT, Sent, World, busy, claim, key, opened, queued, random_name, release, renew, ticket, twin,
};

pub(super) fn add(checks: &mut Checks<'_>) {
    check!(checks, a_wrong_guess_costs_one_command_once);
    check!(checks, a_waiter_that_came_meanwhile_is_handed_over_to);
    check!(checks, R23 a_reader_alone_takes_the_fast_paths);
    check!(checks, R28 a_writer_that_met_readers_hands_over_by_one_command);
    check!(checks, R28 readers_leave_with_one_command);
    check!(checks, R7 a_lease_in_use_is_not_taken);
    check!(checks, both_paths_leave_the_same_record);
    check!(checks, R28 both_paths_of_a_release_leave_the_same_record);
    check!(checks, C9 repeated_release_after_the_fast_path);
    check!(checks, a_lease_that_expired_is_not_given_back);
}

/// Two stores on one collection, as in two processes, and the commands of the second.
async fn stores(world: &World) -> (MongoStore, MongoStore, Sent, String) {
    let (client, sent) = world.recorded_client().await;
    let name = random_name("locks");
    let (one, other) = (world.store_on(&world.client, &name), world.store_on(&client, &name));
    granted(&other, &claim(&key()), LONG).await; // sends `hello` to the server
    sent.take();
    (one, other, sent, name)
}

/// Grants to a caller that would wait.
async fn granted(store: &MongoStore, claim: &Claim, ttl: Duration) -> Grant {
    let attempt = Attempt::new(claim.clone(), ttl).with_ticket(ticket());
    match store.try_acquire(&attempt).await.expect("an answer") {
        Reply::Granted(grant) => grant,
        other => panic!("not granted: {other:?}"),
    }
}

async fn a_wrong_guess_costs_one_command_once(world: World) {
    let (elsewhere, here, sent, _) = stores(&world).await;
    let key = key();
    let theirs = claim(&key);
    granted(&elsewhere, &theirs, LONG).await;
    let another = claim(&self::key());
    granted(&elsewhere, &another, LONG).await;
    busy(&here, &claim(another.key())).await;
    assert_eq!(sent.take().len(), 1, "C18: a caller that does not wait");
    for (commands, why) in [(2, "it was not known to be in use"), (1, "now it is")] {
        let waiter = claim(&key);
        queued(&here, &waiter).await;
        assert_eq!(sent.take().len(), commands, "{why}");
        here.withdraw(&waiter, LONG).await.unwrap();
        sent.take();
    }
    assert!(release(&elsewhere, &theirs).await.is_released());
    for free in [false, true, true] {
        let ours = claim(&key);
        granted(&here, &ours, LONG).await;
        let acquired = sent.take();
        assert_eq!(acquired.len(), 1);
        let short = acquired[0].get_document("query").unwrap().contains_key("lockId");
        assert_eq!(short, free, "released without a waiter, it is known to be free");
        assert!(release(&here, &ours).await.is_released());
        assert_eq!(sent.take().len(), 1);
    }
}

async fn a_waiter_that_came_meanwhile_is_handed_over_to(world: World) {
    let (elsewhere, here, sent, _) = stores(&world).await;
    let key = key();
    let [ours, theirs] = [(); 2].map(|()| claim(&key));
    let grant = granted(&here, &ours, LONG).await;
    queued(&elsewhere, &theirs).await;
    sent.take();
    assert!(release(&here, &ours).await.is_released());
    assert_eq!(sent.take().len(), 2);
    let next = granted(&elsewhere, &theirs, LONG).await;
    assert!(next.token.get() >= grant.token.get() + u64::from(grant.tokens.get()), "handed over, with a later token");
    // After a count of the waiters the fast path is not tried.
    let again = claim(&key);
    queued(&here, &again).await;
    assert!(release(&elsewhere, &theirs).await.is_released());
    granted(&here, &again, LONG).await;
    queued(&elsewhere, &claim(&key)).await;
    assert_eq!(here.waiters(&again, LONG).await.unwrap(), 1);
    sent.take();
    assert!(release(&here, &again).await.is_released());
    assert_eq!(sent.take().len(), 1);
}

async fn a_reader_alone_takes_the_fast_paths(world: World) {
    let (elsewhere, here, sent, _) = stores(&world).await;
    let key = key();
    let reader = || claim(&key).with_mode(Mode::Shared);
    // The number of commands to acquire, and to release; and whether both are short.
    let take_and_give_back = async |company: Option<&Claim>| {
        let ours = reader();
        granted(&here, &ours, LONG).await;
        let acquired = sent.take();
        if let Some(company) = company {
            granted(&elsewhere, company, LONG).await;
        }
        assert!(release(&here, &ours).await.is_released());
        let released = sent.take();
        let takes = acquired[0].get_document("query").unwrap().contains_key("lockId");
        let gives =
            released[0].get_document("writeConcern").is_ok_and(|concern| concern.get_i32("w").is_ok_and(|w| w == 1));
        (acquired.len(), released.len(), takes, gives)
    };
    assert_eq!(take_and_give_back(None).await, (1, 1, true, true));
    let company = reader();
    assert_eq!(take_and_give_back(Some(&company)).await, (1, 2, true, true), "one has come meanwhile");
    assert_eq!(take_and_give_back(None).await, (1, 1, false, false), "it was not alone");
    assert!(release(&elsewhere, &company).await.is_released());
    assert_eq!(take_and_give_back(None).await, (1, 1, false, true), "not known to be free");
    assert_eq!(take_and_give_back(None).await, (1, 1, true, true));
}

/// A hand-over takes all waiters for exclusive ones, unless its acquisition has met others.
async fn a_writer_that_met_readers_hands_over_by_one_command(world: World) {
    let (elsewhere, here, sent, _) = stores(&world).await;
    for mode in [Mode::Shared, Mode::Permits { take: 1, of: 2 }] {
        let key = key();
        let [writer, next, last] = [(); 3].map(|()| claim(&key));
        let [one, two] = [(); 2].map(|()| claim(&key).with_mode(mode));
        let commands_of_release = async |claim: &Claim| {
            sent.take();
            assert!(release(&here, claim).await.is_released());
            sent.take().len()
        };
        granted(&here, &writer, LONG).await;
        queued(&here, &next).await;
        for waiter in [&one, &two, &last] {
            queued(&elsewhere, waiter).await;
        }
        // After a count of the waiters, the path for none is not tried.
        assert_eq!(here.waiters(&writer, LONG).await.unwrap(), 4);
        assert_eq!(commands_of_release(&writer).await, 2, "{mode:?}: it has met no such waiters");
        let first = granted(&here, &next, LONG).await;
        assert_eq!(commands_of_release(&next).await, 1, "{mode:?}: it has met them");
        for waiter in [&one, &two] {
            assert!(granted(&elsewhere, waiter, LONG).await.token > first.token, "both in one write");
        }
        for claim in [&one, &two, &last] {
            assert!(release(&elsewhere, claim).await.is_released());
        }
    }
}

async fn readers_leave_with_one_command(world: World) {
    let (elsewhere, here, sent, _) = stores(&world).await;
    let key = key();
    let reader = || claim(&key).with_mode(Mode::Shared);
    let [company, first, last, again] = [(); 4].map(|()| reader());
    let (writer, permits) = (claim(&key), claim(&key).with_mode(Mode::Permits { take: 1, of: 2 }));
    let commands_of_release = async |claim: &Claim| {
        sent.take();
        assert!(release(&here, claim).await.is_released());
        sent.take().len()
    };
    granted(&elsewhere, &company, LONG).await;
    for reader in [&first, &last] {
        granted(&here, reader, LONG).await;
    }
    queued(&elsewhere, &writer).await;
    queued(&here, &again).await;
    assert_eq!(commands_of_release(&first).await, 1, "beside another");
    assert!(release(&elsewhere, &company).await.is_released());
    assert_eq!(commands_of_release(&last).await, 1, "before a writer");
    let token = granted(&elsewhere, &writer, LONG).await.token;
    assert!(release(&elsewhere, &writer).await.is_released());
    assert!(granted(&here, &again, LONG).await.token > token);
    assert_eq!(commands_of_release(&again).await, 1, "the last one of all");
    let another = reader();
    granted(&here, &another, LONG).await;
    queued(&elsewhere, &permits).await;
    assert_eq!(commands_of_release(&another).await, 2, "one has come meanwhile");
    granted(&elsewhere, &permits, LONG).await;
}

/// For every state of the record, a store without knowledge of the key decides as one that takes
/// the full path.
async fn a_lease_in_use_is_not_taken(world: World) {
    let (_, here, _, name) = stores(&world).await;
    let raw = world.raw(&name);
    let now = DateTime::now();
    let later = DateTime::from_millis(now.timestamp_millis() + 60_000);
    let alive = doc! { "id": "a-1", "seen": later, "ttl": 60_000_i64, "claim": 1000_i64, "tokens": 1 };
    let held = doc! { "lockId": "b-1", "fencingToken": 7_i64, "expiresAt": later };
    for closed in [
        held.clone(),
        doc! { "closedUntil": later, "fencingToken": 7_i64, "expiresAt": later },
        // The second position gets its turn one window after the end of the lease.
        doc! { "queue": [alive], "fencingToken": 7_i64, "expiresAt": later },
    ] {
        let key = key();
        let mut record = doc! { "_id": key.as_str() };
        record.extend(closed);
        raw.insert_one(&record).await.unwrap();
        // It would wait, but the queue has no room, so nothing is written.
        let attempt = Attempt::new(claim(&key), LONG).with_ticket(Ticket::new(LONG, LONG, 0));
        let reply = here.try_acquire(&attempt).await.unwrap();
        assert!(matches!(reply, Reply::Busy(_)), "{reply:?}");
        assert_eq!(raw.find_one(doc! { "_id": key.as_str() }).await.unwrap().unwrap(), record, "nothing is written");
    }
    for open in [
        doc! { "lockId": "b-1", "fencingToken": 7_i64, "expiresAt": now },
        doc! { "closedUntil": now, "fencingToken": 7_i64, "expiresAt": now },
        doc! { "lockId": null, "queue": null, "closedUntil": null, "fencingToken": i64::MAX / 2 },
        doc! { "queue": "odd", "fencingToken": 7_i64 },
        doc! { "newer": { "version": 9 }, "fencingToken": 7_i64 },
    ] {
        let key = key();
        let mut record = doc! { "_id": key.as_str() };
        record.extend(open.clone());
        raw.insert_one(&record).await.unwrap();
        // `now` is also in the past by the server's clock.
        tokio::time::sleep(Duration::from_millis(2)).await;
        let grant = granted(&here, &claim(&key), LONG).await;
        assert!(grant.token.get() > open.get_i64("fencingToken").map_or(0, |last| last.unsigned_abs()), "C5");
        let after = raw.find_one(doc! { "_id": key.as_str() }).await.unwrap().unwrap();
        assert_eq!(after.get("newer"), open.get("newer"), "what is not ours survives");
        assert!(!after.contains_key("closedUntil") && !after.contains_key("queue"), "{after}");
    }
}

fn attempt(claim: &Claim) -> Attempt {
    Attempt::new(claim.clone(), LONG)
        .with_ticket(ticket())
        .with_holder(Holder::default().with_owner("$owner").with_metadata("$name", "$value"))
}

async fn record(world: &World, name: &str, key: &LockKey) -> Document {
    let mut record = world.raw(name).find_one(doc! { "_id": key.as_str() }).await.unwrap().unwrap();
    record.remove("_id");
    record
}

async fn both_paths_leave_the_same_record(world: World) {
    let (one, _, _, name) = stores(&world).await;
    for mode in [Mode::Exclusive, Mode::Shared, Mode::Permits { take: 1, of: 2 }] {
        let (fast, full) = (key(), key());
        let of_key = |key: &LockKey| Claim::new(key.clone(), AcquisitionId::new("a-1")).with_mode(mode);
        let [a, b] = [&fast, &full].map(of_key);
        // A store that has seen the key in use takes the full path.
        granted(&one, &claim(&full), SHORT).await;
        opened(&one, &full).await;
        world.raw(&name).delete_one(doc! { "_id": full.as_str() }).await.unwrap();
        for claim in [&a, &b] {
            one.try_acquire(&attempt(claim)).await.unwrap();
        }
        let (of_a, of_b) = (record(&world, &name, &fast).await, record(&world, &name, &full).await);
        assert_eq!(without_times(of_a), without_times(of_b), "{mode:?}");
        assert!(release(&one, &a).await.is_released());
        // The request comes from a process without state of the acquisition.
        assert!(release(&one, &twin(&b).with_mode(mode)).await.is_released());
        let (of_a, of_b) = (record(&world, &name, &fast).await, record(&world, &name, &full).await);
        assert_eq!(without_times(of_a), without_times(of_b), "{mode:?}");
    }
}

/// A batch takes the fast path first, and a withdrawal always the full one. Tokens and times differ
/// by what the clock shows.
async fn both_paths_of_a_release_leave_the_same_record(world: World) {
    let name = random_name("locks");
    let now = DateTime::now().timestamp_millis();
    let [past, later] = [-5000, 3_600_000].map(|offset| DateTime::from_millis(now + offset));
    let end = |is_live| if is_live { later } else { past };
    let ticket = |id: &str, is_live: bool| {
        doc! { "id": id, "seen": end(is_live), "ttl": 1000_i64, "claim": 30_000_i64, "tokens": 5, "owner": id }
    };
    let holder = |id: &str, is_live: bool| {
        doc! {
            "id": id, "token": 70_i64, "tokens": 10, "acquiredAt": past, "expiresAt": end(is_live), "ttl": 60_000_i64,
            "shared": true, "owner": id,
        }
    };
    let with = |mut document: Document, more: Document| {
        document.extend(more);
        document
    };
    let shared = || doc! { "shared": true };
    let permits = || doc! { "take": 1_i64, "of": 2_i64 };
    let queues = [
        vec![],
        vec![ticket("w-1", true)],
        vec![ticket("w-1", false)],
        vec![ticket("w-1", false), ticket("w-2", true), ticket("w-3", true)],
        vec![ticket("w-1", true), with(ticket("r-1", true), shared())],
        vec![ticket("w-1", false), with(ticket("r-1", true), shared()), ticket("w-2", true)],
        vec![with(ticket("r-1", true), shared()), with(ticket("r-2", true), shared())],
        vec![with(ticket("p-1", true), permits()), with(ticket("p-2", true), permits())],
    ];
    let companies = [
        vec![],
        vec![holder("b-1", true)],
        vec![holder("b-1", false), holder("b-2", true)],
        vec![with(holder("b-1", true), doc! { "kept": true })],
        vec![with(holder("b-1", false), doc! { "kept": true })],
        vec![doc! { "id": 7 }, doc! { "id": 8 }],
    ];
    let mut records = Vec::new();
    for queue in &queues {
        // An exclusive lease, which some process without modes left holders beside.
        let alone = doc! { "lockId": "a-1", "expiresAt": later, "owner": "a-1", "ttl": 60_000_i64 };
        records.push((Mode::Exclusive, alone.clone(), queue));
        records.push((Mode::Exclusive, with(alone, doc! { "holders": [holder("b-1", true)] }), queue));
        for company in &companies {
            for own_is_live in [true, false] {
                let mut holders = company.clone();
                holders.insert(company.len() / 2, holder("a-1", own_is_live));
                let marked = doc! { "lockId": "shared", "expiresAt": later, "holders": holders, "grants": "x" };
                records.push((Mode::Shared, marked, queue));
            }
        }
    }
    let mut fast = 0;
    for (mode, mut found, queue) in records {
        found.extend(doc! { "fencingToken": 70_i64, "tokens": 10, "acquiredAt": past, "released": ["z-1"] });
        if !queue.is_empty() {
            found.insert("queue", queue.clone());
        }
        let mut outcomes = Vec::new();
        for withdraws in [false, true] {
            let store = world.store_on(&world.client, &name);
            let key = key();
            let claim = Claim::new(key.clone(), AcquisitionId::new("a-1")).with_mode(mode);
            world.raw(&name).insert_one(with(doc! { "_id": key.as_str() }, found.clone())).await.unwrap();
            if withdraws {
                store.withdraw(&claim, LONG).await.unwrap();
            } else {
                let releases = [claim.clone(), self::claim(&self::key())].map(Release::new);
                match store.release_many(&releases).await[0] {
                    Ok(_) => fast += 1,
                    Err(_) => _ = release(&store, &claim).await,
                }
            }
            outcomes.push(without_times(record(&world, &name, &key).await));
        }
        assert_eq!(outcomes[0], outcomes[1], "{mode:?}: {found}");
    }
    assert!(fast > 2, "the fast path freed {fast} leases");
}

/// The record with the kinds of its times and tokens instead of these. No lease here ends within a
/// second.
fn without_times(record: Document) -> Bson {
    fn plain(value: Bson) -> Bson {
        match value {
            Bson::DateTime(time) => {
                let is_ahead = time.timestamp_millis() > DateTime::now().timestamp_millis() + 1000;
                if is_ahead { "later" } else { "now or before" }.into()
            }
            Bson::Int64(token) if token > 1 << 40 => "token".into(),
            Bson::Array(all) => all.into_iter().map(plain).collect::<Vec<_>>().into(),
            Bson::Document(all) => plain_fields(all).into(),
            Bson::String(text) if text.contains(' ') => {
                // What a grant reports: `ID FIRST TOKENS EXPIRY MODE;…`.
                let words = text.split(' ').filter(|word| word.len() < 10 || word.parse::<u64>().is_err());
                words.collect::<Vec<_>>().join(" ").into()
            }
            other => other,
        }
    }
    fn plain_fields(all: Document) -> Document {
        let mut fields: Vec<(String, Bson)> = all.into_iter().map(|(name, value)| (name, plain(value))).collect();
        fields.sort_by(|one, other| one.0.cmp(&other.0));
        fields.into_iter().collect()
    }
    plain_fields(record).into()
}

async fn repeated_release_after_the_fast_path(world: World) {
    let store = world.store();
    let a = claim(&key());
    granted(&store, &a, LONG).await;
    assert!(release(&store, &a).await.is_released());
    assert!(release(&store, &a).await.is_released(), "the same release, repeated");
    granted(&store, &claim(a.key()), LONG).await;
    assert!(release(&store, &a).await.is_released(), "also when another has the lease");
    assert!(!release(&store, &claim(a.key())).await.is_released());
}

async fn a_lease_that_expired_is_not_given_back(world: World) {
    let store = world.store();
    let a = claim(&key());
    let token = granted(&store, &a, SHORT).await.token;
    opened(&store, a.key()).await;
    assert!(!release(&store, &a).await.is_released());
    assert!(!matches!(renew(&store, &a, token, LONG).await, Standing::Held { .. }));
}
