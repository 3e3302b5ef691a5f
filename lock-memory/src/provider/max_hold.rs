//! Maximum holds: a guard is lost after a time, and the key passes on.

use std::sync::Arc;
use std::time::Duration;

use distlock_api::{AcquireOptions, LeaseHandle, LeaseOptions, LockKey, Loss, LostSignal, ReleaseFuture, Result};
use tokio::runtime::Handle;
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
        let (shard, key) = (Arc::clone(shard), key.clone());
        let timer = self.runtime.spawn(async move {
            sleep_until(until).await;
            end(&shard, hash, &key, token);
        });
        Box::new(LimitedTurn { until, timer: Timer(timer), turn })
    }
}

/// Takes the key away from a guard that has held it for too long.
fn end(shard: &Arc<TurnShard>, hash: u64, key: &LockKey, token: u64) {
    let taken = shard.lock_to_take_away().take_away(hash, key, &[token], Loss::HeldTooLong);
    if let Some(taken) = taken {
        settle_taken(shard, hash, taken);
    }
}

/// A turn that a timer ends if its guard has not done so before.
struct LimitedTurn {
    until: Instant,
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
        Some(self.until)
    }

    fn loss(&self) -> Option<Loss> {
        // Read first: the runtime may run the timer late.
        let is_over = Instant::now() >= self.until;
        self.turn.loss().or(is_over.then_some(Loss::HeldTooLong))
    }

    fn lost(&self) -> LostSignal {
        self.turn.lost()
    }

    fn release(self: Box<Self>) -> ReleaseFuture {
        let Self { turn, timer, .. } = *self;
        drop(timer);
        turn.release()
    }

    fn discard(self: Box<Self>) -> ReleaseFuture {
        let Self { turn, timer, .. } = *self;
        drop(timer);
        turn.discard()
    }
}
