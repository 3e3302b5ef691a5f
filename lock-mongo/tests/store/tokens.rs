//! Fencing tokens (C5, R5).

use std::num::NonZeroU32;
use std::time::Duration;

use distlock_api::{ErrorKind, FencingToken, LockGuard, LockKey, LockProvider, LockProviderExt, Loss, Mode, Result};
use distlock_engine::store::{Attempt, BatchStore, LeaseStore, Release, Renewal, Reply, Standing};
use distlock_mongo::mongodb::bson::{DateTime, doc};
use distlock_mongo::{HandOff, MongoProvider};

use futures_util::FutureExt;
use tokio::task::JoinHandle;

use super::Checks;
use super::world::{
    LONG, SHORT, World, admin, claim, granted, key, opened, queued, random_name, release, renew, ticket,
};

pub(super) fn add(checks: &mut Checks<'_>) {
    check!(checks, C5 tokens_increase_after_every_event);
    check!(checks, C5 tokens_increase_across_a_purge);
    check!(checks, C5 tokens_increase_when_the_record_is_ahead_of_the_clock);
    check!(checks, blocks_of_tokens);
    check!(checks, R5 tokens_stay_below_2_to_the_53_and_do_not_outrun_the_clock);
    check!(checks, R21 unused_tokens_are_given_back);
    check!(checks, R6 a_record_is_kept_until_its_token_is_reached);
    check!(checks, R6 a_record_is_kept_however_its_lease_ends);
    check!(checks, R8 a_token_ahead_of_the_clock_keeps_no_waiter_out);
    check!(checks, token_floor_is_below_every_token);
    check!(checks, raised_tokens_take_every_lock_away);
}

/// The server's clock, in tokens and milliseconds.
async fn clock(world: &World) -> (u64, i64) {
    const EPOCH_MILLIS: i64 = 1_735_689_600_000;
    let now = world.admin(doc! { "hello": 1 }).await.get_datetime("localTime").unwrap().timestamp_millis();
    (u64::try_from((now - EPOCH_MILLIS) / 1000).unwrap() << 21, now)
}

const SECOND: u64 = 1 << 21;

/// Two hundred leases, each with a block of 65,536 tokens, would be six seconds ahead of the clock.
async fn tokens_stay_below_2_to_the_53_and_do_not_outrun_the_clock(world: World) {
    let locks = world.locks(&random_name("locks"));
    let key = key();
    let mut last = 0;
    for round in 0..200 {
        let guard = locks.acquire(&key).await.unwrap();
        let token = guard.fencing_token().get();
        assert!(token > last && token < 1 << 53, "{round}: {token} after {last}");
        #[expect(clippy::cast_precision_loss, reason = "that is the question")]
        let rounded = (token as f64, last as f64);
        assert!(rounded.0 > rounded.1, "{token} and {last} are the same as doubles");
        last = token;
        assert!(guard.release().await.unwrap().is_released());
    }
    let (now, _) = clock(&world).await;
    assert!(last < now + 3 * SECOND && last + 60 * SECOND > now, "{last} is not of now, which is {now}");
    locks.close().await.unwrap();
}

async fn unused_tokens_are_given_back(world: World) {
    let name = random_name("locks");
    let locks = MongoProvider::builder(world.client.database("distlock_test")).collection(&*name);
    // However slow the machine is, the lease is handed on.
    let locks = locks.hand_off(HandOff::new().max_time(LONG)).build().unwrap();
    let key = key();
    let state = || async {
        let record = world.raw(&name).find_one(doc! { "_id": key.as_str() }).await.unwrap().unwrap();
        (record.get_i64("fencingToken").unwrap().unsigned_abs(), record.get_i32("tokens").unwrap())
    };
    // Three guards of one lease: the others wait for it in this process.
    let first = locks.acquire(&key).await.unwrap();
    let mut waiters = [(); 2].map(|()| locks.acquire(&key).timeout(LONG).into_future());
    assert!(waiters.iter_mut().all(|waiter| waiter.now_or_never().is_none()), "polled, they wait for their turn");
    assert_eq!(state().await, (first.fencing_token().get() + 65_535, 65_536));
    let mut last = first.fencing_token().get();
    first.release().await.unwrap();
    for waiter in waiters {
        let next = waiter.await.unwrap();
        assert_eq!(next.fencing_token().get(), last + 1, "handed on");
        last += 1;
        next.release().await.unwrap();
    }
    assert_eq!(state().await, (last, 1), "only the tokens that were used");

    // Another process waits: the release that hands the lease over also gives tokens back.
    let other = world.locks(&name);
    let held = locks.acquire(&key).await.unwrap();
    let waits = in_task(&other, &key);
    until_waiting(&locks, &key).await;
    let before = held.fencing_token();
    held.release().await.unwrap();
    let passed = waits.await.unwrap().unwrap();
    assert!(passed.fencing_token() > before);
    drop(passed);
    for provider in [locks, other] {
        provider.close().await.unwrap();
        assert!(provider.accounting().balances());
    }
}

fn in_task(locks: &MongoProvider, key: &LockKey) -> JoinHandle<Result<LockGuard>> {
    let (locks, key) = (locks.clone(), key.clone());
    tokio::spawn(async move { locks.acquire(key).timeout(LONG).await })
}

async fn until_waiting(locks: &MongoProvider, key: &LockKey) {
    let waits = async {
        while locks.admin().unwrap().inspect(key).await.unwrap().is_none_or(|info| info.waiting != Some(1)) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), waits).await.expect("it queues up");
}

async fn a_record_is_kept_until_its_token_is_reached(world: World) {
    let name = random_name("locks");
    let locks = world.locks(&name);
    let key = key();
    let (now, millis) = clock(&world).await;
    let ahead = i64::try_from(now + 3600 * SECOND).unwrap();
    world.raw(&name).insert_one(doc! { "_id": key.as_str(), "fencingToken": ahead }).await.unwrap();
    let guard = locks.acquire(&key).await.unwrap();
    assert!(guard.fencing_token().get() > ahead.unsigned_abs());
    assert!(guard.release().await.unwrap().is_released());
    let record = world.raw(&name).find_one(doc! { "_id": key.as_str() }).await.unwrap().unwrap();
    let end = record.get_datetime("expiresAt").unwrap().timestamp_millis();
    assert!(end >= millis + 3_599_000, "{end} is the end of a record of {millis}");
    assert!(locks.try_acquire(&key).await.unwrap().is_some(), "it is free meanwhile");
    locks.close().await.unwrap();
}

/// A lease that no guard has had, or of which is not known which tokens its guards have had.
async fn a_record_is_kept_however_its_lease_ends(world: World) {
    let name = random_name("locks");
    let (store, records) = (world.store_on(&world.client, &name), world.raw(&name));
    let (now, millis) = clock(&world).await;
    let ahead = i64::try_from(now + 3600 * SECOND).unwrap();
    for mode in [Mode::Exclusive, Mode::Shared] {
        for way in ["released", "withdrawn", "released together", "withdrawn together", "before a dead ticket", "taken"]
        {
            let claims = [(); 2].map(|()| claim(&key()).with_mode(mode));
            for claim in &claims {
                let id = claim.key().as_str();
                records.insert_one(doc! { "_id": id, "fencingToken": ahead }).await.unwrap();
                granted(&store, claim, LONG).await;
                if way == "before a dead ticket" {
                    let seen = DateTime::from_millis(millis - 60_000);
                    let ticket = doc! { "id": "w-1", "seen": seen, "ttl": 1000, "claim": 1000, "tokens": 1 };
                    records.update_one(doc! { "_id": id }, doc! { "$set": { "queue": [ticket] } }).await.unwrap();
                }
            }
            if way == "released together" {
                let releases = claims.clone().map(Release::new);
                for outcome in store.release_many(&releases).await {
                    assert!(outcome.unwrap().is_released());
                }
            } else if way == "withdrawn together" {
                assert!(store.withdraw_many(&claims, LONG).await.iter().all(Result::is_ok));
            } else {
                for claim in &claims {
                    match way {
                        "withdrawn" => store.withdraw(claim, LONG).await.unwrap(),
                        "taken" => {
                            drop(store.extras().admin.unwrap().force_release(claim.key(), "test").await.unwrap());
                        }
                        _ => assert!(release(&store, claim).await.is_released()),
                    }
                }
            }
            for claim in &claims {
                let record = records.find_one(doc! { "_id": claim.key().as_str() }).await.unwrap().unwrap();
                let end = record.get_datetime("expiresAt").unwrap().timestamp_millis();
                assert!(end >= millis + 3_599_000, "{mode:?}, {way}: {end} is the end of a record of {millis}");
            }
        }
    }
}

/// The record of a free key ends at the time of its token.
async fn a_token_ahead_of_the_clock_keeps_no_waiter_out(world: World) {
    const HOLD: Duration = Duration::from_secs(2);
    let name = random_name("locks");
    let (store, records) = (world.store_on(&world.client, &name), world.raw(&name));
    let ahead = i64::try_from(clock(&world).await.0 + 3600 * SECOND).unwrap();
    for is_closed in [true, false] {
        let key = key();
        records.insert_one(doc! { "_id": key.as_str(), "fencingToken": ahead }).await.unwrap();
        let [holder, next, last] = [(); 3].map(|()| claim(&key));
        granted(&store, &holder, LONG).await;
        for waiter in [&next, &last] {
            queued(&store, waiter).await;
        }
        if is_closed {
            let release = Release::new(holder.clone()).with_hold_at_least(HOLD);
            assert!(store.release(&release).await.unwrap().is_released());
            let remaining = queued(&store, &next).await.holder_remaining.unwrap();
            assert!(remaining <= HOLD, "the key opens in {remaining:?}");
        } else {
            store.extras().admin.unwrap().force_release(&key, "test").await.unwrap();
        }
        let opens = queued(&store, &last).await.holder_remaining.unwrap();
        assert!(opens <= HOLD + Attempt::TURN_WINDOW, "the second waiter looks again in {opens:?}");
        let refresh = Renewal::ticket(last.clone(), ticket());
        let Standing::Waiting(busy) = store.renew(&refresh).await.unwrap() else { panic!("it waits") };
        let opens = busy.holder_remaining.unwrap();
        assert!(opens <= HOLD + Attempt::TURN_WINDOW, "and after its refresh in {opens:?}");
        let attempt = Attempt::new(next.clone(), LONG).with_ticket(ticket());
        while !matches!(store.try_acquire(&attempt).await.unwrap(), Reply::Granted(_)) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert!(release(&store, &next).await.is_released());
    }
}

async fn token_floor_is_below_every_token(world: World) {
    let name = random_name("locks");
    let builder = || MongoProvider::builder(world.client.database("distlock_test")).collection(&*name);
    let (now, _) = clock(&world).await;
    let floor = FencingToken::new(now + 7200 * SECOND);
    let locks = builder().token_floor(floor).build().unwrap();
    let token = locks.acquire(key()).await.unwrap().fencing_token();
    assert!(token >= floor && token.get() < floor.get() + SECOND, "{token}");
    locks.close().await.unwrap();
    for impossible in [u64::MAX, i64::MAX.unsigned_abs()] {
        let error = builder().token_floor(FencingToken::new(impossible)).build().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidOptions, "{error}");
        crate::guide::lists(&error);
    }
}

async fn raised_tokens_take_every_lock_away(world: World) {
    let (store, name) = world.named_store();
    let [held, expired, free, above] = [(); 4].map(|()| claim(&key()));
    let lost = granted(&store, &held, LONG).await;
    granted(&store, &expired, SHORT).await;
    granted(&store, &free, LONG).await;
    assert!(release(&store, &free).await.is_released());
    let (now, _) = clock(&world).await;
    let floor = now + 600 * SECOND;
    let beyond = i64::try_from(floor + 1).unwrap();
    world.raw(&name).insert_one(doc! { "_id": above.key().as_str(), "fencingToken": beyond }).await.unwrap();
    opened(&store, expired.key()).await;

    assert_eq!(store.raise_tokens(FencingToken::new(floor)).await.unwrap(), 3);
    assert_eq!(store.raise_tokens(FencingToken::new(floor)).await.unwrap(), 0, "once");
    assert_eq!(renew(&store, &held, lost.token, LONG).await, Standing::Gone(Loss::ForceReleased));
    for key in [held.key(), expired.key(), free.key(), above.key()] {
        let next = granted(&store, &claim(key), LONG).await;
        assert!(next.token.get() > floor, "{}", next.token);
    }
}

async fn tokens_increase_after_every_event(world: World) {
    let store = world.store();
    let key = key();
    let mut last = FencingToken::new(0);
    for round in 0..30 {
        let claim = claim(&key);
        let token = granted(&store, &claim, if round % 3 == 1 { SHORT / 4 } else { LONG }).await.token;
        assert!(token > last, "round {round}: {token} after {last}");
        last = token;
        match round % 3 {
            0 => assert!(release(&store, &claim).await.is_released()),
            1 => opened(&store, &key).await,
            _ => {
                let info = admin(&store).force_release(&key, "test").await.unwrap().unwrap();
                assert_eq!(info.token, token);
            }
        }
    }
}

/// As the TTL index does, but at once, which is harder: several grants within one millisecond.
async fn tokens_increase_across_a_purge(world: World) {
    let (store, name) = world.named_store();
    let key = key();
    let mut last = FencingToken::new(0);
    for round in 0..20 {
        let claim = claim(&key);
        let token = granted(&store, &claim, LONG).await.token;
        assert!(token > last, "round {round}: {token} after {last}");
        last = token;
        assert!(release(&store, &claim).await.is_released());
        // The clock of a standalone has milliseconds. A purge comes an hour later, not within one.
        tokio::time::sleep(Duration::from_millis(2)).await;
        let gone = world.raw(&name).delete_one(doc! { "_id": key.as_str() }).await.unwrap();
        assert_eq!(gone.deleted_count, 1);
    }
}

async fn tokens_increase_when_the_record_is_ahead_of_the_clock(world: World) {
    let (store, name) = world.named_store();
    let key = key();
    let far = i64::MAX / 2;
    world.raw(&name).insert_one(doc! { "_id": key.as_str(), "fencingToken": far }).await.unwrap();
    for step in 1..4 {
        let claim = claim(&key);
        assert_eq!(granted(&store, &claim, LONG).await.token.get(), u64::try_from(far + step).unwrap());
        assert!(release(&store, &claim).await.is_released());
    }
}

async fn blocks_of_tokens(world: World) {
    let store = world.store();
    let key = key();
    let a = claim(&key);
    let attempt = Attempt::new(a.clone(), LONG).with_tokens(NonZeroU32::new(10).unwrap());
    let Reply::Granted(first) = store.try_acquire(&attempt).await.unwrap() else { panic!("busy") };
    assert_eq!(first.tokens.get(), 10);
    assert_eq!(granted(&store, &a, LONG).await, first, "a repeated attempt");
    let last = FencingToken::new(first.token.get() + 9);
    assert_eq!(renew(&store, &a, last, LONG).await, Standing::Held { remaining: LONG });
    assert!(release(&store, &a).await.is_released());
    assert!(granted(&store, &claim(&key), LONG).await.token > last);
}
