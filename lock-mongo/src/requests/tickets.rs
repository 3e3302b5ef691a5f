//! Refreshing many tickets by one update, and telling by one query what became of each (R15).

use std::collections::HashMap;
use std::time::Duration;

use distlock_api::{AcquisitionId, LockKey, Loss, Result};
use distlock_engine::store::{Attempt, BusyReply, QueueStanding, Standing, StoreTime};

use crate::budget::Budget;
use crate::calls::UpdateMany;
use crate::lease::{Layout, Queued, Seat, Seated, identity_index, seats_by_key};
use crate::numbers::{millis, token};
use crate::records::Records;

/// What became of the tickets of a batch.
pub(super) type Standings = HashMap<AcquisitionId, Result<Standing>>;

/// Refreshes the tickets that are there. Those that are not get nothing, and their standing says
/// so.
pub(super) async fn refresh(records: &Records, batch: &[Seat], budget: Budget) -> Result<Standings> {
    let layout = &records.layout;
    let update = UpdateMany {
        filter: layout.refreshable(batch),
        change: layout.refresh().into(),
        array_filters: vec![Layout::mine(batch)],
        hint: Some(identity_index()),
    };
    records.update_many(update, budget).await?;

    let (filter, projection) = (layout.records(batch.iter().map(|seat| seat.identity.clone())), layout.seated(batch));
    let found: Vec<Seated> = records.find_all(filter, projection, budget).await?;
    let found = found.into_iter().filter_map(|Seated { identity, queued }| Some((layout.key(&identity)?, queued)));
    let found: HashMap<LockKey, Queued> = found.collect();
    let standings = seats_by_key(batch).into_iter().flat_map(|(key, seats)| {
        let queued = found.get(key);
        let each = seats.into_iter().enumerate();
        each.map(move |(at, seat)| (seat.id.clone(), queued.map_or(Ok(GONE), |queued| standing(queued, at, &seat.id))))
    });
    Ok(standings.collect())
}

const GONE: Standing = Standing::Gone(Loss::Gone);

fn standing(queued: &Queued, at: usize, id: &AcquisitionId) -> Result<Standing> {
    let is_own = |other: &Option<String>| other.as_deref() == Some(id.as_str());
    if let Some(ahead) = queued.places.get(at).and_then(|place| u32::try_from(*place).ok()) {
        let windows = i64::try_from(Attempt::TURN_WINDOW.as_millis()).unwrap_or(i64::MAX).saturating_mul(ahead.into());
        let turn: Duration = millis(queued.opens.saturating_add(windows));
        let anchor = (StoreTime::since_origin(millis(queued.now)), token(queued.token)?);
        let busy = BusyReply::new().with_holder_remaining(turn).with_anchor(anchor.0, anchor.1);
        return Ok(Standing::Waiting(busy.with_standing(QueueStanding::Queued { ahead })));
    }
    Ok(if is_own(&queued.holder) {
        Standing::Held { remaining: millis(queued.remaining) }
    } else if is_own(&queued.revoked) {
        Standing::Gone(Loss::ForceReleased)
    } else {
        GONE
    })
}
