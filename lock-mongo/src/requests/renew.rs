//! Renewing many leases by one update (R14), and tickets along with them.

use std::cmp::Ordering;
use std::collections::{HashMap, HashSet};

use distlock_api::{ErrorKind, LockError, LockKey, Loss, Result};
use distlock_engine::store::{Renewal, RenewalSubject, Standing};

use super::tickets::{Standings, refresh};
use crate::budget::Budget;
use crate::calls::UpdateMany;
use crate::lease::{Extension, Keyed, Layout, Seat, State, identity_index};
use crate::records::Records;
use crate::topology::Deployment;

/// Renews one lease, or refreshes one ticket.
pub(crate) async fn renew(records: &Records, renewal: &Renewal) -> Result<Standing> {
    let mut answers = renew_many(records, std::slice::from_ref(renewal)).await;
    answers.pop().unwrap_or_else(|| Err(LockError::new(ErrorKind::Other, "a renewal without an answer")))
}

/// Answers each renewal. Leases: one update extends what may be extended, and only if that is not all,
/// one query tells which are missing. Tickets: one update refreshes those that are there, and one query
/// tells what became of each.
pub(crate) async fn renew_many(records: &Records, renewals: &[Renewal]) -> Vec<Result<Standing>> {
    let subjects: Vec<Result<Subject>> = renewals.iter().map(|renewal| Subject::of(renewal, &records.layout)).collect();
    let mut leases: Vec<Extension> = Vec::new();
    let mut seats: Vec<Seat> = Vec::new();
    let mut known = HashSet::new();
    for subject in subjects.iter().flatten() {
        match subject {
            Subject::Lease(lease) => match leases.iter_mut().find(|known| known.is_of(lease)) {
                Some(known) => known.ttl = known.ttl.max(lease.ttl),
                None => leases.push(lease.clone()),
            },
            Subject::Ticket(seat) => {
                if known.insert((&seat.key, &seat.id)) {
                    seats.push(seat.clone());
                }
            }
        }
    }
    let budget = Budget::new(renewals.iter().map(|renewal| renewal.timeout).min().unwrap_or_default());
    let extended =
        async { if leases.is_empty() { Ok(Verdicts::AllHeld) } else { extend(records, &leases, budget).await } };
    let refreshed =
        async { if seats.is_empty() { Ok(Standings::default()) } else { refresh(records, &seats, budget).await } };
    let (verdicts, standings) = futures_util::future::join(extended, refreshed).await;
    let answers = subjects.iter().zip(renewals).map(|(subject, renewal)| {
        let answer = match subject {
            Err(error) => Err(error.clone()),
            Ok(Subject::Lease(lease)) => verdicts.as_ref().map_err(LockError::clone).and_then(|all| all.about(lease)),
            Ok(Subject::Ticket(seat)) => standings.as_ref().map_err(LockError::clone).and_then(|all| {
                all.get(&seat.id).cloned().unwrap_or_else(|| Err(LockError::new(ErrorKind::Other, "no answer")))
            }),
        };
        answer.map_err(|error| error.with_key(renewal.claim.key().clone()))
    });
    answers.collect()
}

/// What is to be renewed.
enum Subject {
    Lease(Extension),
    Ticket(Seat),
}

impl Subject {
    fn of(renewal: &Renewal, layout: &Layout) -> Result<Self> {
        let (key, id) = (renewal.claim.key().clone(), renewal.claim.id().clone());
        let identity = layout.identity(&key)?;
        match renewal.subject {
            RenewalSubject::Lease { token, ttl } => {
                // A token that no grant can have had names no lease.
                let token = i64::try_from(token.get()).unwrap_or(-1);
                Ok(Self::Lease(Extension { key, identity, id, token, ttl }))
            }
            RenewalSubject::Ticket(_) => Ok(Self::Ticket(Seat { key, identity, id })),
            _ => Err(LockError::new(ErrorKind::Unsupported, "this store keeps leases and tickets")),
        }
    }
}

async fn extend(records: &Records, batch: &[Extension], budget: Budget) -> Result<Verdicts> {
    let layout = &records.layout;
    let update = UpdateMany {
        filter: layout.renewable(batch),
        change: layout.renew(batch).into(),
        array_filters: Vec::new(),
        hint: Some(identity_index()),
    };
    let extended = records.update_many(update, budget).await?;
    // On a sharded cluster a record that was moved is counted twice if its old copy is still there,
    // which could hide a lost lease.
    let counts = records.topology.known() != Some(Deployment::Sharded);
    if counts && extended == batch.len() as u64 {
        return Ok(Verdicts::AllHeld);
    }
    // One query for all the records of the batch: it compares by the same rules, and tells in addition
    // whose lease was taken away by force.
    let (filter, projection) = (layout.records(batch.iter().map(|lease| lease.identity.clone())), layout.keyed_state());
    let found: Vec<Keyed> = records.find_all(filter, projection, budget).await?;
    let states = found.into_iter().filter_map(|Keyed { identity, state }| Some((layout.key(&identity)?, state)));
    let states: HashMap<LockKey, State> = states.collect();
    let survivors = batch.iter().filter(|lease| survives(lease, &states)).count() as u64;
    let surplus = if counts { survivors.cmp(&extended) } else { Ordering::Equal };
    Ok(Verdicts::Some { states, surplus })
}

fn survives(lease: &Extension, states: &HashMap<LockKey, State>) -> bool {
    states
        .get(&lease.key)
        .is_some_and(|state| state.holder.as_deref() == Some(lease.id.as_str()) && state.token == Some(lease.token))
}

enum Verdicts {
    AllHeld,
    Some {
        states: HashMap<LockKey, State>,
        /// How the number of leases that the query found held compares to the number that the update extended.
        surplus: Ordering,
    },
}

impl Verdicts {
    fn about(&self, lease: &Extension) -> Result<Standing> {
        use Ordering::{Greater, Less};

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
