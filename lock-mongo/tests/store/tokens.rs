//! Fencing tokens (C5, R5).

use std::num::NonZeroU32;

use distlock_api::FencingToken;
use distlock_api::store::{Attempt, LeaseStore, Reply, Standing};
use distlock_mongo::mongodb::bson::doc;

use super::Checks;
use super::world::{LONG, SHORT, World, admin, claim, granted, key, opened, random_name, release, renew};

pub(super) fn add(checks: &mut Checks<'_>) {
    checks.add("C5_tokens_increase_whatever_happens", increase);
    checks.add("C5_tokens_increase_across_a_purge", across_a_purge);
    checks.add("C5_tokens_increase_when_the_record_is_ahead_of_the_clock", ahead_of_the_clock);
    checks.add("blocks_of_tokens", blocks);
}

async fn increase(world: World) {
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

/// As the TTL index would, but at once, which is harder: grants of one moment.
async fn across_a_purge(world: World) {
    let name = random_name("locks");
    let store = world.store_on(&world.client, &name);
    let key = key();
    let mut last = FencingToken::new(0);
    for round in 0..20 {
        let claim = claim(&key);
        let token = granted(&store, &claim, LONG).await.token;
        assert!(token > last, "round {round}: {token} after {last}");
        last = token;
        assert!(release(&store, &claim).await.is_released());
        // The standalone's clock has milliseconds; a purge comes an hour later, not within one.
        tokio::time::sleep(std::time::Duration::from_millis(2)).await;
        let gone = world.raw(&name).delete_one(doc! { "_id": key.as_str() }).await.unwrap();
        assert_eq!(gone.deleted_count, 1);
    }
}

async fn ahead_of_the_clock(world: World) {
    let name = random_name("locks");
    let store = world.store_on(&world.client, &name);
    let key = key();
    let far = i64::MAX / 2;
    world.raw(&name).insert_one(doc! { "_id": key.as_str(), "fencingToken": far }).await.unwrap();
    for step in 1..4 {
        let claim = claim(&key);
        assert_eq!(granted(&store, &claim, LONG).await.token.get(), u64::try_from(far + step).unwrap());
        assert!(release(&store, &claim).await.is_released());
    }
}

async fn blocks(world: World) {
    let store = world.store();
    let key = key();
    let a = claim(&key);
    let attempt = Attempt::new(a.clone(), LONG).with_tokens(NonZeroU32::new(10).unwrap());
    let Reply::Granted(first) = store.try_acquire(&attempt).await.unwrap() else { panic!("busy") };
    assert_eq!(first.tokens.get(), 10);
    assert_eq!(granted(&store, &a, LONG).await, first, "asked again");
    let last = FencingToken::new(first.token.get() + 9);
    assert_eq!(renew(&store, &a, last, LONG).await, Standing::Held { remaining: LONG });
    assert!(release(&store, &a).await.is_released());
    assert!(granted(&store, &claim(&key), LONG).await.token > last);
}
