//! Decides what a keeper has to do now: which leases and tickets go into which calls, and which
//! leases are over.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use distlock_api::AcquisitionId;
use tokio::time::Instant;

use super::{LeaseRecord, Ledger};
use crate::state::backoff;
use crate::state::batch::{Batch, Due, Group, Item, Ready, Waiting};
use crate::state::claim::PendingClaim;
use crate::state::lease::Lease;
use crate::state::local_queue::CarriedLease;
use crate::state::schedule::{HomeId, Pacing};
use crate::state::time::Now;
use crate::store::{Lane, Permit};

/// Up to this many failed items are divided down to single calls, whatever the store does.
const FEW: usize = 512;

/// How long the items that found no permit are kept ready, and how much longer per lease and
/// ticket. Looking through all of them then takes a few percent of a core at most.
const KEPT_READY: Duration = Duration::from_millis(200);
const LOOK: Duration = Duration::from_micros(20);

/// When a renewal is tried again that exceeded the number of calls made again.
const NO_ROOM: Duration = Duration::from_millis(20);

impl<C: CarriedLease> Ledger<C> {
    /// Returns what the keeper of a runtime has to do now.
    ///
    /// Leases that may be renewed go along with those that must be, so that leases of one cadence
    /// gather in common batches. A lease that was sent is due again after `retry_after`, whether or
    /// not an answer has come: a hung call delays no lease, not even its own (C14). At most
    /// `again` calls are repeated. So a store that is down is not flooded, and calls that fail soon
    /// make room for the others.
    ///
    /// `permit` returns the permission for one call in a lane. Items without permission stay due.
    pub(crate) fn take_due(
        &mut self,
        home: HomeId,
        now: &Now,
        batch: usize,
        mut again: usize,
        mut permit: impl FnMut(Lane) -> Option<Permit>,
    ) -> Due<C> {
        let mut result = Due::default();
        let Some(mut ready) = self.ready(home, now) else { return result };
        for (group, waiting) in &mut ready.groups {
            while self.any_next(waiting, now, &mut result.over) {
                if group.is_again && again == 0 {
                    std::mem::take(waiting).values().for_each(|item| self.put_off(item, now));
                    break;
                }
                let Some(permit) = permit(group.lane) else {
                    result.full.push(group.lane);
                    break;
                };
                again -= usize::from(group.is_again);
                let (mut items, mut at_most) = (Vec::new(), backoff::chunk(group.level, batch));
                while items.len() < at_most && self.any_next(waiting, now, &mut result.over) {
                    let Some(first) = waiting.first_entry() else { break };
                    if group.is_again {
                        let (item, level) = (first.get(), group.level);
                        let retry_after = item.retry_after(now);
                        at_most = self.pacing(item).map_or(at_most, |last| last.at_most(level, at_most, retry_after));
                    }
                    // Such as one that has been in a smaller call than those before it.
                    if items.len() < at_most {
                        items.push(first.remove());
                    }
                }
                items.iter().for_each(|item| self.sent(item, now, group.level, items.len()));
                result.batches.push(Batch { items, again: group.is_again, permit });
            }
        }
        result.full.dedup();
        result.over.iter().for_each(|lease| self.schedule_at(lease.claim().id(), None));
        ready.groups.retain(|_, waiting| !waiting.is_empty());
        if let Some(home) = self.keepers.get_mut(&home).filter(|_| !ready.groups.is_empty()) {
            home.ready = Some(ready);
        }
        result
    }

    /// Returns what may be renewed: what found no permit before and what has become due since. If
    /// nothing was kept but something is due, returns everything that may go along. With many
    /// leases, looking through all of them for each call would take longer than the calls.
    fn ready(&mut self, home: HomeId, now: &Now) -> Option<Ready<C>> {
        let kept = self.keepers.get_mut(&home)?.ready.take().filter(|ready| now.instant() < ready.until);
        let home = self.keepers.get(&home)?;
        if let Some(mut ready) = kept {
            let new = home.schedule.became_due(ready.looked, now.instant());
            for (item, pacing) in new.filter_map(|(due, id)| self.if_ready(*due, id, now)) {
                let group = item.group(&pacing, self.answered, ready.few_failed);
                // A second entry of an item is skipped: once sent, it is no longer ready.
                ready.groups.entry(group).or_default().insert(item.urgency(&pacing, now), item);
            }
            ready.looked = now.instant();
            return Some(ready);
        }
        home.next_due().filter(|due| *due <= now.instant())?;
        let items: Vec<_> = home.schedule.iter().filter_map(|(due, id)| self.if_ready(*due, id, now)).collect();
        let few_failed = items.iter().filter(|(_, pacing)| pacing.failures > 0).count() <= FEW;
        let looked_through = u32::try_from(home.schedule.len()).unwrap_or(u32::MAX);
        let mut groups = BTreeMap::<Group, Waiting<C>>::new();
        for (item, pacing) in items {
            groups
                .entry(item.group(&pacing, self.answered, few_failed))
                .or_default()
                .insert(item.urgency(&pacing, now), item);
        }
        let until = now.instant() + KEPT_READY + LOOK.saturating_mul(looked_through);
        Some(Ready { groups, few_failed, looked: now.instant(), until })
    }

    fn if_ready(&self, due: Instant, id: &AcquisitionId, now: &Now) -> Option<(Item<C>, Pacing)> {
        if let Some(LeaseRecord { lease, pacing, .. }) = self.leases.get(id) {
            return pacing.is_ready(due, now.instant()).then(|| (Item::Lease(lease.clone()), *pacing));
        }
        let (queued, pacing) = self.pending.get(id).and_then(PendingClaim::ticket)?;
        pacing.is_ready(due, now.instant()).then(|| (Item::Ticket(queued.clone()), *pacing))
    }

    /// Returns whether there is a next item. Removes those before it that an answer has settled,
    /// and moves those past their deadline to `over`.
    fn any_next(&mut self, waiting: &mut Waiting<C>, now: &Now, over: &mut Vec<Arc<Lease<C>>>) -> bool {
        while let Some(first) = waiting.first_entry() {
            let is_ready = |pacing: &mut Pacing| pacing.due().is_some_and(|due| pacing.is_ready(due, now.instant()));
            if self.pacing(first.get()).is_some_and(is_ready) {
                match first.get() {
                    Item::Lease(lease) if lease.held_until(now).is_none_or(|deadline| deadline <= now.instant()) => {
                        over.push(lease.clone());
                    }
                    _ => return true,
                }
            }
            first.remove();
        }
        false
    }

    /// Records that an item goes into a call now. It is due again if the call is not answered in
    /// time.
    fn sent(&mut self, item: &Item<C>, now: &Now, level: u32, in_call: usize) {
        self.due_again(item, now.instant() + item.retry_after(now), now, |pacing| {
            // The answer resets this.
            pacing.failures += 1;
            pacing.level = level;
            pacing.in_call = in_call;
            pacing.sent = now.instant();
        });
    }

    /// Postpones an item for which no repeated call is allowed now.
    fn put_off(&mut self, item: &Item<C>, now: &Now) {
        self.due_again(item, now.instant() + NO_ROOM, now, |_| {});
    }

    fn due_again(&mut self, item: &Item<C>, again: Instant, now: &Now, change: impl FnOnce(&mut Pacing)) {
        let again = match item {
            Item::Lease(lease) => again.min(lease.deadline(now)),
            Item::Ticket(_) => again,
        };
        if let Some(pacing) = self.pacing(item) {
            change(pacing);
            pacing.early = again;
            self.schedule_at(item.id(), Some(again));
        }
    }

    fn pacing(&mut self, item: &Item<C>) -> Option<&mut Pacing> {
        match item {
            Item::Lease(lease) => self.leases.get_mut(lease.claim().id()).map(|entry| &mut entry.pacing),
            Item::Ticket(queued) => {
                self.pending.get_mut(queued.claim.id()).and_then(PendingClaim::ticket_mut).map(|(_, pacing)| pacing)
            }
        }
    }
}
