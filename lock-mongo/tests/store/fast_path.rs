//! The fast paths of acquisitions and releases: fewer expressions for the server, and the same
//! record.

use std::time::Duration;

use distlock_api::{AcquisitionId, ErrorKind, Holder, LockKey, Loss, Mode};
use distlock_engine::store::{Attempt, Claim, Grant, LeaseStore, Renewal, Reply, Standing, Ticket};
use distlock_mongo::MongoStore;
use distlock_mongo::mongodb::bson::{Bson, DateTime, Document, doc};

use super::Checks;
use super::world::{
    LONG, SHORT, Sent, World, age_ticket, busy, claim, key, opened, queued, random_name, release, renew, ticket, twin,
};

pub(super) fn add(checks: &mut Checks<'_>) {
    check!(checks, a_wrong_guess_costs_one_command_once);
    check!(checks, a_waiter_that_came_meanwhile_is_handed_over_to);
    check!(checks, R8 a_ticket_is_taken_by_one_command_while_there_is_a_queue);
    check!(checks, R8 both_ways_to_a_ticket_agree);
    check!(checks, R15 a_single_ticket_is_refreshed_by_one_command);
    check!(checks, R8 a_writer_behind_readers_takes_the_full_path);
    check!(checks, R8 dead_tickets_do_not_pile_up);
    check!(checks, R23 a_reader_alone_takes_the_fast_paths);
    check!(checks, R28 a_reader_that_waits_costs_one_command_once);
    check!(checks, R28 readers_leave_with_one_command);
    check!(checks, R7 a_lease_in_use_is_not_taken);
    check!(checks, both_ways_leave_the_same_record);
    check!(checks, R28 short_and_long_releases_leave_the_same_record);
    check!(checks, C9 repeated_release_after_the_fast_path);
    check!(checks, a_lease_that_expired_is_not_given_back);
}

/// Two stores on one collection, as in two processes, and the commands of the second.
async fn stores(world: &World) -> (MongoStore, MongoStore, Sent, String) {
    let (name, sent) = (random_name("locks"), Sent::default());
    let (client, _) = world.connect(|options| options.command_event_handler = Some(sent.handler())).await;
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

async fn a_ticket_is_taken_by_one_command_while_there_is_a_queue(world: World) {
    let (elsewhere, here, sent, _) = stores(&world).await;
    let key = key();
    let theirs = claim(&key);
    granted(&elsewhere, &theirs, LONG).await;
    let line = [(); 2].map(|()| claim(&key));
    queued(&elsewhere, &line[0]).await;
    let is_short = |command: &Document| command.get_array("update").unwrap().len() == 1;
    for (commands, why) in [(2, "it was not known to be in use"), (1, "now it is, with a queue")] {
        let waiter = claim(&key);
        queued(&here, &waiter).await;
        let acquired = sent.take();
        assert_eq!((acquired.len(), acquired.iter().all(is_short)), (commands, true), "{why}: {acquired:?}");
        here.withdraw(&waiter, LONG).await.unwrap();
        sent.take();
    }
    assert!(release(&elsewhere, &theirs).await.is_released());
    granted(&elsewhere, &line[0], LONG).await;
    assert!(release(&elsewhere, &line[0]).await.is_released());
    for (commands, why) in [(2, "there is no queue any more"), (1, "now that is known")] {
        let ours = claim(&key);
        granted(&here, &ours, LONG).await;
        assert_eq!(sent.take().len(), commands, "{why}");
        assert!(release(&here, &ours).await.is_released());
        sent.take();
    }
}

/// For every state of the record, both ways give the same answer, and leave the same record, except
/// for dead tickets and empty places.
async fn both_ways_to_a_ticket_agree(world: World) {
    let name = random_name("locks");
    let now = DateTime::now().timestamp_millis();
    let [past, later] = [-5000, 60_000].map(|offset| DateTime::from_millis(now + offset));
    for found in states_of_a_queue(past, later) {
        let (mut outcomes, mut until_turn) = (Vec::new(), Vec::new());
        for knows_key in [false, true] {
            let store = world.store_on(&world.client, &name);
            let key = key();
            let mut document = doc! { "_id": key.as_str() };
            if knows_key {
                // Then it takes the full path.
                granted(&store, &claim(&key), LONG).await;
                world.raw(&name).delete_one(document.clone()).await.unwrap();
            }
            document.extend(found.clone());
            world.raw(&name).insert_one(document).await.unwrap();
            let claim = Claim::new(key.clone(), AcquisitionId::new("a-1"));
            // A window far above the time between the two attempts.
            let attempt = attempt(&claim).with_ticket(Ticket::new(LONG, LONG, PLACES)).with_turn_window(LONG);
            let (answer, remaining) = match store.try_acquire(&attempt).await {
                Ok(Reply::Busy(busy)) => {
                    (format!("{:?} {:?}", busy.standing, busy.token), busy.holder_remaining.unwrap())
                }
                Ok(Reply::Granted(grant)) => (format!("{:?}", grant.tokens), grant.remaining),
                Ok(other) => panic!("{other:?}"),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Corrupt, "{found}: {error}");
                    (format!("{:?}", error.kind()), Duration::ZERO)
                }
            };
            let mut left = record(&world, &name, &key).await;
            if let Ok(queue) = left.get_array_mut("queue") {
                queue.retain(|ticket| {
                    let seen = ticket.as_document().and_then(|ticket| ticket.get_datetime("seen").ok());
                    seen.is_some_and(|seen| *seen != past)
                });
            }
            outcomes.push((answer, without_times(left)));
            until_turn.push(remaining);
        }
        assert_eq!(outcomes[0], outcomes[1], "{found}");
        assert!(until_turn[0].abs_diff(until_turn[1]) < LONG / 2, "{until_turn:?}: {found}");
    }
}

const PLACES: u32 = 3;

/// The states of a record that an attempt of `a-1` may find, with all queues that matter to it.
fn states_of_a_queue(past: DateTime, later: DateTime) -> Vec<Document> {
    let ticket = |id: &str, seen| doc! { "id": id, "seen": seen, "ttl": 1000, "claim": 1000, "tokens": 5 }.into();
    let live = |id: &str| doc! { "id": id, "seen": later, "ttl": 120_000, "claim": 1000, "tokens": 5 }.into();
    let (dead, empty): (Bson, Bson) = (ticket("dead-1", past), doc! {}.into());
    let queues: [Bson; 11] = [
        Bson::Null,
        "odd".into(),
        doc! { "2": true }.into(),
        vec![live("w-1")].into(),
        vec![dead.clone(), live("w-1")].into(),
        vec![empty.clone(), live("w-1")].into(),
        ["w-1", "w-2", "w-3"].map(live).to_vec().into(),
        vec![dead.clone(), empty, live("w-1")].into(),
        vec![live("w-1"), live("a-1")].into(),
        vec![ticket("a-1", past), live("w-1")].into(),
        vec![dead.clone(), dead].into(),
    ];
    let holder = doc! { "id": "r-1", "token": 7_i64, "tokens": 1, "expiresAt": later, "shared": true };
    let states = [
        doc! { "lockId": "b-1", "expiresAt": later },
        doc! { "lockId": "b-1", "expiresAt": later, "closedUntil": later, "tokens": 7 },
        doc! { "lockId": "b-1", "expiresAt": past },
        doc! { "lockId": "a-1", "expiresAt": later },
        doc! { "lockId": "a-1", "expiresAt": past },
        doc! { "lockId": "shared", "expiresAt": later, "holders": [holder] },
        doc! { "lockId": 7, "expiresAt": later },
        doc! { "lockId": "b-1" },
        doc! { "expiresAt": later },
        doc! { "expiresAt": later, "closedUntil": later },
    ];
    let with = |state: &Document, queue: &Bson| {
        let mut found = doc! { "fencingToken": 70_i64 };
        found.extend(state.clone());
        if *queue != Bson::Null {
            found.insert("queue", queue);
        }
        found
    };
    states.iter().flat_map(|state| queues.iter().map(move |queue| with(state, queue))).collect()
}

async fn a_single_ticket_is_refreshed_by_one_command(world: World) {
    let (elsewhere, here, sent, _) = stores(&world).await;
    let waiters = [(); 2].map(|()| claim(&key()));
    for waiter in &waiters {
        granted(&elsewhere, &claim(waiter.key()), LONG).await;
        queued(&here, waiter).await;
    }
    sent.take();
    let refreshes = waiters.map(|waiter| Renewal::ticket(waiter, ticket()));
    for (commands, tickets) in [(1, &refreshes[..1]), (2, &refreshes)] {
        let standings = here.renew_many(tickets).await;
        let waits = standings.iter().all(|standing| matches!(standing, Ok(Standing::Waiting(_))));
        assert!(waits && standings.len() == tickets.len(), "{standings:?}");
        assert_eq!(sent.take().len(), commands);
    }
    here.withdraw(&refreshes[0].claim, LONG).await.unwrap();
    sent.take();
    assert_eq!(here.renew(&refreshes[0]).await.unwrap(), Standing::Gone(Loss::Gone));
    assert_eq!(sent.take().len(), 2);
}

async fn a_writer_behind_readers_takes_the_full_path(world: World) {
    let (elsewhere, here, sent, _) = stores(&world).await;
    let key = key();
    granted(&elsewhere, &claim(&key).with_mode(Mode::Shared), LONG).await;
    queued(&elsewhere, &claim(&key)).await;
    let mut commands = Vec::new();
    for _ in 0..4 {
        queued(&here, &claim(&key)).await;
        commands.push(sent.take().len());
    }
    assert_eq!(commands, [3, 1, 2, 1], "what was refused is not tried again at once");
    here.try_acquire(&attempt(&claim(&key).with_mode(Mode::Shared))).await.unwrap();
    sent.take();
    for _ in 0..3 {
        queued(&here, &claim(&key)).await;
        assert_eq!(sent.take().len(), 1, "now it is known to have readers");
    }
}

/// Waiters that crash, one after the other, behind one that lives.
async fn dead_tickets_do_not_pile_up(world: World) {
    let (elsewhere, here, sent, name) = stores(&world).await;
    let key = key();
    granted(&elsewhere, &claim(&key), LONG).await;
    queued(&elsewhere, &claim(&key)).await;
    let (mut most, mut short) = (0, 0);
    for _ in 0..20 {
        let waiter = claim(&key);
        queued(&here, &waiter).await;
        short += usize::from(sent.take().len() == 1);
        age_ticket(&world, &name, &waiter, LONG).await;
        most = most.max(record(&world, &name, &key).await.get_array("queue").unwrap().len());
    }
    assert!(most < 6, "{most} places");
    assert!(short > 5, "{short} of 20 by one command");
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
    assert_eq!(take_and_give_back(None).await, (1, 1, false, false), "now the key is known to be crowded");
    assert!(release(&elsewhere, &company).await.is_released());
    assert_eq!(take_and_give_back(None).await, (1, 1, false, true), "now it is known not to be");
    assert_eq!(take_and_give_back(None).await, (1, 1, true, true));
}

/// A hand-over takes the waiters of a key for exclusive ones until one is not.
async fn a_reader_that_waits_costs_one_command_once(world: World) {
    let (elsewhere, here, sent, _) = stores(&world).await;
    for mode in [Mode::Shared, Mode::Permits { take: 1, of: 2 }] {
        let key = key();
        for (commands, why) in [(2, "it was not known to have such waiters"), (1, "now it is")] {
            let [writer, next, last] = [(); 3].map(|()| claim(&key));
            let [one, two] = [(); 2].map(|()| claim(&key).with_mode(mode));
            granted(&here, &writer, LONG).await;
            for waiter in [&next, &one, &two, &last] {
                queued(&elsewhere, waiter).await;
            }
            // After a count of the waiters, the way for none is not tried.
            assert_eq!(here.waiters(&writer, LONG).await.unwrap(), 4);
            sent.take();
            assert!(release(&here, &writer).await.is_released());
            assert_eq!(sent.take().len(), commands, "{mode:?}: {why}");
            let first = granted(&elsewhere, &next, LONG).await;
            assert!(release(&elsewhere, &next).await.is_released());
            for waiter in [&one, &two] {
                assert!(granted(&elsewhere, waiter, LONG).await.token > first.token, "both in one write");
            }
            for claim in [&one, &two, &last] {
                assert!(release(&elsewhere, claim).await.is_released());
            }
        }
    }
}

async fn readers_leave_with_one_command(world: World) {
    let (elsewhere, here, sent, _) = stores(&world).await;
    let key = key();
    let reader = || claim(&key).with_mode(Mode::Shared);
    let [first, last, again] = [(); 3].map(|()| reader());
    let (writer, permits) = (claim(&key), claim(&key).with_mode(Mode::Permits { take: 1, of: 2 }));
    let commands_of_release = async |claim: &Claim| {
        sent.take();
        assert!(release(&here, claim).await.is_released());
        sent.take().len()
    };
    for reader in [&first, &last] {
        granted(&here, reader, LONG).await;
    }
    queued(&elsewhere, &writer).await;
    queued(&here, &again).await;
    assert_eq!(commands_of_release(&first).await, 1, "beside another");
    assert_eq!(commands_of_release(&last).await, 1, "before a writer");
    let token = granted(&elsewhere, &writer, LONG).await.token;
    assert!(release(&elsewhere, &writer).await.is_released());
    assert!(granted(&here, &again, LONG).await.token > token);
    assert_eq!(commands_of_release(&again).await, 1, "the last one of all");
    let another = reader();
    granted(&here, &another, LONG).await;
    queued(&elsewhere, &permits).await;
    assert_eq!(commands_of_release(&another).await, 2, "before one that is neither");
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

async fn both_ways_leave_the_same_record(world: World) {
    let (one, _, _, name) = stores(&world).await;
    let (short, long) = (key(), key());
    let [a, b] = [&short, &long].map(|key| Claim::new(key.clone(), AcquisitionId::new("a-1")));
    // A store that has seen the key in use takes the full path.
    granted(&one, &claim(&long), SHORT).await;
    opened(&one, &long).await;
    world.raw(&name).delete_one(doc! { "_id": long.as_str() }).await.unwrap();
    for claim in [&a, &b] {
        one.try_acquire(&attempt(claim)).await.unwrap();
    }
    let (of_a, of_b) = (record(&world, &name, &short).await, record(&world, &name, &long).await);
    assert_eq!(without_times(of_a), without_times(of_b));
    assert!(release(&one, &a).await.is_released());
    // The request comes from a process without state of the acquisition.
    assert!(release(&one, &twin(&b)).await.is_released());
    let (of_a, of_b) = (record(&world, &name, &short).await, record(&world, &name, &long).await);
    assert_eq!(without_times(of_a), without_times(of_b));
}

/// A withdrawal always takes the full path. Tokens and times differ by what the clock shows.
async fn short_and_long_releases_leave_the_same_record(world: World) {
    let name = random_name("locks");
    let now = DateTime::now().timestamp_millis();
    let [past, later] = [-5000, 60_000].map(|offset| DateTime::from_millis(now + offset));
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
    for (mode, mut found, queue) in records {
        found.extend(doc! { "fencingToken": 70_i64, "tokens": 10, "acquiredAt": past, "released": ["z-1"] });
        if !queue.is_empty() {
            found.insert("queue", queue.clone());
        }
        let mut outcomes = Vec::new();
        for goes_long in [false, true] {
            let store = world.store_on(&world.client, &name);
            let key = key();
            let claim = Claim::new(key.clone(), AcquisitionId::new("a-1")).with_mode(mode);
            world.raw(&name).insert_one(with(doc! { "_id": key.as_str() }, found.clone())).await.unwrap();
            if goes_long {
                store.withdraw(&claim, LONG).await.unwrap();
            } else {
                let _ = release(&store, &claim).await;
            }
            outcomes.push(without_times(record(&world, &name, &key).await));
        }
        assert_eq!(outcomes[0], outcomes[1], "{mode:?}: {found}");
    }
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
