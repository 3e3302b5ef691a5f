//! Several keys by one command (R23, R24).

use std::future::IntoFuture;
use std::time::Duration;

use distlock_api::{ErrorKind, Holder, LockGuard, LockKey, LockProvider, LockProviderExt, Loss, Mode};
use distlock_conformance_mongo::Topology;
use distlock_engine::store::{Attempt, BatchStore, Claim, LeaseStore, Release, RemoteStore, Reply, Standing};
use distlock_mongo::mongodb::bson::{Bson, DateTime, Document, doc};
use distlock_mongo::{MongoProvider, MongoStore};
use futures_util::future::join_all;

use tokio::time::Instant;

use super::Checks;
use super::world::{
    LONG, SHORT, Sent, World, claim, end_lease, granted, id, key, opened, queued, random_name, release, renew, ticket,
    twin,
};

pub(super) fn add(checks: &mut Checks<'_>) {
    check!(checks, free_keys_are_taken_by_one_command);
    check!(checks, a_batch_leaves_the_record_of_a_single_attempt);
    check!(checks, C1 a_batch_takes_no_key_in_use);
    check!(checks, a_batch_takes_new_keys_beside_known_ones);
    check!(checks, R17 a_key_is_not_taken_for_the_text_of_an_error);
    check!(checks, R6 a_batch_creates_the_indexes);
    check!(checks, C5 a_batch_takes_no_key_with_greater_tokens);
    check!(checks, R22 a_batch_leaves_foreign_documents);
    check!(checks, releases_go_by_one_command);
    check!(checks, C9 each_release_of_a_batch_has_its_own_answer);
    check!(checks, C24 close_releases_many_leases_by_few_commands);
    check!(checks, R23 a_batch_of_releases_passes_the_lease_on);
    check!(checks, withdrawals_go_by_one_command);
    check!(checks, a_batch_of_withdrawals_leaves_the_records_of_single_ones);
    check!(checks, C14 each_withdrawal_of_a_batch_has_its_own_answer);
    check!(checks, R11 a_claim_that_numbers_its_writes_is_withdrawn_alone);
    check!(checks, alone R24 a_late_batch_takes_nothing);
    check!(checks, alone R24 each_statement_has_its_own_bound);
    check!(checks, alone R24 a_batch_without_an_answer_is_withdrawn_after_its_bound);
}

/// A store on a collection of its own that knows its server's clock, and its commands.
async fn store(world: &World) -> (MongoStore, Sent, String) {
    let (client, sent) = world.recorded_client().await;
    let name = random_name("locks");
    let store = world.store_on(&client, &name);
    meet(&store).await;
    sent.take();
    (store, sent, name)
}

/// Lets the store know the server and its clock.
async fn meet(store: &MongoStore) {
    let reply = store.try_acquire(&attempt(&claim(&key()))).await.unwrap();
    assert!(matches!(reply, Reply::Granted(_)), "{reply:?}");
}

pub(super) fn attempt(claim: &Claim) -> Attempt {
    Attempt::new(claim.clone(), LONG).with_ticket(ticket())
}

fn claims(count: usize) -> Vec<Claim> {
    (0..count).map(|_| claim(&key())).collect()
}

/// The commands that were sent.
fn names(sent: &Sent) -> Vec<String> {
    sent.take().iter().map(|command| command.keys().next().unwrap().clone()).collect()
}

pub(super) async fn take(store: &MongoStore, claims: &[Claim]) -> Vec<Reply> {
    let attempts: Vec<Attempt> = claims.iter().map(attempt).collect();
    assert!(attempts.iter().all(|attempt| store.may_gather(attempt)));
    store.try_acquire_many(&attempts).await.into_iter().map(Result::unwrap).collect()
}

async fn free_keys_are_taken_by_one_command(world: World) {
    let (store, sent, _) = store(&world).await;
    let claims = claims(5);
    for round in 0..2 {
        let claims: Vec<Claim> = claims.iter().map(|it| claim(it.key())).collect();
        let replies = take(&store, &claims).await;
        let commands = sent.take();
        let names: Vec<&str> = commands.iter().map(|command| command.keys().next().unwrap().as_str()).collect();
        let expected = if round == 0 { ["aggregate"] } else { ["update"] };
        assert_eq!(names, expected, "round {round}");
        if round == 1 {
            assert_eq!(commands[0].get_array("updates").unwrap().len(), 1, "one statement for equal terms");
        }
        assert_eq!(commands[0].get_document("writeConcern").unwrap(), &doc! { "w": "majority" });
        assert!(!commands[0].contains_key("txnNumber"), "the driver numbers no batch: {:?}", commands[0]);
        for (claim, reply) in claims.iter().zip(replies) {
            let Reply::Granted(grant) = reply else { panic!("{reply:?}") };
            assert!(grant.remaining <= LONG && grant.remaining > LONG / 2, "{grant:?}");
            assert!(matches!(renew(&store, claim, grant.token, LONG).await, Standing::Held { .. }));
            assert!(release(&store, claim).await.is_released());
        }
        sent.take();
    }
}

/// What differs between two records for other reasons.
pub(super) fn comparable(mut record: Document) -> Document {
    for field in ["_id", "lockId", "fencingToken", "acquiredAt", "expiresAt", "lastReleased", "released"] {
        if let Some(value) = record.get_mut(field) {
            *value = Bson::String(format!("{:?}", value.element_type()));
        }
    }
    record
}

async fn a_batch_leaves_the_record_of_a_single_attempt(world: World) {
    let (store, _, name) = store(&world).await;
    let records = world.raw(&name);
    let with_remarks = |claim: &Claim| {
        let holder = Holder::new().with_owner("me").with_metadata("why", "$test");
        attempt(claim).with_holder(holder).with_tokens(16.try_into().unwrap())
    };
    let [single, one, two] = [(); 3].map(|()| claim(&key()));
    for ended in [false, true] {
        store.try_acquire(&with_remarks(&single)).await.unwrap();
        if !ended {
            store.try_acquire_many(&[with_remarks(&one), with_remarks(&two)]).await;
        } else {
            assert!(release(&store, &single).await.is_released());
            store.release_many(&[Release::new(one.clone()), Release::new(two.clone())]).await;
        }
        let record = async |claim: &Claim| {
            comparable(records.find_one(doc! { "_id": claim.key().as_str() }).await.unwrap().expect("a record"))
        };
        let expected = record(&single).await;
        assert_eq!(record(&one).await, expected, "released: {ended}");
        assert_eq!(record(&two).await, expected, "released: {ended}");
    }
}

async fn a_batch_takes_no_key_in_use(world: World) {
    let (store, _, name) = store(&world).await;
    let elsewhere = world.store_on(&world.client, &name);
    let claims = claims(5);
    let [free, held, expired, waited_for, closed] = &*claims else { panic!() };
    granted(&elsewhere, &claim(held.key()), LONG).await;
    granted(&elsewhere, &claim(expired.key()), SHORT).await;
    let holder = claim(waited_for.key());
    granted(&elsewhere, &holder, LONG).await;
    queued(&elsewhere, &claim(waited_for.key())).await;
    end_lease(&world, &name, waited_for.key()).await;
    let quick = claim(closed.key());
    granted(&elsewhere, &quick, LONG).await;
    assert!(elsewhere.release(&Release::new(quick).with_hold_at_least(LONG)).await.unwrap().is_released());
    for free in [expired, waited_for] {
        opened(&elsewhere, free.key()).await;
    }

    for (claim, reply) in claims.iter().zip(take(&store, &claims).await) {
        match reply {
            Reply::Granted(_) => assert_eq!(claim.key(), free.key()),
            Reply::Busy(busy) => assert!(busy.undecided, "it is made again, alone"),
            other => panic!("{other:?}"),
        }
    }
    // Alone each has the answer that it would have had without the batch.
    let again = async |claim: &Claim| store.try_acquire(&attempt(claim)).await;
    assert!(matches!(again(held).await.unwrap(), Reply::Busy(_)));
    assert!(matches!(again(expired).await.unwrap(), Reply::Granted(_)));
    assert!(matches!(again(closed).await.unwrap(), Reply::Busy(_)));
}

/// The error of a record that exists quotes its key.
async fn a_key_is_not_taken_for_the_text_of_an_error(world: World) {
    let (store, sent, name) = store(&world).await;
    let elsewhere = world.store_on(&world.client, &name);
    let known = claim(&LockKey::new(random_name("distlock: late ")).unwrap());
    granted(&elsewhere, &known, LONG).await;
    sent.take();
    let replies = take(&store, &[claim(known.key()), claim(&key())]).await;
    let [Reply::Busy(busy), Reply::Granted(_)] = &*replies else { panic!("{replies:?}") };
    assert!(busy.undecided);
    assert_eq!(names(&sent), ["aggregate", "update", "find"], "the majority has what was inserted");
}

/// A process may send nothing but batches.
async fn a_batch_creates_the_indexes(world: World) {
    let (store, name) = world.named_store();
    if let Some(connecting) = store.ensure_connected(LONG) {
        connecting.await.unwrap();
    }
    take(&store, &claims(2)).await;
    let created = async {
        loop {
            let names = world.raw(&name).list_index_names().await.unwrap_or_default();
            if names.iter().any(|name| name == "distlock_purge") {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), created).await.expect("there is an index that purges records");
}

/// A batch chooses its tokens, and a key may have had greater ones.
async fn a_batch_takes_no_key_with_greater_tokens(world: World) {
    let (store, sent, name) = store(&world).await;
    let claims = claims_with_records(&store, 2).await;
    let ahead = 1_i64 << 52;
    let of_first = doc! { "_id": claims[0].key().as_str() };
    world.raw(&name).update_one(of_first, doc! { "$set": { "fencingToken": ahead } }).await.unwrap();
    sent.take();
    let replies = take(&store, &claims).await;
    let [Reply::Busy(busy), Reply::Granted(_)] = &*replies else { panic!("{replies:?}") };
    assert!(busy.undecided);
    assert_eq!(names(&sent), ["update", "find"]);
    let token = granted(&store, &claims[0], LONG).await.token;
    assert_eq!(token.get(), (ahead + 1).unsigned_abs());
}

async fn a_batch_leaves_foreign_documents(world: World) {
    let (store, _, name) = store(&world).await;
    let records = world.raw(&name);
    let claims = claims(2);
    let foreign = doc! { "_id": claims[0].key().as_str(), "name": "an order", "expiresAt": DateTime::from_millis(0) };
    records.insert_one(&foreign).await.unwrap();
    let replies = take(&store, &claims).await;
    assert!(matches!(&*replies, [Reply::Busy(_), Reply::Granted(_)]), "{replies:?}");
    assert_eq!(records.find_one(doc! { "_id": claims[0].key().as_str() }).await.unwrap(), Some(foreign));
    let error = store.try_acquire(&attempt(&claims[0])).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
}

async fn releases_go_by_one_command(world: World) {
    let (store, sent, _) = store(&world).await;
    let claims = claims(4);
    take(&store, &claims).await;
    sent.take();
    let releases: Vec<Release> = claims.iter().map(|claim| Release::new(claim.clone())).collect();
    assert!(releases.iter().all(|release| store.may_gather_release(release)));
    let outcomes = store.release_many(&releases).await;
    assert!(outcomes.into_iter().all(|outcome| outcome.unwrap().is_released()));
    let commands = sent.take();
    let [command] = &*commands else { panic!("{commands:?}") };
    assert_eq!(command.get_document("writeConcern").unwrap(), &doc! { "w": 1 });
    // And again, as after a lost reply: as a batch.
    assert!(releases.iter().all(|release| store.may_gather_release(release)));
    let outcomes = store.release_many(&releases).await;
    assert!(outcomes.into_iter().all(|outcome| outcome.unwrap().is_released()));
}

/// As the engine does: what a batch does not release is released alone.
async fn release_all(store: &MongoStore, releases: &[Release]) -> Vec<bool> {
    let mut released = Vec::new();
    for (outcome, release) in store.release_many(releases).await.into_iter().zip(releases) {
        let outcome = match outcome {
            Ok(outcome) => outcome,
            Err(error) if error.is_retryable() => store.release(release).await.unwrap(),
            Err(error) => panic!("{error:?}"),
        };
        released.push(outcome.is_released());
    }
    released
}

async fn each_release_of_a_batch_has_its_own_answer(world: World) {
    let (store, _, _) = store(&world).await;
    let claims = claims(3);
    take(&store, &claims).await;
    let never = claim(&key());
    store.extras().admin.unwrap().force_release(claims[1].key(), "test").await.unwrap();
    let releases: Vec<Release> = claims.iter().chain([&never]).map(|claim| Release::new(claim.clone())).collect();
    let released: Vec<bool> = release_all(&store, &releases).await;
    assert_eq!(released, [true, false, true, false]);
}

async fn a_batch_of_releases_passes_the_lease_on(world: World) {
    let (store, _, _) = store(&world).await;
    let claims = claims(2);
    take(&store, &claims).await;
    // It came after the grant, so that the holder does not know of it.
    let waiter = claim(claims[0].key());
    queued(&store, &waiter).await;
    let releases: Vec<Release> = claims.iter().map(|claim| Release::new(claim.clone())).collect();
    assert_eq!(release_all(&store, &releases).await, [true, true]);
    assert!(matches!(store.try_acquire(&attempt(&twin(&waiter))).await.unwrap(), Reply::Granted(_)));
}

async fn withdraw(store: &MongoStore, claims: &[Claim]) -> Vec<distlock_api::Result<()>> {
    let answers = store.withdraw_many(claims, LONG).await;
    assert_eq!(answers.len(), claims.len());
    answers
}

/// Leases, one of them with a waiter and one with another holder, and claims that have nothing.
async fn withdrawals_go_by_one_command(world: World) {
    let (store, sent, name) = store(&world).await;
    let elsewhere = world.store_on(&world.client, &name);
    let [free, waited_for, expired] = [(); 3].map(|()| claim(&key()));
    let reader = claim(&key()).with_mode(Mode::Shared);
    let taken = [free, waited_for, expired, reader];
    take(&store, &taken).await;
    let [free, waited_for, expired, reader] = &taken;
    let waiter = claim(waited_for.key());
    queued(&elsewhere, &waiter).await;
    end_lease(&world, &name, expired.key()).await;
    let other_reader = claim(reader.key()).with_mode(Mode::Shared);
    granted(&elsewhere, &other_reader, LONG).await;
    // One of a key that another holds, and one of a key without a record.
    let late = claim(free.key());
    let never = claim(&key());
    let claims: Vec<Claim> = taken.iter().chain([&late, &never]).cloned().collect();
    assert!(claims.iter().all(|claim| store.may_gather_withdrawal(claim)));
    for repeated in [false, true] {
        sent.take();
        assert!(withdraw(&store, &claims).await.iter().all(Result::is_ok));
        let commands = sent.take();
        let [command] = &*commands else { panic!("{commands:?}") };
        let statements = command.get_array("updates").unwrap().len();
        assert_eq!(statements, 3, "exclusive, shared, and one of a key that another has, repeated: {repeated}");
        assert_eq!(command.get_document("writeConcern").unwrap(), &doc! { "w": "majority" });
        assert!(!command.contains_key("txnNumber"), "{command:?}");
        assert!(claims.iter().all(|claim| store.may_gather_withdrawal(claim)));
    }
    for free in [free, expired] {
        granted(&elsewhere, &claim(free.key()), LONG).await;
    }
    let passed = elsewhere.try_acquire(&attempt(&waiter)).await.unwrap();
    assert!(matches!(passed, Reply::Granted(_)), "it was passed to the waiter: {passed:?}");
    let writer = claim(reader.key());
    assert!(matches!(elsewhere.try_acquire(&attempt(&writer)).await.unwrap(), Reply::Busy(_)), "a reader is left");
    assert!(release(&elsewhere, &other_reader).await.is_released());
    assert!(matches!(elsewhere.try_acquire(&attempt(&writer)).await.unwrap(), Reply::Granted(_)));
    assert_eq!(record(&world, &name, never.key()).await, None);
}

async fn a_batch_of_withdrawals_leaves_the_records_of_single_ones(world: World) {
    let (store, _, name) = store(&world).await;
    let elsewhere = world.store_on(&world.client, &name);
    for mode in [Mode::Exclusive, Mode::Shared, Mode::Permits { take: 1, of: 3 }] {
        for has_waiter in [false, true] {
            let claims = [(); 3].map(|()| claim(&key()).with_mode(mode));
            take(&store, &claims).await;
            // The same one each time, because a record names its holder.
            let waiter = id();
            for claim in claims.iter().filter(|_| has_waiter) {
                queued(&elsewhere, &Claim::new(claim.key().clone(), waiter.clone())).await;
            }
            let [single, together @ ..] = &claims;
            store.withdraw(single, LONG).await.unwrap();
            assert!(withdraw(&store, together).await.iter().all(Result::is_ok));
            let expected = comparable(record(&world, &name, single.key()).await.unwrap());
            for claim in together {
                let mut left = record(&world, &name, claim.key()).await.unwrap();
                assert_eq!(left.get_str("lockId").ok(), has_waiter.then_some(waiter.as_str()), "{mode:?}");
                assert_eq!(left.get_str("lastReleased").unwrap(), claim.id().as_str());
                if let Some(passed) = left.get_mut("passed") {
                    *passed = expected.get("passed").unwrap().clone();
                }
                assert_eq!(comparable(left), expected, "{mode:?}, waiter: {has_waiter}");
            }
        }
    }
}

async fn each_withdrawal_of_a_batch_has_its_own_answer(world: World) {
    let (claims, name) = (claims(3), random_name("locks"));
    // The server refuses one of the withdrawals.
    let validator = doc! { "lastReleased": { "$ne": claims[1].id().as_str() } };
    let create = doc! { "create": &name, "validator": validator };
    world.client.database("distlock_test").run_command(create).await.unwrap();
    let store = world.store_on(&world.client, &name);
    meet(&store).await;
    take(&store, &claims).await;
    let answers = withdraw(&store, &claims).await;
    assert_eq!(answers.iter().map(Result::is_ok).collect::<Vec<_>>(), [true, false, true], "{answers:?}");
    let error = answers[1].as_ref().unwrap_err();
    assert_eq!(error.key(), Some(claims[1].key()), "{error}");
    for (claim, answer) in claims.iter().zip(&answers) {
        let left = record(&world, &name, claim.key()).await.unwrap();
        assert_eq!(left.contains_key("lockId"), answer.is_err(), "{left}");
    }
}

/// Without a number of its own a withdrawal would not refuse an attempt that comes after it.
async fn a_claim_that_numbers_its_writes_is_withdrawn_alone(world: World) {
    let (store, _, _) = store(&world).await;
    let (alone, together) = (claim(&key()), claims(2));
    granted(&store, &alone, LONG).await;
    take(&store, &together).await;
    let numbers_writes = world.topology == Topology::ReplicaSet;
    assert_eq!(store.may_gather_withdrawal(&alone), !numbers_writes);
    assert!(together.iter().all(|claim| store.may_gather_withdrawal(claim)));
    // One that goes alone, although it need not, is numbered, too.
    store.withdraw(&together[0], LONG).await.unwrap();
    assert_eq!(store.may_gather_withdrawal(&together[0]), !numbers_writes);
}

/// One release per lease would take longer than `close` waits.
async fn close_releases_many_leases_by_few_commands(world: World) {
    const LEASES: usize = 2_000;
    let (client, sent) = world.recorded_client().await;
    let name = random_name("locks");
    let builder = MongoProvider::builder_from_client(&client).database("distlock_test").collection(&name);
    let provider = builder.connect().await.unwrap();
    let keys: Vec<LockKey> = (0..LEASES).map(|_| key()).collect();
    let started = Instant::now();
    let guards = join_all(keys.iter().map(|key| provider.acquire(key).into_future())).await;
    let guards: Vec<LockGuard> = guards.into_iter().map(Result::unwrap).collect();
    let taken = (started.elapsed(), sent.take().len());
    provider.close().await.unwrap();
    let commands = sent.take().len();
    println!("{LEASES} leases taken in {taken:?} commands, and released {:?} later by {commands}", started.elapsed());
    assert!(commands < LEASES / 4, "{commands}");
    assert!(guards.iter().all(|guard| guard.loss() == Some(Loss::Closed)));
    let held = world.raw(&name).count_documents(doc! { "lockId": { "$exists": true } }).await.unwrap();
    assert_eq!(held, 0);
    let accounting = provider.accounting();
    assert_eq!((accounting.released, accounting.abandoned), (LEASES as u64, 0), "{accounting:?}");
}

/// The next commands of a store's batches, as many as that, wait for so long at the server before
/// they begin.
async fn delay(world: &World, app: &str, delay: Duration, commands: i32) {
    let delay = i64::try_from(delay.as_millis()).unwrap();
    let data = doc! {
        "failCommands": ["update", "aggregate"],
        "appName": app,
        "blockConnection": true,
        "blockTimeMS": delay,
    };
    world.admin(doc! { "configureFailPoint": "failCommand", "mode": { "times": commands }, "data": data }).await;
}

/// Makes a record of the key of each claim that the store knows.
async fn make_records(store: &MongoStore, claims: &[Claim]) {
    for claim in claims {
        let before = self::claim(claim.key());
        granted(store, &before, LONG).await;
        assert!(release(store, &before).await.is_released());
    }
}

/// Two claims. The keys of the first so many have records.
async fn claims_with_records(store: &MongoStore, records: usize) -> Vec<Claim> {
    let claims = claims(2);
    make_records(store, &claims[..records]).await;
    claims
}

async fn record(world: &World, name: &str, key: &LockKey) -> Option<Document> {
    world.raw(name).find_one(doc! { "_id": key.as_str() }).await.unwrap()
}

/// The commands that arrive late are those that were sent, and the server gets them again.
async fn a_late_batch_takes_nothing(world: World) {
    let (store, sent, name) = store(&world).await;
    let limit = Duration::from_secs(5);
    // One key has a record, which is free, and the other one has none.
    let claims = claims_with_records(&store, 1).await;
    // As if the batch had not come yet.
    let undone = async || {
        let [known, new] = [0, 1].map(|number: usize| doc! { "_id": claims[number].key().as_str() });
        world.raw(&name).update_one(known, doc! { "$set": { "fencingToken": 1_i64 } }).await.unwrap();
        world.raw(&name).delete_one(new).await.unwrap();
    };
    sent.take();
    let attempts: Vec<Attempt> = claims.iter().map(|claim| attempt(claim).with_timeout(limit)).collect();
    assert!(store.try_acquire_many(&attempts).await.into_iter().all(|answer| answer.is_ok()));
    let again: Vec<Document> = sent.take().into_iter().filter_map(repeated).collect();
    assert_eq!(again.len(), 2, "{again:?}");
    let database = world.client.database("distlock_test");
    let repeat = async |command: &Document| database.run_command(command.clone()).await;
    let holders = async || {
        let mut holders = Vec::new();
        for claim in &claims {
            let record = record(&world, &name, claim.key()).await;
            holders.extend(record.and_then(|record| record.get_str("lockId").ok().map(str::to_owned)));
        }
        holders
    };
    // Before its bound it takes the leases again. That is what the bound is for.
    for claim in &claims {
        assert!(release(&store, claim).await.is_released());
    }
    undone().await;
    for command in &again {
        repeat(command).await.unwrap();
    }
    assert_eq!(holders().await.len(), 2);
    for claim in &claims {
        store.withdraw(claim, LONG).await.unwrap();
    }
    undone().await;
    tokio::time::sleep(limit + Duration::from_secs(1)).await;
    for command in &again {
        let answer = repeat(command).await;
        assert_eq!(answer.is_err(), command.contains_key("aggregate"), "{answer:?}");
    }
    assert_eq!(holders().await, Vec::<String>::new());
    assert_eq!(record(&world, &name, claims[1].key()).await, None);
    // What it leaves behind is a record like any other.
    for claim in &claims {
        granted(&store, &self::claim(claim.key()), LONG).await;
    }
}

/// The write of a batch, as it can be sent again.
fn repeated(command: Document) -> Option<Document> {
    let fields = match command.keys().next()?.as_str() {
        "update" => ["update", "updates", "ordered", "writeConcern"],
        "aggregate" => ["aggregate", "pipeline", "cursor", "writeConcern"],
        _ => return None,
    };
    Some(fields.into_iter().map(|field| (field.to_owned(), command.get(field).unwrap().clone())).collect())
}

/// Some keys have records that this process does not know.
async fn a_batch_takes_new_keys_beside_known_ones(world: World) {
    let (store, sent, name) = store(&world).await;
    let elsewhere = world.store_on(&world.client, &name);
    let claims = claims(4);
    make_records(&elsewhere, &claims[1..3]).await;
    granted(&elsewhere, &claim(claims[2].key()), LONG).await;
    sent.take();
    let replies = take(&store, &claims).await;
    assert_eq!(names(&sent), ["aggregate", "update", "find"]);
    for (number, reply) in replies.iter().enumerate() {
        match reply {
            Reply::Granted(_) => assert_ne!(number, 2, "it is held"),
            Reply::Busy(busy) => assert!(busy.undecided && number == 2, "{number}: {busy:?}"),
            other => panic!("{other:?}"),
        }
    }
    for number in [0, 1, 3] {
        assert!(release(&store, &claims[number]).await.is_released());
    }
}

/// A lease with a short ttl must not make the whole batch impatient.
async fn each_statement_has_its_own_bound(world: World) {
    let (store, app, name) = world.store_of_app().await;
    meet(&store).await;
    let ttl = Duration::from_millis(400);
    for records in 0..=2 {
        let claims = claims_with_records(&store, records).await;
        // Two records go by one command.
        delay(&world, &app, ttl * 2, if records == 2 { 1 } else { 2 }).await;
        let attempts = [Attempt::new(claims[0].clone(), ttl).with_ticket(ticket()), attempt(&claims[1])];
        let answers = store.try_acquire_many(&attempts).await;
        let [Ok(Reply::Busy(busy)), Ok(Reply::Granted(_))] = &*answers else { panic!("{records}: {answers:?}") };
        assert!(busy.undecided);
        assert_eq!(
            record(&world, &name, claims[1].key()).await.unwrap().get_str("lockId").unwrap(),
            claims[1].id().as_str()
        );
    }
}

async fn a_batch_without_an_answer_is_withdrawn_after_its_bound(world: World) {
    let (store, app, _) = world.store_of_app().await;
    meet(&store).await;
    let limit = Duration::from_secs(3);
    for records in [0, 2] {
        let claims = claims_with_records(&store, records).await;
        delay(&world, &app, limit * 3, 1).await;
        let attempts: Vec<Attempt> = claims
            .iter()
            .map(|claim| Attempt::new(claim.clone(), limit).with_ticket(ticket()).with_timeout(limit))
            .collect();
        assert!(store.try_acquire_many(&attempts).await.into_iter().all(|answer| answer.is_err()));
        let together = async || store.withdraw_many(&claims, LONG).await;
        for answer in together().await.into_iter().chain([store.withdraw(&claims[0], LONG).await]) {
            let error = answer.unwrap_err();
            assert!(error.is_retryable(), "the batch may come yet: {error:?}");
        }
        let mut tries = 1;
        while store.withdraw(&claims[0], LONG).await.is_err() {
            tries += 1;
            assert!(tries < 200, "it ends");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        assert!(together().await.iter().all(Result::is_ok));
    }
}
