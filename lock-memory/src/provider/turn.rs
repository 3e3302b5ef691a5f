//! The right to a key, as a value that passes itself on.

use std::sync::Arc;

use distlock_api::style::contained;
use distlock_api::{LeaseHandle, Loss, LostSignal, ReleaseFuture, ReleaseOutcome};
use tokio::runtime::{Handle, Id};
use tokio::time::Instant;

use super::answers::{Ended, FollowUp, LossWatch, Taken};
use super::entry::Next;
use super::shard::Shard;

/// A shard whose guards are boxed turns.
pub(super) type TurnShard = Shard<Turn>;

/// The right to a key, or to a share of it. A grant creates it; the guard or the timer of a minimum
/// hold keeps it. Wherever it is dropped, the next waiters get what they can (C11). In transit to a
/// waiter, the waiter's acquisition keeps it.
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

    /// Returns the shard, the hash of the key, and the token; `None` once it has ended.
    pub(super) fn place(&self) -> Option<(&Arc<TurnShard>, u64, u64)> {
        Some((self.shard.as_ref()?, self.hash, self.token))
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
            shard.ended.set(token);
            let FollowUp { signal, next } = *after;
            if let Some(signal) = signal {
                contained(|| drop(signal));
            }
            pass_on(shard, hash, token, next);
        }
    }
    ReleaseOutcome::Released
}

/// Reports the loss to the guards that had the key, and passes it on, after the lock of the shard.
pub(super) fn settle_taken(shard: &Arc<TurnShard>, hash: u64, taken: Taken) {
    let Taken { loss, signals, next } = taken;
    for signal in signals {
        contained(|| {
            signal.send_replace(Some(loss));
        });
    }
    // There is no timer, whose token would matter.
    pass_on(shard, hash, 0, next);
}

/// Passes the key on to the waiters or the timer that have it next.
fn pass_on(shard: &Arc<TurnShard>, hash: u64, token: u64, next: Next) {
    match next {
        Next::Free | Next::Wake(None) => {}
        Next::Wake(Some(waker)) => contained(|| waker.wake()),
        Next::WakeAll(wakers) => wakers.into_iter().for_each(|waker| contained(|| waker.wake())),
        Next::Timer { until, runtime } => {
            MinimumHoldTimer::start(Turn::new(shard.clone(), hash, token), until, &runtime);
        }
    }
}

/// Has the key closed until the end of a minimum hold. If its runtime had ended before the release,
/// the runtime of the release does so. A key whose timer ends with its runtime opens early.
struct MinimumHoldTimer {
    /// `None` once it has ended.
    turn: Option<Turn>,
    until: Instant,
    runtime: Id,
}

impl MinimumHoldTimer {
    fn start(turn: Turn, until: Instant, runtime: &Handle) {
        let mut timer = Self { turn: Some(turn), until, runtime: runtime.id() };
        runtime.spawn(async move {
            tokio::time::sleep_until(timer.until).await;
            drop(timer.turn.take());
        });
    }
}

impl Drop for MinimumHoldTimer {
    fn drop(&mut self) {
        let Some(turn) = self.turn.take() else { return };
        if let Ok(here) = Handle::try_current()
            && here.id() != self.runtime
        {
            Self::start(turn, self.until, &here);
        }
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

    fn discard(self: Box<Self>) -> ReleaseFuture {
        if let Some(shard) = &self.shard {
            shard.lock().forget_minimum_hold(self.hash, self.token);
        }
        self.release()
    }
}
