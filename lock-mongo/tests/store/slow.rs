//! A server on which each write takes two seconds, as behind a frozen primary, and callers that
//! wait for little longer.

use std::collections::BTreeMap;
use std::time::Duration;

use distlock_api::{LockKey, LockProvider, LockProviderExt};
use distlock_mongo::MongoProvider;
use distlock_mongo::mongodb::Collection;
use distlock_mongo::mongodb::bson::{Document, doc};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

use super::Checks;
use super::world::{World, key, random_name};

/// How long each write takes.
const SLOW: Duration = Duration::from_secs(2);
/// How long a caller waits.
const WAIT: Duration = Duration::from_secs(3);
/// The time between two callers.
const PERIOD: Duration = Duration::from_millis(40);
/// How long callers come.
const FAULT: Duration = Duration::from_secs(8);
/// The driver's default pool: by hand each connection carries one call.
const POOL: usize = 10;

pub(super) fn add(checks: &mut Checks<'_>) {
    check!(checks, alone new_keys_are_served_while_each_write_is_slow);
}

async fn new_keys_are_served_while_each_write_is_slow(world: World) {
    let (client, app) = world.client_of_app().await;
    let provider = MongoProvider::builder(client.database("distlock_test")).collection(random_name("locks"));
    let provider = provider.build().unwrap();
    let warm = provider.acquire("warm").await.unwrap();
    assert!(warm.release().await.unwrap().is_released());
    let by_hand = world.raw(&random_name("by_hand"));
    let by_hand = client.database("distlock_test").collection::<Document>(by_hand.name());
    take_by_hand(&by_hand).await;

    slow_down(&world, &app).await;
    let due = served_by_hand(&by_hand).await;
    let callers = FAULT.as_millis() / PERIOD.as_millis();
    // No call has shown yet that the server is slow: the first ones take a connection for each key.
    let first = served(&provider, 2 * SLOW).await;
    println!("{first} of the first callers were served");
    let served = served(&provider, FAULT).await;
    world.admin(doc! { "configureFailPoint": "failCommand", "mode": "off" }).await;
    println!("{served} of {callers} callers were served; {due} by hand");
    // On two quiet cores it is 0.83 of them. A busy machine makes each call longer than the server
    // does, and a caller has a second for that.
    assert!(u128::from(served) * 2 >= callers, "{served} of {callers} callers were served");
    assert!(served >= due, "{served} callers were served, and {due} by hand");
    provider.close().await.unwrap();
}

async fn slow_down(world: &World, app: &str) {
    let data = doc! {
        "failCommands": ["findAndModify", "aggregate", "update"],
        "appName": app,
        "blockConnection": true,
        "blockTimeMS": i64::try_from(SLOW.as_millis()).unwrap(),
    };
    world.admin(doc! { "configureFailPoint": "failCommand", "mode": "alwaysOn", "data": data }).await;
}

/// How many of the callers get a new key each in time. They come one after the other.
async fn served(provider: &MongoProvider, time: Duration) -> u64 {
    let (begin, mut calls) = (Instant::now(), JoinSet::<distlock_api::Result<()>>::new());
    let mut next = begin;
    while next < begin + time {
        sleep_until(next).await;
        next += PERIOD;
        let provider = provider.clone();
        calls.spawn(async move {
            let guard = provider.acquire(key()).timeout(WAIT).await?;
            drop(guard);
            Ok(())
        });
    }
    let mut refused = BTreeMap::<String, u32>::new();
    let mut served = 0;
    for answer in calls.join_all().await {
        match answer {
            Ok(()) => served += 1,
            Err(error) => *refused.entry(error.kind().as_str().to_owned()).or_default() += 1,
        }
    }
    println!("the others: {refused:?}");
    served
}

/// How many keys a program takes and gives back in that time that has one task for each connection.
async fn served_by_hand(records: &Collection<Document>) -> u64 {
    let mut tasks = JoinSet::new();
    let end = Instant::now() + FAULT;
    for _ in 0..POOL {
        let records = records.clone();
        tasks.spawn(async move {
            let mut taken = 0;
            while timeout(end - Instant::now(), take_by_hand(&records)).await.is_ok() {
                taken += 1;
            }
            taken
        });
    }
    tasks.join_all().await.into_iter().sum()
}

async fn take_by_hand(records: &Collection<Document>) {
    let new: LockKey = key();
    let filter = || doc! { "_id": new.as_str() };
    let taken = records.find_one_and_update(filter(), doc! { "$set": { "held": true } }).upsert(true);
    taken.await.expect("an answer");
    records.find_one_and_update(filter(), doc! { "$unset": { "held": 1 } }).await.expect("an answer");
}
