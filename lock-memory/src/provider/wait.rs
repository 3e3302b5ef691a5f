//! Waiting in the queue of a key.

use std::sync::Arc;

use distlock_api::{AcquireOptions, Acquired, Busy, LockError, LockKey, Result, Wait};
use tokio::sync::oneshot;

use super::shard::{Answer, Shard};
use super::turn::Turn;
use super::{Hold, guard};

/// A place in a queue. Dropped, it is gone from there; and the turn, should it have come, is dropped after it and passes itself on.
struct Place<'a> {
    shard: &'a Arc<Shard>,
    hash: u64,
    key: &'a LockKey,
    ticket: u64,
    turn: oneshot::Receiver<Turn>,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let left = self.shard.lock().leave(self.hash, self.key, self.ticket);
        drop(left);
    }
}

/// Asks for a key that was not free a moment ago.
pub(super) async fn granted(
    shard: &Arc<Shard>,
    hash: u64,
    key: LockKey,
    options: AcquireOptions,
    hold: Option<Hold>,
) -> Result<Acquired> {
    let answer = shard.lock().acquire(hash, &key, &options, hold)?;
    let (ticket, turn) = match answer {
        Answer::Granted { token } => return Ok(Acquired::Held(guard(key, Turn::new(shard.clone(), hash, token)))),
        Answer::Busy(busy) => return Ok(Acquired::Busy(busy)),
        Answer::Queued { ticket, turn } => (ticket, turn),
    };
    let mut place = Place { shard, hash, key: &key, ticket, turn };
    let come = match options.wait() {
        Wait::UpTo(limit) => match tokio::time::timeout(limit, &mut place.turn).await {
            Ok(come) => come,
            Err(_) => return Ok(Acquired::Busy(Busy::new())),
        },
        Wait::Try | Wait::Forever => (&mut place.turn).await,
    };
    drop(place);
    match come {
        Ok(turn) if turn.accept() => Ok(Acquired::Held(guard(key, turn))),
        // The channel is dropped unused only when the provider is closed.
        _ => Err(LockError::closed().with_key(key)),
    }
}
