//! Refreshes of many tickets by one update, and the state of each by one query (R15).

use std::collections::HashMap;
use std::time::Duration;

use distlock_api::{AcquisitionId, LockKey, Loss, Result};
use distlock_engine::store::{Attempt, BusyReply, QueueStanding, Standing, StoreTime};

use crate::budget::Budget;
use crate::calls::UpdateMany;
use crate::lease::{KeyTicket, KeyedTickets, Layout, TicketStates, identity_index, names, tickets_by_key};
use crate::numbers::{millis, token};
use crate::records::Records;

/// The states of the tickets of a batch.
pub(super) type Standings = HashMap<AcquisitionId, Result<Standing>>;

/// Refreshes the tickets that exist, and returns the standing of all. None is added.
pub(super) async fn refresh(records: &Records, batch: &[KeyTicket], budget: Budget) -> Result<Standings> {
    let layout = &records.layout;
    let bound = records.bound(budget).await?;
    let update = UpdateMany {
        filter: layout.refreshable(batch, bound),
        change: layout.refresh().into(),
        array_filters: vec![Layout::own_tickets(batch)],
        hint: Some(identity_index()),
    };
    records.update_many(update, budget).await?;

    let (filter, projection) =
        (layout.records(batch.iter().map(|ticket| ticket.identity.clone())), layout.ticket_states(batch));
    let reading = records.server_clock.reading();
    let found: Vec<KeyedTickets> = records.find_all(filter, projection, budget).await?;
    // If the refresh was late by an outdated reading, the next one is not.
    if let Some(KeyedTickets { states, .. }) = found.first() {
        reading.shows(millis(states.now));
    }
    let found =
        found.into_iter().filter_map(|KeyedTickets { identity, states }| Some((layout.key(&identity)?, states)));
    let found: HashMap<LockKey, TicketStates> = found.collect();
    let standings = tickets_by_key(batch).into_iter().flat_map(|(key, tickets)| {
        let states = found.get(key);
        let each = tickets.into_iter().enumerate();
        each.map(move |(at, ticket)| {
            (ticket.id.clone(), states.map_or(Ok(GONE), |states| standing(states, at, &ticket.id)))
        })
    });
    Ok(standings.collect())
}

const GONE: Standing = Standing::Gone(Loss::Gone);

fn standing(states: &TicketStates, at: usize, id: &AcquisitionId) -> Result<Standing> {
    let is_own = |other: &Option<String>| other.as_deref() == Some(id.as_str());
    if let Some(ahead) = states.positions.get(at).and_then(|position| u32::try_from(*position).ok()) {
        let windows = i64::try_from(Attempt::TURN_WINDOW.as_millis()).unwrap_or(i64::MAX).saturating_mul(ahead.into());
        let turn: Duration = millis(states.opens.saturating_add(windows));
        let anchor = (StoreTime::since_origin(millis(states.now)), token(states.token)?);
        let busy = BusyReply::new().with_holder_remaining(turn).with_anchor(anchor.0, anchor.1);
        return Ok(Standing::Waiting(busy.with_standing(QueueStanding::Queued { ahead })));
    }
    let beside_others = states.holders.iter().flatten().find(|holder| holder.id == id.as_str() && !holder.kept);
    Ok(if is_own(&states.holder) {
        Standing::Held { remaining: millis(states.remaining) }
    } else if let Some(own) = beside_others {
        Standing::Held { remaining: millis(own.remaining) }
    } else if names(states.revoked.as_deref(), id.as_str()) {
        Standing::Gone(Loss::ForceReleased)
    } else {
        GONE
    })
}
