//! What happens to a key in one step: a transaction with the file's write lock, and one reading of
//! the clock.

use std::num::NonZeroU32;

use distlock_api::{FencingToken, Holder, LockKey, Loss, ReleaseOutcome};
use distlock_engine::store::{
    Attempt, BusyReply, Claim, Grant, QueueStanding, Release, Renewal, RenewalSubject, Reply, Standing, Ticket,
};
use rusqlite::{OptionalExtension, Result, Row, Transaction, params};

use crate::clock::{between, nanos};

/// How long a release is remembered after the end of its lease: a minute.
const REMEMBERED: i64 = 60_000_000_000;

/// One step.
pub(crate) struct Step<'a> {
    pub(crate) sql: Transaction<'a>,
    /// Read after the write lock was taken. A reading from before the wait could revive a lease
    /// that has expired meanwhile.
    pub(crate) now: i64,
}

/// A row of the table.
pub(crate) struct Lease {
    pub(crate) holder: Option<String>,
    pub(crate) description: String,
    token: i64,
    tokens: u32,
    granted: i64,
    pub(crate) closed_until: i64,
}

impl Lease {
    fn read(row: &Row<'_>) -> Result<Self> {
        Ok(Self {
            holder: row.get("holder")?,
            description: row.get("description")?,
            token: row.get("token")?,
            tokens: row.get("tokens")?,
            granted: row.get("granted")?,
            closed_until: row.get("closed_until")?,
        })
    }

    pub(crate) fn last_token(&self) -> FencingToken {
        FencingToken::new((self.token + i64::from(self.tokens) - 1).cast_unsigned())
    }
}

impl Step<'_> {
    pub(crate) fn try_acquire(&self, attempt: &Attempt) -> Result<Reply> {
        let (key, id) = (attempt.claim.key(), attempt.claim.id().as_str());
        if let Some(lease) = self.held_by(&attempt.claim)? {
            let closed_until = self.extend(key, &lease, nanos(attempt.ttl))?;
            return Ok(self.granted(lease.token, lease.tokens, closed_until));
        }
        let closed_until = self.lease(key)?.map_or(i64::MIN, |lease| lease.closed_until);
        let ahead = self.ahead(key, id)?;
        let my_turn = closed_until.saturating_add(nanos(attempt.turn_window).saturating_mul(ahead.into()));
        if my_turn <= self.now {
            self.leave_queue(id)?;
            let description = description(&attempt.holder);
            let (token, closed_until) = self.grant(key, id, &description, attempt.tokens.get(), nanos(attempt.ttl))?;
            return Ok(self.granted(token, attempt.tokens.get(), closed_until));
        }
        let standing = match &attempt.ticket {
            None => QueueStanding::NotQueued,
            Some(ticket) if ahead >= ticket.capacity => QueueStanding::Full,
            Some(ticket) => self.queue_up(attempt, ticket).map(|()| QueueStanding::Queued { ahead })?,
        };
        Ok(Reply::Busy(self.busy(closed_until).with_standing(standing)))
    }

    pub(crate) fn renew(&self, renewal: &Renewal) -> Result<Standing> {
        let (key, id) = (renewal.claim.key(), renewal.claim.id().as_str());
        let lease = self.held_by(&renewal.claim)?;
        Ok(match (renewal.subject, lease) {
            (RenewalSubject::Lease { token, ttl }, Some(lease)) if lease.last_token() == token => {
                Standing::Held { remaining: between(self.now, self.extend(key, &lease, nanos(ttl))?) }
            }
            (RenewalSubject::Ticket(_), Some(lease)) => {
                Standing::Held { remaining: between(self.now, lease.closed_until) }
            }
            (RenewalSubject::Ticket(ticket), None) if self.refresh(id, &ticket)? => {
                let closed_until = self.lease(key)?.map_or(i64::MIN, |lease| lease.closed_until);
                let ahead = self.ahead(key, id)?;
                Standing::Waiting(self.busy(closed_until).with_standing(QueueStanding::Queued { ahead }))
            }
            _ => Standing::Gone(Loss::Gone),
        })
    }

    pub(crate) fn release(&self, release: &Release) -> Result<ReleaseOutcome> {
        let (key, id) = (release.claim.key(), release.claim.id().as_str());
        self.leave_queue(id)?;
        let Some(lease) = self.held_by(&release.claim)? else {
            let before = "SELECT count(*) FROM released WHERE id = ?1";
            let before: u32 = self.sql.query_row(before, [id], |row| row.get(0))?;
            return Ok(if before == 0 { ReleaseOutcome::AlreadyLost } else { ReleaseOutcome::Released });
        };
        let ends = lease.closed_until.saturating_add(REMEMBERED);
        self.sql.execute("DELETE FROM released WHERE ends <= ?1", [self.now])?;
        self.sql.execute("REPLACE INTO released VALUES (?1, ?2, ?3)", params![id, self.now, ends])?;
        let hold = release.hold_at_least.map_or(0, nanos);
        let opens = lease.granted.saturating_add(hold);
        if self.now < opens {
            let close = "UPDATE lease SET holder = NULL, written = ?2, closed_until = ?3 WHERE key = ?1";
            self.sql.execute(close, params![bytes(key), self.now, opens])?;
        } else {
            self.hand_over(key)?;
        }
        Ok(ReleaseOutcome::Released)
    }

    /// How many live tickets the key has. Deletes dead ones before it counts.
    pub(crate) fn waiters(&self, key: &LockKey) -> Result<u32> {
        self.sql.execute("DELETE FROM ticket WHERE key = ?1 AND ends <= ?2", params![bytes(key), self.now])?;
        self.sql.query_row("SELECT count(*) FROM ticket WHERE key = ?1", [bytes(key)], |row| row.get(0))
    }

    /// How many tickets are before this claim's; all of them if it has none.
    fn ahead(&self, key: &LockKey, id: &str) -> Result<u32> {
        let all = self.waiters(key)?;
        let ahead = "SELECT (SELECT count(*) FROM ticket WHERE key = mine.key AND place < mine.place)
                     FROM ticket AS mine WHERE id = ?1";
        Ok(self.sql.query_row(ahead, [id], |row| row.get(0)).optional()?.unwrap_or(all))
    }

    pub(crate) fn lease(&self, key: &LockKey) -> Result<Option<Lease>> {
        self.sql.query_row("SELECT * FROM lease WHERE key = ?1", [bytes(key)], Lease::read).optional()
    }

    /// The key's lease, if this claim holds it and it has not expired.
    fn held_by(&self, claim: &Claim) -> Result<Option<Lease>> {
        let mine =
            |lease: &Lease| lease.holder.as_deref() == Some(claim.id().as_str()) && self.now < lease.closed_until;
        Ok(self.lease(claim.key())?.filter(mine))
    }

    /// Grants a new lease, in the place of the old one if there is one.
    fn grant(&self, key: &LockKey, id: &str, description: &str, tokens: u32, ttl: i64) -> Result<(i64, i64)> {
        let last = "UPDATE last_token SET token = token + ?1 RETURNING token";
        let last: i64 = self.sql.query_row(last, [tokens], |row| row.get(0))?;
        let (token, closed_until) = (last - i64::from(tokens) + 1, self.now.saturating_add(ttl));
        let lease = "REPLACE INTO lease (key, holder, description, token, tokens, granted, written, closed_until)
                     VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?6, ?7)";
        self.sql.execute(lease, params![bytes(key), id, description, token, tokens, self.now, closed_until])?;
        Ok((token, closed_until))
    }

    /// Extends a lease to `ttl` from now, and never shortens it.
    fn extend(&self, key: &LockKey, lease: &Lease, ttl: i64) -> Result<i64> {
        let closed_until = lease.closed_until.max(self.now.saturating_add(ttl));
        let extend = "UPDATE lease SET written = ?2, closed_until = ?3 WHERE key = ?1";
        self.sql.execute(extend, params![bytes(key), self.now, closed_until])?;
        Ok(closed_until)
    }

    /// Grants the key to the first waiter, or frees it if there is none.
    pub(crate) fn hand_over(&self, key: &LockKey) -> Result<()> {
        self.waiters(key)?;
        let first = "DELETE FROM ticket WHERE place = (SELECT min(place) FROM ticket WHERE key = ?1)
                     RETURNING id, description, tokens, claim_ttl";
        let read = |row: &Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?));
        let first: Option<(String, String, u32, i64)> = self.sql.query_row(first, [bytes(key)], read).optional()?;
        match first {
            Some((id, description, tokens, ttl)) => self.grant(key, &id, &description, tokens, ttl).map(|_| ()),
            None => self.sql.execute("DELETE FROM lease WHERE key = ?1", [bytes(key)]).map(|_| ()),
        }
    }

    /// Adds a ticket at the end of the queue, or refreshes the claim's old one.
    fn queue_up(&self, attempt: &Attempt, ticket: &Ticket) -> Result<()> {
        let id = attempt.claim.id().as_str();
        if !self.refresh(id, ticket)? {
            let add = "INSERT INTO ticket (key, id, description, tokens, claim_ttl, written, ends) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)";
            let (key, description, tokens) =
                (bytes(attempt.claim.key()), description(&attempt.holder), attempt.tokens.get());
            let (claim_ttl, ends) = (nanos(ticket.claim_ttl), self.now.saturating_add(nanos(ticket.ttl)));
            self.sql.execute(add, params![key, id, description, tokens, claim_ttl, self.now, ends])?;
        }
        Ok(())
    }

    fn refresh(&self, id: &str, ticket: &Ticket) -> Result<bool> {
        let refresh = "UPDATE ticket SET written = ?2, ends = ?3 WHERE id = ?1 AND ?2 < ends";
        let ends = self.now.saturating_add(nanos(ticket.ttl));
        Ok(self.sql.execute(refresh, params![id, self.now, ends])? > 0)
    }

    fn leave_queue(&self, id: &str) -> Result<()> {
        self.sql.execute("DELETE FROM ticket WHERE id = ?1", [id]).map(|_| ())
    }

    fn granted(&self, token: i64, tokens: u32, closed_until: i64) -> Reply {
        let token = FencingToken::new(token.cast_unsigned());
        let tokens = NonZeroU32::new(tokens).unwrap_or(NonZeroU32::MIN);
        Reply::Granted(Grant::new(token, between(self.now, closed_until)).with_tokens(tokens))
    }

    fn busy(&self, closed_until: i64) -> BusyReply {
        BusyReply::new().with_holder_remaining(between(self.now, closed_until))
    }
}

/// The key as a blob, which SQLite compares byte by byte. It does not always do so with text.
pub(crate) fn bytes(key: &LockKey) -> &[u8] {
    key.as_str().as_bytes()
}

fn description(holder: &Holder) -> String {
    serde_json::to_string(&(holder.owner.as_deref(), holder.metadata.as_deref())).unwrap_or_default()
}
