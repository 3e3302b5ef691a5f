//! Grants to claims that others wait ahead of.

use distlock_api::{Mode, Result};
use distlock_engine::LeaseStore;
use distlock_engine::store::{Attempt, Reply};

use super::{BETWEEN, Modes, ModesStore};

impl ModesStore {
    /// Makes the attempt without those that wait ahead of it: they are withdrawn for the moment.
    pub(super) async fn overtake(&self, attempt: &Attempt) -> Result<Reply> {
        let (key, mode) = (attempt.claim.key(), attempt.claim.mode());
        let held = self.memory.peek(key).map(|info| info.mode());
        let overtakes = matches!(
            (self.broken, mode, held),
            (Modes::ReadersOvertake, Mode::Shared, Some(Mode::Shared))
                | (Modes::SmallRequestsOvertake, Mode::Permits { take: 1, .. }, Some(Mode::Permits { .. }))
        );
        if !overtakes {
            return self.memory.try_acquire(attempt).await;
        }
        let overtaken: Vec<Attempt> = {
            let seen = self.seen();
            let waiting = self.memory.waiting(key);
            let others = waiting.iter().filter(|id| *id != attempt.claim.id());
            others.filter_map(|id| seen.attempts.get(id).cloned()).collect()
        };
        for waiter in &overtaken {
            self.memory.withdraw(&waiter.claim, BETWEEN).await?;
        }
        let reply = self.memory.try_acquire(attempt).await?;
        for waiter in &overtaken {
            self.memory.try_acquire(waiter).await?;
        }
        Ok(reply)
    }
}
