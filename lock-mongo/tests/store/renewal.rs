//! Renewals of one lease and of many.

use std::time::Duration;

use distlock_api::{FencingToken, Loss};
use distlock_engine::store::{BatchRenewStore, Grant, Renewal, Standing};

use super::Checks;
use super::world::{LONG, SHORT, World, admin, busy, claim, granted, key, opened, release, renew};

const GONE: Standing = Standing::Gone(Loss::Gone);

pub(super) fn add(checks: &mut Checks<'_>) {
    check!(checks, renewal_extends_and_never_shortens);
    check!(checks, C12 renewal_never_revives);
    check!(checks, C12 renewal_needs_id_and_token);
    check!(checks, C14 mixed_batch);
    check!(checks, full_batch);
}

async fn renewal_extends_and_never_shortens(world: World) {
    let store = world.store();
    let a = claim(&key());
    let grant = granted(&store, &a, Duration::from_secs(5)).await;
    assert_eq!(renew(&store, &a, grant.token, LONG).await, Standing::Held { remaining: LONG });
    let now = admin(&store).inspect(a.key()).await.unwrap().unwrap().remaining;
    assert!(now > LONG / 2 && now <= LONG, "{now:?}");
    renew(&store, &a, grant.token, Duration::from_secs(1)).await;
    assert!(admin(&store).inspect(a.key()).await.unwrap().unwrap().remaining > LONG / 2, "shortened");
}

async fn renewal_never_revives(world: World) {
    let store = world.store();
    let key = key();
    let (a, b) = (claim(&key), claim(&key));
    let expired = granted(&store, &a, SHORT).await;
    opened(&store, &key).await;
    assert_eq!(renew(&store, &a, expired.token, LONG).await, GONE, "expired, without a new holder");
    let grant = granted(&store, &b, LONG).await;
    assert_eq!(renew(&store, &a, expired.token, LONG).await, GONE, "taken over");
    assert_eq!(release(&store, &b).await, distlock_api::ReleaseOutcome::Released);
    assert_eq!(renew(&store, &b, grant.token, LONG).await, GONE, "released");
    assert!(admin(&store).inspect(&key).await.unwrap().is_none());
}

async fn renewal_needs_id_and_token(world: World) {
    let store = world.store();
    let key = key();
    let (a, b) = (claim(&key), claim(&key));
    let grant = granted(&store, &a, LONG).await;
    assert_eq!(renew(&store, &b, grant.token, LONG).await, GONE);
    for wrong in [grant.token.get() - 1, grant.token.get() + 1, 0, u64::MAX] {
        assert_eq!(renew(&store, &a, FencingToken::new(wrong), LONG).await, GONE);
    }
    assert_eq!(renew(&store, &a, grant.token, LONG).await, Standing::Held { remaining: LONG });
}

async fn mixed_batch(world: World) {
    let store = world.store();
    let claims: Vec<_> = (0..6).map(|_| claim(&key())).collect();
    let mut grants: Vec<Grant> = Vec::new();
    for (at, claim) in claims.iter().enumerate() {
        grants.push(granted(&store, claim, if at == 1 { SHORT } else { Duration::from_secs(20) }).await);
    }
    opened(&store, claims[1].key()).await;
    assert_eq!(release(&store, &claims[2]).await, distlock_api::ReleaseOutcome::Released);
    let thief = claim(claims[2].key());
    let stolen = granted(&store, &thief, LONG).await;
    admin(&store).force_release(claims[3].key(), "test").await.unwrap().unwrap();
    let unknown = claim(&key());

    let (long, longer) = (LONG, LONG * 2);
    let batch = vec![
        Renewal::lease(claims[0].clone(), grants[0].token, long),
        Renewal::lease(claims[1].clone(), grants[1].token, long),
        Renewal::lease(claims[2].clone(), grants[2].token, long),
        Renewal::lease(claims[3].clone(), grants[3].token, long),
        Renewal::lease(unknown, FencingToken::new(1), long),
        Renewal::lease(claims[4].clone(), grants[4].token, longer),
        Renewal::lease(claims[0].clone(), grants[0].token, long),
        Renewal::lease(thief.clone(), stolen.token, longer),
        Renewal::lease(claims[5].clone(), FencingToken::new(7), long),
    ];
    let answers: Vec<_> = store.renew_many(&batch).await.into_iter().map(Result::unwrap).collect();
    let held = |remaining| Standing::Held { remaining };
    let forced = Standing::Gone(Loss::ForceReleased);
    assert_eq!(answers, [held(long), GONE, GONE, forced, GONE, held(longer), held(long), held(longer), GONE]);

    let left = |claim: &distlock_engine::store::Claim| {
        let (store, key) = (&store, claim.key().clone());
        async move { admin(store).inspect(&key).await.unwrap().map(|info| info.remaining) }
    };
    assert!(left(&claims[0]).await.unwrap() > long / 2);
    assert!(left(&claims[4]).await.unwrap() > long, "each has its own ttl");
    assert!(left(&thief).await.unwrap() > long, "each has its own ttl");
    assert!(left(&claims[5]).await.unwrap() <= Duration::from_secs(20), "renewed by a wrong token");
    busy(&store, &claim(claims[0].key())).await;
}

async fn full_batch(world: World) {
    let store = world.store();
    let size = store.renew_batch().get();
    let mut batch = Vec::new();
    for _ in 0..size {
        let claim = claim(&key());
        let token = granted(&store, &claim, LONG).await.token;
        batch.push(Renewal::lease(claim, token, LONG));
    }
    let answers = store.renew_many(&batch).await;
    assert_eq!(answers.len(), size);
    assert!(answers.into_iter().all(|answer| answer.unwrap() == Standing::Held { remaining: LONG }));
    assert!(store.renew_many(&[]).await.is_empty());
}
