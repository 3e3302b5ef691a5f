//! What a command runs under: locks, or the lease of work that is done once.

use distlock::once::OnceGuard;
use distlock::{AllGuard, FencingToken, LockKey, Loss, LostSignal};
use tokio::time::Instant;

/// A lease, or several, whose end ends the command.
pub(crate) trait Held {
    /// How it was lost, if it was.
    fn loss(&self) -> Option<Loss>;
    /// Returns a future that resolves when it is lost.
    fn lost(&self) -> LostSignal;
    /// Returns its deadline; `None` if it never expires, or is lost.
    fn valid_until(&self) -> Option<Instant>;
    /// Returns the fencing token of one of its keys.
    fn token(&self, key: &LockKey) -> FencingToken;
}

impl Held for AllGuard {
    fn loss(&self) -> Option<Loss> {
        self.loss()
    }

    fn lost(&self) -> LostSignal {
        self.lost()
    }

    fn valid_until(&self) -> Option<Instant> {
        self.valid_until()
    }

    fn token(&self, key: &LockKey) -> FencingToken {
        self.fencing_tokens().get(key.as_str()).unwrap_or(FencingToken::new(0))
    }
}

impl Held for OnceGuard {
    fn loss(&self) -> Option<Loss> {
        self.loss()
    }

    fn lost(&self) -> LostSignal {
        self.lost()
    }

    fn valid_until(&self) -> Option<Instant> {
        self.valid_until()
    }

    fn token(&self, _: &LockKey) -> FencingToken {
        self.fencing_token()
    }
}
