//! The right to a key, as a value that passes itself on.

use std::sync::Arc;

use distlock_api::{LeaseHandle, Loss, LostSignal, ReleaseFuture, ReleaseOutcome, contained};
use tokio::time::Instant;

use super::entry::Next;
use super::shard::Shard;
use super::state::{Ended, FollowUp, LossWatch};

/// A shard whose guards are boxed turns.
pub(super) type TurnShard = Shard<Turn>;

/// The right to a key. A grant creates it; the guard or the timer of a minimum hold keeps it.
/// Wherever it is dropped, the next waiter gets the key (C11). In transit to a waiter, the waiter's
/// acquisition keeps it.
pub(super) struct Turn {
    /// `None` once it has ended.
    shard: Option<Arc<TurnShard>>,
    hash: u64,
    token: u64,
}

impl Turn {
    #[inline]
    pub(super) fn new(shard: Arc<TurnShard>, hash: u64, token: u64) -> Self {
        Self { shard: Some(shard), hash, token }
    }

    /// Creates a boxed turn, in the box of an ended one if there is a spare.
    #[inline]
    pub(super) fn boxed(shard: Arc<TurnShard>, hash: u64, token: u64, spare: Option<Box<Self>>) -> Box<Self> {
        match spare {
            Some(mut ended) => {
                ended.shard = Some(shard);
                ended.hash = hash;
                ended.token = token;
                ended
            }
            None => Box::new(Self::new(shard, hash, token)),
        }
    }
}

/// Carries out what follows the end of a turn, after the lock of the shard.
#[inline]
pub(super) fn settle(shard: &Arc<TurnShard>, hash: u64, token: u64, ended: Ended) -> ReleaseOutcome {
    match ended {
        Ended::Lost => return ReleaseOutcome::AlreadyLost,
        Ended::NextWaiter(waker) => {
            shard.ended.set(token);
            if let Some(waker) = waker {
                contained(|| waker.wake());
            }
        }
        Ended::WithFollowUp(after) => {
            let FollowUp { signal, next } = *after;
            if let Some(signal) = signal {
                contained(|| drop(signal));
            }
            pass_on(shard, hash, token, next);
        }
    }
    ReleaseOutcome::Released
}

/// Passes the key on to the waiter or the timer that has it next.
pub(super) fn pass_on(shard: &Arc<TurnShard>, hash: u64, token: u64, next: Option<Next>) {
    match next {
        Some(Next::Waiter(waker)) => waker.into_iter().for_each(|waker| contained(|| waker.wake())),
        Some(Next::Timer { until, runtime }) => {
            let turn = Turn::new(shard.clone(), hash, token);
            runtime.spawn(async move {
                tokio::time::sleep_until(until).await;
                drop(turn);
            });
        }
        None => {}
    }
}

impl Drop for Turn {
    #[inline]
    fn drop(&mut self) {
        let Some(shard) = self.shard.take() else { return };
        let ended = shard.lock().end(self.hash, self.token);
        let _ = settle(&shard, self.hash, self.token, ended);
    }
}

impl LeaseHandle for Turn {
    fn valid_until(&self) -> Option<Instant> {
        None
    }

    fn loss(&self) -> Option<Loss> {
        self.shard.as_ref()?.loss(self.token)
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
        let Some(shard) = self.shard.take() else { return ReleaseFuture::done(Ok(ReleaseOutcome::AlreadyLost)) };
        let (hash, token) = (self.hash, self.token);
        let mut state = shard.lock();
        let ended = state.end(hash, token);
        let second = state.keep_spare(self);
        drop(state);
        drop(second);
        ReleaseFuture::done(Ok(settle(&shard, hash, token, ended)))
    }
}
