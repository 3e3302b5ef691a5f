//! Batches of leases that others can hold beside (R23–R25).

use super::*;
use crate::batch::{attempt, comparable, take};
use distlock_engine::store::BatchStore;

pub(super) fn add(checks: &mut Checks<'_>) {
    check!(checks, R24 a_batch_grants_in_each_mode);
    check!(checks, a_batch_leaves_the_record_of_a_single_holder);
    check!(checks, C27 a_batch_grants_a_key_once);
    check!(checks, R23 a_batch_releases_those_that_are_alone);
    check!(checks, C10 many_releases_by_batches_are_remembered);
}

fn modes() -> [Mode; 3] {
    [Mode::Shared, permits(1, 2), Mode::Exclusive]
}

fn grants(replies: &[Reply]) -> Vec<Grant> {
    let grants = replies.iter().map(|reply| match reply {
        Reply::Granted(grant) => grant.clone(),
        other => panic!("{other:?}"),
    });
    grants.collect()
}

fn releases(claims: &[Claim]) -> Vec<Release> {
    claims.iter().map(|claim| Release::new(claim.clone())).collect()
}

async fn a_batch_grants_in_each_mode(world: World) {
    let (store, name, sent) = watched_store(&world).await;
    let elsewhere = world.store_on(&world.client, &name);
    let keys = [(); 6].map(|()| key());
    let mut last = 0;
    for round in 0..2 {
        let claims: Vec<Claim> =
            keys.iter().zip(modes().iter().cycle()).map(|(key, mode)| claim_in(*mode, key)).collect();
        sent.take();
        let granted = grants(&take(&store, &claims).await);
        let commands = sent.take();
        let commands: Vec<&str> = commands.iter().map(|command| command.keys().next().unwrap().as_str()).collect();
        // One statement for each mode. New records are inserted by one command each.
        assert_eq!(commands, if round == 0 { vec!["aggregate"; 3] } else { vec!["update"] });
        for (claim, grant) in claims.iter().zip(&granted) {
            assert!(grant.token.get() > last, "C5");
            assert!(grant.remaining <= LONG && grant.remaining > LONG / 2, "{grant:?}");
            let renewal = Renewal::lease(claim.clone(), grant.token, LONG);
            let standing = store.renew(&renewal).await.unwrap();
            assert!(matches!(standing, distlock_engine::store::Standing::Held { .. }), "{standing:?}");
            for mode in modes() {
                let other = claim_in(mode, claim.key());
                let reply = elsewhere.try_acquire(&Attempt::new(other.clone(), LONG)).await.unwrap();
                let fits = mode == claim.mode() && !mode.is_exclusive();
                assert_eq!(matches!(reply, Reply::Granted(_)), fits, "{mode:?} beside {:?}: {reply:?}", claim.mode());
                if fits {
                    assert_eq!(release(&elsewhere, &other).await, Released);
                }
            }
            assert_eq!(release(&store, claim).await, Released);
        }
        last = granted.iter().map(|grant| grant.token.get()).max().unwrap();
    }
}

/// A record, without what differs between two of them for other reasons.
async fn comparable_record(world: &World, name: &str, key: &LockKey) -> Document {
    let mut record = comparable(record(world, name, key).await);
    if let Ok(holders) = record.get_array_mut("holders") {
        for holder in holders.iter_mut().filter_map(Bson::as_document_mut) {
            for field in ["id", "token", "acquiredAt", "expiresAt"] {
                let value = holder.get_mut(field).expect("each holder has it");
                *value = Bson::String(format!("{:?}", value.element_type()));
            }
        }
    }
    if let Ok(grants) = record.get_str("grants") {
        let words: Vec<&str> = grants.split(' ').collect();
        let [id, _, tokens, _, mode] = *words else { panic!("{grants}") };
        let text = format!("{} {tokens} {mode}", &id[..1]);
        record.insert("grants", text);
    }
    record
}

async fn a_batch_leaves_the_record_of_a_single_holder(world: World) {
    let (store, name, _) = watched_store(&world).await;
    for mode in modes() {
        let with_remarks = |claim: &Claim| {
            let holder = distlock_api::Holder::new().with_owner("me").with_metadata("why", "$test");
            attempt(claim).with_holder(holder).with_tokens(16.try_into().unwrap())
        };
        let [single, one, two] = [(); 3].map(|()| claim_in(mode, &key()));
        for ended in [false, true] {
            if ended {
                assert_eq!(release(&store, &single).await, Released);
                let outcomes = store.release_many(&releases(&[one.clone(), two.clone()])).await;
                assert!(outcomes.into_iter().all(|outcome| outcome.unwrap() == Released), "{mode:?}");
            } else {
                store.try_acquire(&with_remarks(&single)).await.unwrap();
                let replies = store.try_acquire_many(&[with_remarks(&one), with_remarks(&two)]).await;
                grants(&replies.into_iter().map(Result::unwrap).collect::<Vec<_>>());
            }
            let expected = comparable_record(&world, &name, single.key()).await;
            for claim in [&one, &two] {
                assert_eq!(comparable_record(&world, &name, claim.key()).await, expected, "released: {ended}");
            }
        }
    }
}

/// Several claims of a process may want permits of one key at the same moment.
async fn a_batch_grants_a_key_once(world: World) {
    let (store, _, sent) = watched_store(&world).await;
    let keys = [key(), key()];
    for is_new in [true, false] {
        let claims = [0, 1, 0].map(|at: usize| claim_in(permits(1, 1), &keys[at]));
        sent.take();
        let replies = take(&store, &claims).await;
        let [Reply::Granted(_), Reply::Granted(_), Reply::Busy(busy)] = &*replies else { panic!("{replies:?}") };
        assert!(busy.undecided, "it is made again, alone");
        assert_eq!(sent.take().first().expect("a command").contains_key("aggregate"), is_new);
        assert!(matches!(store.try_acquire(&attempt(&claims[2])).await, Ok(Reply::Busy(_))));
        for claim in &claims {
            let _ = release(&store, claim).await;
        }
    }
}

async fn a_batch_releases_those_that_are_alone(world: World) {
    let (store, name, sent) = watched_store(&world).await;
    let elsewhere = world.store_on(&world.client, &name);
    let claims: Vec<Claim> = (0..5).map(|_| reader(&key())).collect();
    let [alone, beside, waited_for, after_other, other_alone] = &*claims else { panic!() };
    let granted_tokens: Vec<u64> = grants(&take(&store, &claims).await).iter().map(|grant| grant.token.get()).collect();
    let others = [beside, after_other].map(|claim| reader(claim.key()));
    for other in &others {
        granted(&elsewhere, other, LONG).await;
    }
    assert_eq!(release(&elsewhere, &others[1]).await, Released);
    let writer = claim(waited_for.key());
    queued(&elsewhere, &writer).await;

    let releases = releases(&claims);
    assert!(releases.iter().all(|release| store.may_gather_release(release)));
    sent.take();
    let outcomes = store.release_many(&releases).await;
    let commands = sent.take();
    assert_eq!(commands[0].get_document("writeConcern").unwrap(), &doc! { "w": 1 });
    for (claim, outcome) in claims.iter().zip(&outcomes) {
        if [alone, other_alone].iter().any(|alone| alone.id() == claim.id()) {
            assert_eq!(outcome.as_ref().unwrap(), &Released);
        } else {
            assert!(outcome.as_ref().is_err_and(distlock_api::LockError::is_retryable), "{outcome:?}");
            assert_eq!(release(&store, claim).await, Released, "alone");
        }
    }
    assert_eq!(holders(&elsewhere, beside.key()).await, [others[0].id().clone()]);
    let passed = elsewhere.try_acquire(&attempt(&writer)).await.unwrap();
    assert!(matches!(passed, Reply::Granted(_)), "it was passed to the writer: {passed:?}");
    // C5, R30: tokens continue behind those of all holders.
    for (at, claim) in claims.iter().enumerate().filter(|(_, claim)| claim.id() != waited_for.id()) {
        let token = granted(&elsewhere, &reader(claim.key()), LONG).await.token.get();
        assert!(token > granted_tokens[at], "{at}");
    }
    let repeated = store.release_many(&releases).await;
    for (claim, outcome) in claims.iter().zip(repeated) {
        assert_eq!(outcome.unwrap(), Released, "repeated, of {:?}", claim.key());
    }
}

async fn many_releases_by_batches_are_remembered(world: World) {
    let (store, _, _) = watched_store(&world).await;
    let keys = [key(), key()];
    let mut first = None;
    for _ in 0..20 {
        let claims: Vec<Claim> = keys.iter().map(reader).collect();
        grants(&take(&store, &claims).await);
        let outcomes = store.release_many(&releases(&claims)).await;
        assert!(outcomes.into_iter().all(|outcome| outcome.unwrap() == Released));
        first.get_or_insert(claims);
    }
    for claim in first.expect("there were some") {
        assert_eq!(release(&store, &claim).await, Released, "repeated");
    }
}
