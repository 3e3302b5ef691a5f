//! The right to a key, as a value that passes itself on.

use std::sync::Arc;

use distlock_api::{HeldLock, Loss, LostSignal, ReleaseFuture, ReleaseOutcome};
use tokio::time::Instant;

use super::entry::Next;
use super::shard::{LossWatch, Shard};

/// The right to a key. It is made by a grant, travels to the waiter, lives in the guard and rests with the timer of a minimum hold.
/// Wherever it is dropped – in the channel of a waiter that went away, say – the next in line gets the key: this is all there is to cancel safety (C11).
pub(super) struct Turn {
    /// None once it has ended.
    shard: Option<Arc<Shard>>,
    hash: u64,
    token: u64,
}

impl Turn {
    #[inline]
    pub(super) fn new(shard: Arc<Shard>, hash: u64, token: u64) -> Self {
        Self { shard: Some(shard), hash, token }
    }

    #[inline]
    pub(super) fn token(&self) -> u64 {
        self.token
    }

    /// The turn has come to its waiter; false if the provider was closed meanwhile.
    pub(super) fn accept(&self) -> bool {
        self.shard.as_ref().is_some_and(|shard| shard.lock().accept(self.hash, self.token))
    }

    #[inline]
    fn end(&mut self) -> ReleaseOutcome {
        let Some(shard) = self.shard.take() else { return ReleaseOutcome::AlreadyLost };
        let (outcome, after) = shard.lock().end(self.hash, self.token);
        if let Some(after) = after {
            drop(after.signal);
            follow(shard, self.hash, self.token, after.next);
        }
        outcome
    }
}

/// Brings the key to whoever has it next.
pub(super) fn follow(shard: Arc<Shard>, hash: u64, token: u64, mut next: Option<Next>) {
    while let Some(having) = next {
        match having {
            Next::Waiter { sender, token } => {
                let Err(mut refused) = sender.send(Turn::new(shard.clone(), hash, token)) else { return };
                // The waiter is gone. Not left to `drop`: a thousand of them would be a thousand calls deep.
                refused.shard = None;
                next = shard.lock().end(hash, token).1.and_then(|after| after.next);
            }
            Next::Timer { until, runtime } => {
                let turn = Turn::new(shard, hash, token);
                runtime.spawn(async move {
                    tokio::time::sleep_until(until).await;
                    drop(turn);
                });
                return;
            }
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

impl HeldLock for Turn {
    fn valid_until(&self) -> Option<Instant> {
        None
    }

    fn loss(&self) -> Option<Loss> {
        self.shard.as_ref()?.lock().loss(self.token)
    }

    fn lost(&self) -> LostSignal {
        let Some(shard) = &self.shard else { return LostSignal::never() };
        let watch = shard.lock().watch_loss(self.hash, self.token);
        match watch {
            LossWatch::Lost(loss) => LostSignal::new(std::future::ready(loss)),
            LossWatch::Released => LostSignal::never(),
            LossWatch::Held(mut loss) => LostSignal::new(async move {
                loop {
                    if let Some(loss) = *loss.borrow_and_update() {
                        return loss;
                    }
                    if loss.changed().await.is_err() {
                        // Released.
                        std::future::pending::<()>().await;
                    }
                }
            }),
        }
    }

    fn release(mut self: Box<Self>) -> ReleaseFuture {
        ReleaseFuture::done(Ok(self.end()))
    }
}
