//! Renewals of one of several holders (R29), and their number of commands.

use distlock_api::ReleaseOutcome::Released;
use distlock_api::{FencingToken, Loss, Mode};
use distlock_engine::store::{BatchRenewStore, LeaseStore, QueueStanding, QueueStore, Renewal, Standing};

use super::{claim_in, holders, permits, reader, watched_store};
use crate::Checks;
use crate::world::{
    LONG, SHORT, World, admin, age_ticket, claim, granted, key, opened, queued, release, renew, ticket,
};

pub(super) fn add(checks: &mut Checks<'_>) {
    check!(checks, R29 a_renewal_names_id_and_last_token);
    check!(checks, C12 an_expired_holder_is_not_revived);
    check!(checks, C14 holders_go_in_the_same_batch);
    check!(checks, R29 several_leases_of_one_key_are_told_apart);
    check!(checks, R15 a_refreshed_ticket_shows_its_grant);
}

const GONE: Standing = Standing::Gone(Loss::Gone);
const HELD: Standing = Standing::Held { remaining: LONG };

async fn a_renewal_names_id_and_last_token(world: World) {
    let store = world.store();
    let key = key();
    let (a, b) = (reader(&key), reader(&key));
    let first = granted(&store, &a, LONG).await.token;
    let second = granted(&store, &b, LONG / 2).await.token;
    assert_eq!(renew(&store, &a, second, LONG).await, GONE, "that of another holder");
    for wrong in [0, first.get() - 1, first.get() + 1, u64::MAX] {
        assert_eq!(renew(&store, &a, FencingToken::new(wrong), LONG).await, GONE, "{wrong}");
    }
    assert_eq!(renew(&store, &reader(&key), first, LONG).await, GONE);
    assert_eq!(renew(&store, &claim(&key), first, LONG).await, GONE);
    assert_eq!(renew(&store, &a, first, LONG).await, HELD);
    let of = async |at: usize| admin(&store).inspect(&key).await.unwrap().unwrap().holders[at].remaining;
    assert!(of(0).await > LONG / 2 && of(1).await <= LONG / 2, "the other one is not extended");
    assert_eq!(renew(&store, &a, first, SHORT).await, Standing::Held { remaining: SHORT });
    assert!(of(0).await > LONG / 2, "shortened");
}

async fn an_expired_holder_is_not_revived(world: World) {
    let store = world.store();
    let key = key();
    let (dead, alive) = (reader(&key), reader(&key));
    let lost = granted(&store, &dead, SHORT).await.token;
    let kept = granted(&store, &alive, LONG).await.token;
    super::expired(&store, &key, dead.id()).await;
    assert_eq!(renew(&store, &dead, lost, LONG).await, GONE);
    assert_eq!(renew(&store, &alive, kept, LONG).await, HELD);
    assert_eq!(release(&store, &alive).await, Released);
    assert_eq!(renew(&store, &alive, kept, LONG).await, GONE, "released");
    // The last one expires.
    let brief = granted(&store, &dead, SHORT).await.token;
    opened(&store, &key).await;
    assert_eq!(renew(&store, &dead, brief, LONG).await, GONE);
    assert!(admin(&store).inspect(&key).await.unwrap().is_none());
}

async fn holders_go_in_the_same_batch(world: World) {
    let (store, _, sent) = watched_store(&world).await;
    let mut batch = Vec::new();
    for at in 0..60 {
        let mode = [Mode::Exclusive, Mode::Shared, permits(1, 3)][at % 3];
        let claim = claim_in(mode, &key());
        let token = granted(&store, &claim, LONG / 2).await.token;
        batch.push(Renewal::lease(claim, token, LONG));
    }
    sent.take();
    let answers = store.renew_many(&batch).await;
    assert!(answers.into_iter().all(|answer| answer.unwrap() == HELD));
    let commands = sent.take();
    let [command] = &*commands else { panic!("{} commands", commands.len()) };
    assert_eq!(command.get_array("updates").unwrap().len(), 2, "two statements of one command");
    for renewal in &batch {
        let info = admin(&store).inspect(renewal.claim.key()).await.unwrap().unwrap();
        assert!(info.remaining > LONG / 2);
    }
    // Of each kind one is lost.
    for lost in &batch[..3] {
        admin(&store).force_release(lost.claim.key(), "test").await.unwrap().unwrap();
    }
    sent.take();
    let answers = store.renew_many(&batch).await;
    for (at, answer) in answers.into_iter().enumerate() {
        let expected = if at < 3 { Standing::Gone(Loss::ForceReleased) } else { HELD };
        assert_eq!(answer.unwrap(), expected, "{at}");
    }
    assert_eq!(sent.take().len(), 2, "and a query for those that are lost");
}

/// An update that extends the record for one of them says nothing about the others.
async fn several_leases_of_one_key_are_told_apart(world: World) {
    let (store, _, sent) = watched_store(&world).await;
    let key = key();
    let claims = [(); 4].map(|()| claim_in(permits(1, 9), &key));
    let mut batch = Vec::new();
    for (at, claim) in claims.iter().enumerate() {
        let token = granted(&store, claim, LONG / 2).await.token;
        batch.push(Renewal::lease(claim.clone(), token, LONG * (1 + u32::try_from(at).unwrap())));
    }
    sent.take();
    let held = |at: usize| Standing::Held { remaining: LONG * (1 + u32::try_from(at).unwrap()) };
    for (at, answer) in store.renew_many(&batch).await.into_iter().enumerate() {
        assert_eq!(answer.unwrap(), held(at));
    }
    assert_eq!(sent.take().len(), 2, "the number of records does not tell");
    let info = admin(&store).inspect(&key).await.unwrap().unwrap();
    for (at, holder) in info.holders.iter().enumerate() {
        assert!(holder.remaining > batch_ttl(at) - LONG / 2, "each has its own ttl: {holder:?}");
    }
    admin(&store).force_release_holder(&key, claims[1].id(), "test").await.unwrap().unwrap();
    assert_eq!(release(&store, &claims[2]).await, Released);
    let answers: Vec<_> = store.renew_many(&batch).await.into_iter().map(Result::unwrap).collect();
    assert_eq!(answers, [held(0), Standing::Gone(Loss::ForceReleased), GONE, held(3)]);
}

fn batch_ttl(at: usize) -> std::time::Duration {
    LONG * (1 + u32::try_from(at).unwrap())
}

async fn a_refreshed_ticket_shows_its_grant(world: World) {
    let (store, name) = world.named_store();
    let key = key();
    let (writer, a, b) = (claim(&key), reader(&key), reader(&key));
    granted(&store, &writer, LONG).await;
    let refresh = async |claim: &distlock_engine::store::Claim| {
        store.renew(&Renewal::ticket(claim.clone(), ticket())).await.unwrap()
    };
    for (at, waiter) in [&a, &b].into_iter().enumerate() {
        queued(&store, waiter).await;
        let Standing::Waiting(busy) = refresh(waiter).await else { panic!("not waiting") };
        assert_eq!(busy.standing, QueueStanding::Queued { ahead: u32::try_from(at).unwrap() });
    }
    assert_eq!(release(&store, &writer).await, Released);
    assert_eq!(holders(&store, &key).await.len(), 2);
    for waiter in [&a, &b] {
        let Standing::Held { remaining } = refresh(waiter).await else { panic!("not granted") };
        assert!(remaining > LONG / 2);
    }
    // A dead ticket ahead leaves one behind that fits: it looks at once.
    let (dying, late) = (claim(&key), reader(&key));
    queued(&store, &dying).await;
    queued(&store, &late).await;
    assert_eq!(store.waiters(&late, LONG).await.unwrap(), 2);
    // The ttl of its ticket.
    age_ticket(&world, &name, &dying, LONG).await;
    assert_eq!(store.waiters(&late, LONG).await.unwrap(), 1);
    let Standing::Waiting(busy) = refresh(&late).await else { panic!("not waiting") };
    assert_eq!(busy.holder_remaining, Some(std::time::Duration::ZERO));
    admin(&store).force_release(&key, "test").await.unwrap().unwrap();
    for waiter in [&a, &b] {
        assert_eq!(refresh(waiter).await, Standing::Gone(Loss::ForceReleased));
    }
}
