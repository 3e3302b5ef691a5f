//! Renewals of many leases by one update (R14, R29), and refreshes of tickets in the same batch.

use std::cmp::Ordering;
use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};

use distlock_api::{ErrorKind, LockError, LockKey, Loss, Result};
use distlock_engine::store::{Renewal, RenewalSubject, Standing};
use mongodb::bson::Document;

use super::tickets::{Standings, refresh};
use crate::budget::Budget;
use crate::calls::UpdateMany;
use crate::lease::{Extension, KeyTicket, Keyed, Layout, State, identity_index, names};
use crate::numbers::millis;
use crate::records::Records;
use crate::topology::Deployment;

/// Renews one lease, or refreshes one ticket.
pub(crate) async fn renew(records: &Records, renewal: &Renewal) -> Result<Standing> {
    let mut answers = renew_many(records, std::slice::from_ref(renewal)).await;
    answers.pop().unwrap_or_else(|| Err(LockError::new(ErrorKind::Other, "a renewal without an answer")))
}

/// Answers each renewal.
///
/// One update extends the leases that may be extended, those of several holders of a key by a
/// statement of its own. Only if these are not all, a query finds the others. For tickets, one
/// update refreshes those that exist, and one query returns the state of each.
pub(crate) async fn renew_many(records: &Records, renewals: &[Renewal]) -> Vec<Result<Standing>> {
    let subjects: Vec<Result<RenewalTarget>> =
        renewals.iter().map(|renewal| RenewalTarget::of(renewal, &records.layout)).collect();
    let mut leases: Vec<Extension> = Vec::new();
    let mut tickets: Vec<KeyTicket> = Vec::new();
    let (mut place_of, mut known) = (HashMap::new(), HashSet::new());
    for subject in subjects.iter().flatten() {
        match subject {
            RenewalTarget::Lease(lease) => match place_of.entry(lease.subject()) {
                Entry::Occupied(place) => {
                    let known: &mut Extension = &mut leases[*place.get()];
                    known.ttl = known.ttl.max(lease.ttl);
                }
                Entry::Vacant(place) => {
                    place.insert(leases.len());
                    leases.push(lease.clone());
                }
            },
            RenewalTarget::Ticket(ticket) => {
                if known.insert((&ticket.key, &ticket.id)) {
                    tickets.push(ticket.clone());
                }
            }
        }
    }
    let budget = Budget::new(renewals.iter().map(|renewal| renewal.timeout).min().unwrap_or_default());
    let extended =
        async { if leases.is_empty() { Ok(LeaseAnswers::AllHeld) } else { extend(records, &leases, budget).await } };
    let refreshed =
        async { if tickets.is_empty() { Ok(Standings::default()) } else { refresh(records, &tickets, budget).await } };
    let (answers_of_leases, standings) = futures_util::future::join(extended, refreshed).await;
    let answers = subjects.iter().zip(renewals).map(|(subject, renewal)| {
        let answer = match subject {
            Err(error) => Err(error.clone()),
            Ok(RenewalTarget::Lease(lease)) => {
                answers_of_leases.as_ref().map_err(LockError::clone).and_then(|all| all.answer(lease))
            }
            Ok(RenewalTarget::Ticket(ticket)) => standings.as_ref().map_err(LockError::clone).and_then(|all| {
                all.get(&ticket.id).cloned().unwrap_or_else(|| Err(LockError::new(ErrorKind::Other, "no answer")))
            }),
        };
        answer.map_err(|error| error.with_key(renewal.claim.key().clone()))
    });
    answers.collect()
}

/// A lease or a ticket to renew.
enum RenewalTarget {
    Lease(Extension),
    Ticket(KeyTicket),
}

impl RenewalTarget {
    fn of(renewal: &Renewal, layout: &Layout) -> Result<Self> {
        let (key, id) = (renewal.claim.key().clone(), renewal.claim.id().clone());
        let identity = layout.identity(&key)?;
        match renewal.subject {
            RenewalSubject::Lease { token, ttl } => {
                // No grant has such a token, so it names no lease.
                let token = i64::try_from(token.get()).unwrap_or(-1);
                let is_exclusive = renewal.claim.mode().is_exclusive();
                Ok(Self::Lease(Extension { key, identity, id, token, ttl, is_exclusive }))
            }
            RenewalSubject::Ticket(_) => Ok(Self::Ticket(KeyTicket { key, identity, id })),
            _ => Err(LockError::new(ErrorKind::Unsupported, "this store keeps leases and tickets")),
        }
    }
}

/// Extends the leases of a batch. If the reading of the server's clock was outdated, the update has
/// refused itself (R31), and is sent again.
async fn extend(records: &Records, batch: &[Extension], budget: Budget) -> Result<LeaseAnswers> {
    let (answers, was_late) = extend_once(records, batch, budget).await?;
    if was_late { Ok(extend_once(records, batch, budget).await?.0) } else { Ok(answers) }
}

/// Sends one update. Returns whether it came too late, too.
async fn extend_once(records: &Records, batch: &[Extension], budget: Budget) -> Result<(LeaseAnswers, bool)> {
    let layout = &records.layout;
    let bound = records.bound(budget).await?;
    let update = |filter, change: Vec<Document>| UpdateMany {
        filter,
        change: change.into(),
        array_filters: Vec::new(),
        hint: Some(identity_index()),
    };
    let (exclusive, beside_others): (Vec<Extension>, Vec<Extension>) =
        batch.iter().cloned().partition(|lease| lease.is_exclusive);
    let mut updates = Vec::with_capacity(2);
    if !exclusive.is_empty() {
        updates.push(update(layout.renewable(&exclusive, bound), layout.renew(&exclusive)));
    }
    if !beside_others.is_empty() {
        let (filter, change) =
            (layout.renewable_beside_others(&beside_others, bound), layout.renew_beside_others(&beside_others));
        updates.push(update(filter, change));
    }
    let extended = records.update_all(updates, budget).await?;
    let extended = reliable_count(extended, records.topology.known());
    // Fewer, if a record has several leases of the batch: one that is extended says nothing about
    // the others.
    if extended == Some(batch.len() as u64) {
        return Ok((LeaseAnswers::AllHeld, false));
    }
    // One query for all records of the batch. It compares by the same rules, and also returns which
    // lease was released by force.
    let (filter, projection) = (layout.records(batch.iter().map(|lease| lease.identity.clone())), layout.keyed_state());
    let reading = records.server_clock.reading();
    let found: Vec<Keyed> = records.find_all(filter, projection, budget).await?;
    let now = found.first().map(|found| millis(found.state.now));
    if let Some(now) = now {
        reading.shows(now);
    }
    let states = found.into_iter().filter_map(|Keyed { identity, state }| Some((layout.key(&identity)?, state)));
    let states: HashMap<LockKey, State> = states.collect();
    Ok((LeaseAnswers::new(batch, states, extended), now.is_some_and(|now| now >= bound)))
}

/// Returns how many leases an update has extended, if the server's count is reliable.
///
/// On a sharded cluster a record that was moved is counted twice while its old copy exists. That
/// could hide a lost lease, so there each lease is looked up.
fn reliable_count(extended: u64, deployment: Option<Deployment>) -> Option<u64> {
    (deployment != Some(Deployment::Sharded)).then_some(extended)
}

/// Returns how many records an update extends for these leases: one for each exclusive lease, and
/// one for all leases of a key that are not.
fn units<'a>(leases: impl Iterator<Item = &'a Extension>) -> usize {
    let unit = |lease: &'a Extension| (&lease.key, lease.is_exclusive.then_some(&lease.id));
    leases.map(unit).collect::<HashSet<_>>().len()
}

fn survives(lease: &Extension, states: &HashMap<LockKey, State>) -> bool {
    let Some(state) = states.get(&lease.key) else { return false };
    let id = lease.id.as_str();
    let alone = state.holder.as_deref() == Some(id) && state.token == Some(lease.token);
    alone || state.holders.iter().flatten().any(|holder| holder.is(id, lease.token))
}

enum LeaseAnswers {
    AllHeld,
    Some {
        states: HashMap<LockKey, State>,
        /// The comparison of two numbers: the records whose leases the query found held, and those
        /// that the update extended.
        surplus: Ordering,
    },
}

impl LeaseAnswers {
    /// Makes the answers of a query's result and of the number that the update extended, if that is
    /// known.
    fn new(batch: &[Extension], states: HashMap<LockKey, State>, extended: Option<u64>) -> Self {
        let survivors = units(batch.iter().filter(|lease| survives(lease, &states))) as u64;
        let surplus = extended.map_or(Ordering::Equal, |extended| survivors.cmp(&extended));
        Self::Some { states, surplus }
    }

    fn answer(&self, lease: &Extension) -> Result<Standing> {
        use Ordering::{Greater, Less};

        let held = Ok(Standing::Held { remaining: lease.ttl });
        let Self::Some { states, surplus } = self else { return held };
        match (survives(lease, states), surplus) {
            // Some held leases were not extended, or some extended ones are no longer held. It is
            // not known which, so the renewal must be sent again.
            (true, Greater) | (false, Less) => {
                let message = "the lock records changed between the renewal and its check: the renewal is sent again";
                Err(LockError::new(ErrorKind::Unavailable, message))
            }
            (true, _) => held,
            (false, _) => {
                let revoked = states.get(&lease.key).and_then(|state| state.revoked.as_deref());
                let by_force = names(revoked, lease.id.as_str());
                Ok(Standing::Gone(if by_force { Loss::ForceReleased } else { Loss::Gone }))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use distlock_engine::store::ProviderId;
    use mongodb::bson::doc;

    use super::*;

    fn lease(key: &str) -> Extension {
        let id = ProviderId::random().acquisition_id();
        let (key, identity, ttl) = (LockKey::new(key).unwrap(), key.into(), Duration::from_secs(9));
        Extension { key, identity, id, token: 7, ttl, is_exclusive: true }
    }

    /// Returns the records of leases that are held.
    fn held(leases: &[&Extension]) -> HashMap<LockKey, State> {
        let state = |lease: &&Extension| {
            let record = doc! { "holder": lease.id.as_str(), "token": lease.token, "remaining": 9_000_i64, "waiting": 0, "now": 1_i64 };
            (lease.key.clone(), crate::bson::from_document(record).unwrap())
        };
        leases.iter().map(state).collect()
    }

    #[test]
    fn on_a_sharded_cluster_each_lease_is_looked_up() {
        for deployment in [None, Some(Deployment::ReplicaSet), Some(Deployment::Standalone)] {
            assert_eq!(reliable_count(2, deployment), Some(2), "{deployment:?}");
        }
        assert_eq!(reliable_count(2, Some(Deployment::Sharded)), None);
    }

    #[test]
    fn a_record_that_was_counted_twice_hides_no_lost_lease() {
        let (lost, kept) = (lease("lost"), lease("kept"));
        let batch = [lost.clone(), kept.clone()];
        // One of them was extended, in two copies.
        let extended = reliable_count(2, Some(Deployment::Sharded));
        assert_ne!(extended, Some(batch.len() as u64), "the query would be spared");
        let answers = LeaseAnswers::new(&batch, held(&[&kept]), extended);
        assert_eq!(answers.answer(&lost).unwrap(), Standing::Gone(Loss::Gone));
        assert_eq!(answers.answer(&kept).unwrap(), Standing::Held { remaining: kept.ttl });
    }

    #[test]
    fn a_count_that_differs_from_the_query_decides_nothing() {
        let (lost, kept) = (lease("lost"), lease("kept"));
        let batch = [lost.clone(), kept.clone()];
        let found = || held(&[&kept]);
        // It was extended, and lost before the query.
        let answers = LeaseAnswers::new(&batch, found(), Some(2));
        assert!(answers.answer(&lost).unwrap_err().is_retryable() && answers.answer(&kept).is_ok());
        // It was not extended, and is held nevertheless.
        let answers = LeaseAnswers::new(&batch, found(), Some(0));
        assert!(answers.answer(&kept).unwrap_err().is_retryable());
        assert_eq!(answers.answer(&lost).unwrap(), Standing::Gone(Loss::Gone));
    }
}
