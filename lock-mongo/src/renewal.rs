//! Renewing many leases by one update (R14).

use std::collections::HashMap;

use distlock_api::store::{Renewal, RenewalSubject, Standing};
use distlock_api::{ErrorKind, LockError, Loss, Result};
use futures_util::TryStreamExt;
use mongodb::options::Hint;

use crate::calls::Budget;
use crate::error::Effect;
use crate::lease::{Extension, Keyed, State, by_keys, identity_index};
use crate::store::MongoStore;

/// Answers each renewal: one update extends what may be extended, and only if that is not all, one query tells who is missing.
pub(crate) async fn renew_many(store: &MongoStore, renewals: &[Renewal]) -> Vec<Result<Standing>> {
    let leases: Vec<Option<Extension>> = renewals.iter().map(extension).collect();
    let mut batch: Vec<Extension> = Vec::with_capacity(leases.len());
    for lease in leases.iter().flatten() {
        match batch.iter_mut().find(|known| known.is_of(lease)) {
            Some(known) => known.ttl = known.ttl.max(lease.ttl),
            None => batch.push(lease.clone()),
        }
    }
    let limit = renewals.iter().map(|renewal| renewal.timeout).min().unwrap_or_default();
    let verdicts =
        if batch.is_empty() { Ok(Verdicts::AllHeld) } else { extend(store, &batch, Budget::new(limit)).await };
    let answers = leases.iter().zip(renewals).map(|(lease, renewal)| {
        let answer = match (lease, &verdicts) {
            (None, _) => Err(LockError::new(ErrorKind::Unsupported, "this store keeps no tickets")),
            (Some(_), Err(error)) => Err(error.clone()),
            (Some(lease), Ok(verdicts)) => verdicts.about(lease),
        };
        answer.map_err(|error| error.with_key(renewal.claim.key().clone()))
    });
    answers.collect()
}

fn extension(renewal: &Renewal) -> Option<Extension> {
    let RenewalSubject::Lease { token, ttl } = renewal.subject else { return None };
    // A token that no grant can have had names no lease.
    let token = i64::try_from(token.get()).unwrap_or(-1);
    Some(Extension { key: renewal.claim.key().as_str().to_owned(), id: renewal.claim.id().clone(), token, ttl })
}

async fn extend(store: &MongoStore, batch: &[Extension], budget: Budget) -> Result<Verdicts> {
    let MongoStore { layout, records, .. } = store;
    let (leases, filter, change) = (records.clone(), layout.renewable(batch), layout.renew(batch));
    let update = async move { leases.update_many(filter, change).hint(Hint::Keys(identity_index())).await };
    let updated = store.calls.run(budget, Effect::Write, update).await?;
    if updated.matched_count == batch.len() as u64 {
        return Ok(Verdicts::AllHeld);
    }
    // One query for all the records of the batch: it compares by the same rules, and tells in addition whose lease was taken away by force.
    let records = records.clone_with_type::<Keyed>();
    let (filter, projection) = (by_keys(batch.iter().map(|lease| lease.key.as_str())), layout.keyed_state());
    let find = async move {
        records.find(filter).projection(projection).max_time(budget.on_server()).await?.try_collect().await
    };
    let found: Vec<Keyed> = store.calls.run(budget, Effect::None, find).await?;
    let states: HashMap<String, State> = found.into_iter().map(|Keyed { key, state }| (key, state)).collect();
    let survivors = batch.iter().filter(|lease| survives(lease, &states)).count() as u64;
    Ok(Verdicts::Some { states, surplus: survivors.cmp(&updated.matched_count) })
}

fn survives(lease: &Extension, states: &HashMap<String, State>) -> bool {
    states
        .get(&lease.key)
        .is_some_and(|state| state.holder.as_deref() == Some(lease.id.as_str()) && state.token == Some(lease.token))
}

enum Verdicts {
    AllHeld,
    Some {
        states: HashMap<String, State>,
        /// How the number of leases that the query found held compares to the number that the update extended.
        surplus: std::cmp::Ordering,
    },
}

impl Verdicts {
    fn about(&self, lease: &Extension) -> Result<Standing> {
        use std::cmp::Ordering::{Greater, Less};

        let held = Ok(Standing::Held { remaining: lease.ttl });
        let Self::Some { states, surplus } = self else { return held };
        match (survives(lease, states), surplus) {
            // Some of the held were not extended, or some of the extended are not held any more: ask again rather than guess which.
            (true, Greater) | (false, Less) => {
                Err(LockError::new(ErrorKind::Unavailable, "the records changed between renewing and looking"))
            }
            (true, _) => held,
            (false, _) => {
                let revoked = states.get(&lease.key).and_then(|state| state.revoked.as_deref());
                let by_force = revoked == Some(lease.id.as_str());
                Ok(Standing::Gone(if by_force { Loss::ForceReleased } else { Loss::Gone }))
            }
        }
    }
}
