//! Maximum holds: a guard is lost after a time, and the key passes on.

use std::sync::Arc;
use std::time::Duration;

use distlock_api::{AcquireOptions, LeaseHandle, LeaseOptions, LockKey, Loss, LostSignal, ReleaseFuture, Result};
use tokio::runtime::{Handle, Id};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};

use super::minimum_hold::needs_runtime;
use super::turn::{Turn, TurnShard, settle_taken};

/// A maximum hold that has not begun, and the runtime whose timer will end it.
pub(super) struct MaxHold {
    at_most: Duration,
    runtime: Handle,
}

impl MaxHold {
    /// Returns the maximum hold of an acquisition; `None` if there is none.
    #[inline]
    pub(super) fn of(options: &AcquireOptions) -> Result<Option<Self>> {
        const DEFAULTS: LeaseOptions = LeaseOptions::new();
        if options.lease() == DEFAULTS {
            return Ok(None);
        }
        let Some(at_most) = options.lease().get_max_hold() else { return Ok(None) };
        let runtime = Handle::try_current().map_err(|error| needs_runtime("a maximum hold").with_source(error))?;
        Ok(Some(Self { at_most, runtime }))
    }

    /// Starts the hold of a lock that is granted now.
    pub(super) fn start(self, key: &LockKey, turn: Box<Turn>) -> Box<dyn LeaseHandle> {
        // Beyond what the clock can express it never ends.
        let Some(until) = Instant::now().checked_add(self.at_most) else { return turn };
        let Some((shard, hash, token)) = turn.place() else { return turn };
        let limit = Limit { until, shard: Arc::clone(shard), hash, key: key.clone(), token };
        let timer = self.runtime.spawn(limit.clone().run());
        Box::new(LimitedTurn { limit, runtime: self.runtime.id(), timer: Timer(timer), turn })
    }
}

/// The end of a maximum hold.
#[derive(Clone)]
struct Limit {
    until: Instant,
    shard: Arc<TurnShard>,
    hash: u64,
    key: LockKey,
    token: u64,
}

impl Limit {
    async fn run(self) {
        sleep_until(self.until).await;
        self.end();
    }

    /// Takes the key away from a guard that has held it for too long.
    fn end(&self) {
        let Self { shard, hash, key, token, .. } = self;
        let taken = shard.lock().take_away(*hash, key, &[*token], Loss::HeldTooLong);
        if let Some(taken) = taken {
            settle_taken(shard, *hash, taken);
        }
    }

    /// Ends the hold if its time is over: the runtime of the timer may be late, or have ended.
    fn end_if_over(&self) {
        if Instant::now() >= self.until {
            self.end();
        }
    }
}

/// A turn that a timer ends if its guard has not done so before.
struct LimitedTurn {
    limit: Limit,
    /// That of the timer.
    runtime: Id,
    timer: Timer,
    turn: Box<Turn>,
}

struct Timer(JoinHandle<()>);

impl Drop for Timer {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl LeaseHandle for LimitedTurn {
    fn valid_until(&self) -> Option<Instant> {
        Some(self.limit.until)
    }

    fn loss(&self) -> Option<Loss> {
        self.turn.loss().or_else(|| {
            self.limit.end_if_over();
            self.turn.loss()
        })
    }

    /// In another runtime than the timer's, which may have ended, a timer of the present one is
    /// added.
    fn lost(&self) -> LostSignal {
        let (mut lost, limit, runtime) = (self.turn.lost(), self.limit.clone(), self.runtime);
        LostSignal::new(async move {
            if Handle::try_current().is_ok_and(|here| here.id() != runtime) {
                tokio::select! {
                    biased;
                    loss = &mut lost => return loss,
                    () = limit.run() => {}
                }
            }
            lost.await
        })
    }

    fn release(self: Box<Self>) -> ReleaseFuture {
        let Self { limit, turn, timer, .. } = *self;
        limit.end_if_over();
        drop(timer);
        turn.release()
    }

    fn discard(self: Box<Self>) -> ReleaseFuture {
        let Self { limit, turn, timer, .. } = *self;
        limit.end_if_over();
        drop(timer);
        turn.discard()
    }
}
