//! The smallest store that passes the suite: the first step of the tutorial.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use distlock_api::{FencingToken, LockKey, Loss, ReleaseOutcome, Result, async_trait};
use distlock_engine::LeaseStore;
use distlock_engine::store::{Attempt, BusyReply, Grant, Release, Renewal, RenewalSubject, Reply, Standing};

/// One row per key. Clones share the rows, as processes share a database.
#[derive(Clone, Debug, Default)]
pub struct MyStore(Arc<Mutex<HashMap<LockKey, Row>>>);

/// Never deleted, because its token must grow.
#[derive(Debug, Default)]
struct Row {
    holder: Option<String>,
    released_by: Vec<String>,
    token: u64,
    expires: Option<Instant>,
}

impl Row {
    fn is_held(&self) -> bool {
        self.holder.is_some() && self.expires.is_some_and(|expires| Instant::now() < expires)
    }

    fn is_held_by(&self, id: &str) -> bool {
        self.is_held() && self.holder.as_deref() == Some(id)
    }

    /// Extends the lease, never shortens it. Returns the time that is left.
    fn extend(&mut self, ttl: Duration) -> Duration {
        let now = Instant::now();
        let expires = self.expires.map_or(now + ttl, |expires| expires.max(now + ttl));
        self.expires = Some(expires);
        expires - now
    }
}

#[async_trait]
impl LeaseStore for MyStore {
    async fn try_acquire(&self, attempt: &Attempt) -> Result<Reply> {
        let (mut rows, id) = (self.0.lock().unwrap(), attempt.claim.id().as_str());
        let row = rows.entry(attempt.claim.key().clone()).or_default();
        if row.is_held() && !row.is_held_by(id) {
            return Ok(Reply::Busy(BusyReply::new().with_holder_remaining(row.extend(Duration::ZERO))));
        }
        if !row.is_held_by(id) {
            // The key is free, or its lease has expired: a new grant with a new token.
            (row.holder, row.token, row.expires) = (Some(id.to_owned()), row.token + 1, None);
        }
        Ok(Reply::Granted(Grant::new(FencingToken::new(row.token), row.extend(attempt.ttl))))
    }

    async fn renew(&self, renewal: &Renewal) -> Result<Standing> {
        let (mut rows, id) = (self.0.lock().unwrap(), renewal.claim.id().as_str());
        let row = rows.entry(renewal.claim.key().clone()).or_default();
        match renewal.subject {
            RenewalSubject::Lease { token, ttl } if row.is_held_by(id) && row.token == token.get() => {
                Ok(Standing::Held { remaining: row.extend(ttl) })
            }
            _ => Ok(Standing::Gone(Loss::Gone)),
        }
    }

    async fn release(&self, release: &Release) -> Result<ReleaseOutcome> {
        let (mut rows, id) = (self.0.lock().unwrap(), release.claim.id().as_str());
        let row = rows.entry(release.claim.key().clone()).or_default();
        if row.is_held_by(id) {
            // The engine repeats a release whose reply was lost, so remember the last four.
            row.released_by.extend(row.holder.take());
            row.released_by = row.released_by.split_off(row.released_by.len().saturating_sub(4));
        }
        Ok(match row.released_by.iter().any(|released| released == id) {
            true => ReleaseOutcome::Released,
            false => ReleaseOutcome::AlreadyLost,
        })
    }
}
