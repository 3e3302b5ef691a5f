//! What is reported of several holders: to their providers, and to operators.

use std::num::NonZeroU32;
use std::time::Duration;

use distlock_api::ReleaseOutcome::Released;
use distlock_api::{LockAdmin, LockEvent, LockEvents, LockKey, Loss, Mode};
use distlock_engine::store::{Claim, EventStream, Grant, LeaseStore, ProviderId, Release, Reply, StoreEvent};
use distlock_mongo::MongoStore;
use futures_util::TryStreamExt;

use super::{claim_in, permits, reader};
use crate::Checks;
use crate::hints::{REMARKS, attempt, listen, next};
use crate::world::{LONG, SHORT, World, admin, claim, granted, key, queue_up, queued, release, ticket, twin};

pub(super) fn add(checks: &mut Checks<'_>) {
    if checks.is_replica_set() {
        check!(checks, R28 grants_of_a_run_are_reported);
        check!(checks, R18 a_reported_grant_counts_from_an_earlier_answer);
        check!(checks, losses_of_holders_are_reported);
        check!(checks, a_minimum_hold_beside_holders_is_reported);
        check!(checks, operators_watch_every_holder);
        check!(checks, operators_watch_an_expiry);
    }
}

fn own(key: &LockKey, provider: ProviderId, mode: Mode) -> Claim {
    Claim::new(key.clone(), provider.acquisition_id()).with_mode(mode)
}

async fn take(store: &MongoStore, claim: &Claim, remarks: usize) -> Grant {
    match store.try_acquire(&attempt(claim, remarks)).await.unwrap() {
        Reply::Granted(grant) => grant,
        other => panic!("not granted: {other:?}"),
    }
}

async fn grants_of_a_run_are_reported(world: World) {
    for remarks in REMARKS {
        let ([store, releaser], _) = world.two_stores().await;
        let (me, key) = (ProviderId::random(), key());
        let mut events = listen(&store, me).await;
        let mut holder = claim(&key);
        take(&releaser, &holder, remarks).await;
        for round in 0..4 {
            let mode = if round % 2 == 0 { Mode::Shared } else { permits(1, 9) };
            let mine = [(); 3].map(|()| own(&key, me, mode));
            let mut anchors = Vec::new();
            for (at, waiter) in mine.iter().enumerate() {
                if at == 1 {
                    queue_up(&releaser, &attempt(&claim_in(mode, &key), remarks).with_ticket(ticket())).await;
                }
                let tokens = NonZeroU32::new(1 + 3 * u32::try_from(at).unwrap()).unwrap();
                let attempt = attempt(waiter, remarks).with_ticket(ticket()).with_tokens(tokens);
                anchors.push(queue_up(&store, &attempt).await);
            }
            assert_eq!(release(&releaser, &twin(&holder)).await, Released);
            let mut last = 0;
            for (waiter, anchor) in mine.iter().zip(anchors) {
                let StoreEvent::Granted { key: reported, id, grant, expires_at } = next(&mut events).await else {
                    panic!("no grant in round {round}, {remarks} remarks")
                };
                assert_eq!((&reported, &id), (&key, waiter.id()));
                assert!(grant.token > anchor.token.unwrap() && grant.token.get() > last);
                last = grant.token.get();
                let span = expires_at.saturating_since(anchor.now.unwrap());
                assert!(span >= LONG && span < LONG + Duration::from_secs(20), "{span:?}");
                let repeated = granted(&store, waiter, Duration::from_secs(1)).await;
                assert_eq!((repeated.token, repeated.tokens), (grant.token, grant.tokens));
            }
            // The next round begins with an exclusive holder, who was granted the key by a release.
            holder = own(&key, me, Mode::Exclusive);
            queue_up(&store, &attempt(&holder, remarks).with_ticket(ticket())).await;
            let all = admin(&store).inspect(&key).await.unwrap().unwrap().holders;
            assert_eq!(all.len(), 4);
            for holder in all {
                let claim = Claim::new(key.clone(), holder.id).with_mode(holder.mode);
                assert_eq!(release(&releaser, &claim).await, Released);
            }
            let StoreEvent::Granted { id, .. } = next(&mut events).await else { panic!("no exclusive grant") };
            assert_eq!(&id, holder.id());
        }
    }
}

/// Tokens that were given back, and holders that left, do not make a grant look older than the
/// answer before it.
async fn a_reported_grant_counts_from_an_earlier_answer(world: World) {
    let store = world.store();
    let (me, key) = (ProviderId::random(), key());
    let mut events = listen(&store, me).await;
    let held = [(); 3].map(|()| claim_in(permits(1, 3), &key));
    for claim in &held {
        granted(&store, claim, LONG).await;
    }
    let waiting = [(); 3].map(|()| own(&key, me, permits(1, 3)));
    let mut anchors = Vec::new();
    for waiter in &waiting {
        anchors.push(queued(&store, waiter).await);
    }
    for (at, leaves) in [2, 0, 1].into_iter().enumerate() {
        assert_eq!(release(&store, &held[leaves]).await, Released);
        let StoreEvent::Granted { id, grant, .. } = next(&mut events).await else { panic!("no grant") };
        assert_eq!(&id, waiting[at].id());
        assert!(grant.token > anchors[at].token.unwrap());
        if at + 1 < waiting.len() {
            anchors[at + 1] = queued(&store, &waiting[at + 1]).await;
        }
    }
}

async fn losses_of_holders_are_reported(world: World) {
    for remarks in REMARKS {
        let store = world.store();
        let (me, key) = (ProviderId::random(), key());
        let mut events = listen(&store, me).await;
        let (a, b, foreign) = (own(&key, me, Mode::Shared), own(&key, me, Mode::Shared), reader(&key));
        for claim in [&a, &foreign, &b] {
            take(&store, claim, remarks).await;
        }
        let freed = StoreEvent::Freed { key: key.clone() };
        let lost = async |events: &mut EventStream, claim: &Claim| {
            let StoreEvent::Gone { id, loss, token, .. } = next(events).await else { panic!("not lost") };
            assert_eq!((&id, loss), (claim.id(), Loss::ForceReleased));
            token
        };
        admin(&store).force_release_holder(&key, a.id(), "test").await.unwrap().unwrap();
        let token = lost(&mut events, &a).await;
        assert_eq!(token, admin(&store).inspect(&key).await.unwrap().unwrap().token);
        assert_eq!(next(&mut events).await, freed);
        // Of another provider: only that something has changed.
        admin(&store).force_release_holder(&key, foreign.id(), "test").await.unwrap().unwrap();
        assert_eq!(next(&mut events).await, freed);
        let c = own(&key, me, Mode::Shared);
        take(&store, &c, remarks).await;
        admin(&store).force_release(&key, "test").await.unwrap().unwrap();
        lost(&mut events, &b).await;
        lost(&mut events, &c).await;
        assert_eq!(next(&mut events).await, freed);
        // An expired one that another grant has dropped.
        let mut brief = attempt(&own(&key, me, Mode::Shared), remarks);
        brief.ttl = SHORT;
        store.try_acquire(&brief).await.unwrap();
        super::expired(&store, &key, brief.claim.id()).await;
        take(&store, &reader(&key), remarks).await;
        let StoreEvent::Gone { id, loss, .. } = next(&mut events).await else { panic!("not lost") };
        assert_eq!((&id, loss), (brief.claim.id(), Loss::Gone));
    }
}

async fn a_minimum_hold_beside_holders_is_reported(world: World) {
    for remarks in REMARKS {
        let store = world.store();
        let (me, key) = (ProviderId::random(), key());
        let mut events = listen(&store, me).await;
        let (quick, other) = (reader(&key), reader(&key));
        take(&store, &other, remarks).await;
        take(&store, &quick, remarks).await;
        let quickly = Release::new(quick).with_hold_at_least(LONG / 2);
        assert_eq!(store.release(&quickly).await.unwrap(), Released);
        assert_eq!(next(&mut events).await, StoreEvent::Freed { key: key.clone() }, "it ends earlier than known");
        // A plain one is not reported.
        assert_eq!(release(&store, &other).await, Released);
        let marker = self::key();
        take(&store, &own(&marker, me, Mode::Exclusive), remarks).await;
        admin(&store).force_release(&marker, "test").await.unwrap().unwrap();
        let StoreEvent::Gone { key: reported, .. } = next(&mut events).await else { panic!("another event") };
        assert_eq!(reported, marker);
    }
}

async fn watched(events: &mut LockEvents) -> LockEvent {
    let event = tokio::time::timeout(Duration::from_secs(20), events.try_next()).await.expect("an event");
    event.unwrap().expect("the stream goes on")
}

async fn operators_watch_every_holder(world: World) {
    for remarks in REMARKS {
        let store = world.store();
        let mut events = LockAdmin::watch(&store).await.unwrap();
        let key = key();
        let granted_event = |claim: &Claim, grant: &Grant, mode| LockEvent::Granted {
            key: key.clone(),
            id: claim.id().clone(),
            token: distlock_api::FencingToken::new(grant.token.get() + u64::from(grant.tokens.get()) - 1),
            owner: Some("$me".into()),
            mode,
        };
        let released = |claim: &Claim| LockEvent::Released { key: key.clone(), id: claim.id().clone() };
        for round in 0..3 {
            let why = format!("round {round}, {remarks} remarks");
            let (a, b) = (reader(&key), reader(&key));
            for claim in [&a, &b] {
                let grant = take(&store, claim, remarks).await;
                take(&store, claim, remarks).await;
                assert_eq!(watched(&mut events).await, granted_event(claim, &grant, Mode::Shared), "{why}");
            }
            let (writer, c) = (claim(&key), claim_in(permits(1, 2), &key));
            let d = claim_in(permits(1, 2), &key);
            for waiter in [&writer, &c, &d] {
                queue_up(&store, &attempt(waiter, remarks).with_ticket(ticket())).await;
            }
            assert_eq!(release(&store, &a).await, Released);
            assert_eq!(watched(&mut events).await, released(&a), "{why}");
            assert_eq!(release(&store, &b).await, Released);
            let grant = take(&store, &writer, remarks).await;
            assert_eq!(watched(&mut events).await, released(&b), "{why}");
            assert_eq!(watched(&mut events).await.id(), Some(writer.id()), "{why}");
            assert_eq!(release(&store, &writer).await, Released);
            assert_eq!(watched(&mut events).await, released(&writer), "{why} {grant:?}");
            for claim in [&c, &d] {
                match watched(&mut events).await {
                    LockEvent::Granted { id, mode, .. } => {
                        assert_eq!((&id, mode), (claim.id(), permits(1, 2)), "{why}");
                    }
                    other => panic!("{other:?} {why}"),
                }
            }
            admin(&store).force_release_holder(&key, c.id(), "test").await.unwrap().unwrap();
            let forced = |claim: &Claim| LockEvent::ForceReleased { key: key.clone(), id: claim.id().clone() };
            assert_eq!(watched(&mut events).await, forced(&c), "{why}");
            admin(&store).force_release(&key, "test").await.unwrap().unwrap();
            assert_eq!(watched(&mut events).await, forced(&d), "{why}");
        }
    }
}

async fn operators_watch_an_expiry(world: World) {
    let store = world.store();
    let mut events = LockAdmin::watch(&store).await.unwrap();
    let key = key();
    let (dead, alive, joins, writer) = (reader(&key), reader(&key), reader(&key), claim(&key));
    granted(&store, &alive, LONG).await;
    granted(&store, &dead, SHORT).await;
    super::expired(&store, &key, dead.id()).await;
    granted(&store, &joins, SHORT).await;
    let expired = |claim: &Claim| LockEvent::Expired { key: key.clone(), id: claim.id().clone() };
    for _ in 0..2 {
        assert_eq!(watched(&mut events).await.as_str(), "granted");
    }
    assert_eq!(watched(&mut events).await, expired(&dead));
    assert_eq!(watched(&mut events).await.as_str(), "granted");
    assert_eq!(release(&store, &alive).await, Released);
    assert_eq!(watched(&mut events).await.as_str(), "released");
    crate::world::opened(&store, &key).await;
    granted(&store, &writer, LONG).await;
    assert_eq!(watched(&mut events).await, expired(&joins));
    assert_eq!(watched(&mut events).await.id(), Some(writer.id()));
}
