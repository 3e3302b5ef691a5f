//! Grants beside holders of another mode: under a second key, which these do not see.

use distlock_api::{LockKey, Mode, Result};
use distlock_engine::LeaseStore;
use distlock_engine::store::{Attempt, BusyReply, Claim, Reply};

use super::{BETWEEN, Modes, ModesStore};

fn shadow(key: &LockKey) -> LockKey {
    LockKey::new(format!("{key}\u{0}shadow")).expect("a valid key")
}

impl ModesStore {
    /// Returns the claim as the memory knows it.
    pub(super) fn real(&self, claim: &Claim) -> Claim {
        let seen = self.seen();
        match (seen.shadows.get(claim.id()), seen.attempts.get(claim.id())) {
            (Some(key), _) => Claim::new(key.clone(), claim.id().clone()).with_mode(claim.mode()),
            // The mode may be another one.
            (None, Some(sent)) if sent.claim.id() == claim.id() => sent.claim.clone(),
            _ => claim.clone(),
        }
    }

    /// Makes the attempt at the second key, if the first one is held in a way that must not count.
    pub(super) async fn take_in_the_shadow(&self, attempt: &Attempt) -> Result<Reply> {
        let key = attempt.claim.key();
        let (held, hidden) = (self.memory.peek(key), self.memory.peek(shadow(key)));
        let is_shared = attempt.claim.mode() == Mode::Shared;
        if self.seen().shadows.contains_key(attempt.claim.id()) {
            return self.shadowed(attempt).await;
        }
        match self.broken {
            // Readers see no writer.
            Modes::ReaderBesideWriter if is_shared => self.shadowed(attempt).await,
            Modes::ReaderBesideWriter if hidden.is_some() => Ok(Reply::Busy(BusyReply::new())),
            // Readers see writers, and these see no reader.
            Modes::WriterBesideReader if is_shared && held.as_ref().is_none_or(|held| !held.mode().is_exclusive()) => {
                self.shadowed(attempt).await
            }
            Modes::TakesInTwoSteps if held.is_none() => {
                tokio::time::sleep(BETWEEN).await;
                match self.memory.try_acquire(attempt).await? {
                    Reply::Busy(_) => self.shadowed(attempt).await,
                    granted => Ok(granted),
                }
            }
            _ => self.memory.try_acquire(attempt).await,
        }
    }

    async fn shadowed(&self, attempt: &Attempt) -> Result<Reply> {
        let mut attempt = attempt.clone();
        let key = shadow(attempt.claim.key());
        self.seen().shadows.insert(attempt.claim.id().clone(), key.clone());
        attempt.claim = Claim::new(key, attempt.claim.id().clone()).with_mode(attempt.claim.mode());
        self.memory.try_acquire(&attempt).await
    }
}
