//! The requests of the engine. Each is one statement.

use std::time::Duration;

use distlock_api::{ErrorKind, LockError, ReleaseOutcome, Result, async_trait};
use distlock_engine::LeaseStore;
use distlock_engine::store::{
    Attempt, BatchRenewStore, Claim, Connecting, EventStore, EventStream, Lanes, QueueStore, Release, RemoteStore,
    Renewal, RenewalSubject, Reply, Standing, StoreCapabilities, StoreExtras, Used, Watch,
};
use futures_util::future::join_all;
use tokio::time::Instant;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use crate::PostgresStore;
use crate::answers::{self, Renewed};
use crate::calls::Request;
use crate::clock::micros;
use crate::error::{self, Effect};
use crate::event;
use crate::install::install;
use crate::listen::listen;
use crate::names::id_text;
use crate::statement::Sql;

impl PostgresStore {
    /// Sends a request. The first one creates or checks the schema before.
    pub(crate) async fn rows(&self, request: Request<'_>) -> Result<Vec<Row>> {
        let begun = Instant::now();
        self.ready(request.timeout).await?;
        let timeout = request.timeout.saturating_sub(begun.elapsed());
        self.calls.rows(&Request { timeout, ..request }).await
    }

    /// Creates or checks the schema, once. Clones that call it at the same moment wait for the
    /// first.
    pub(crate) async fn ready(&self, limit: Duration) -> Result<()> {
        if self.installed.initialized() {
            return Ok(());
        }
        let install = || install(&*self.dial, &self.config, &self.schema, self.options, limit);
        let ready = tokio::time::timeout(limit, self.installed.get_or_try_init(install)).await;
        ready.unwrap_or_else(|_| Err(error::not_connected(limit))).map(|_| ())
    }

    /// Sends renewals as one statement. With `waits` it waits for records that are locked.
    async fn renewed(&self, renewals: &[&Renewal], timeout: Duration, waits: bool) -> Vec<Result<Renewed>> {
        let mut columns = Columns::default();
        if let Err(error) = renewals.iter().try_for_each(|renewal| columns.push(renewal)) {
            return renewals.iter().map(|_| Err(error.clone())).collect();
        }
        let Columns { keys, ids, tokens, ttls, claim_ttls } = &columns;
        let params: [&(dyn ToSql + Sync); 6] = [keys, ids, tokens, ttls, claim_ttls, &waits];
        // Renewals neither grant nor free, so a late one needs no fence.
        let request = Request { sql: Sql::Renew, params: &params, effect: Effect::Write, timeout, claim: None };
        match self.rows(request).await {
            Ok(rows) => answers::standings(&rows, renewals.len()),
            Err(error) => renewals.iter().map(|_| Err(error.clone())).collect(),
        }
    }

    async fn renew_alone(&self, renewal: &Renewal, timeout: Duration) -> Result<Standing> {
        match self.renewed(&[renewal], timeout, true).await.pop() {
            Some(Ok(Renewed::Answered(standing))) => Ok(standing),
            Some(Err(error)) => Err(error),
            Some(Ok(Renewed::Locked)) | None => Err(error::unreadable("no answer to a renewal")),
        }
    }
}

/// Renewals as arrays.
#[derive(Default)]
struct Columns<'a> {
    keys: Vec<&'a [u8]>,
    ids: Vec<&'a str>,
    /// `None` for a ticket.
    tokens: Vec<Option<i64>>,
    ttls: Vec<i64>,
    claim_ttls: Vec<Option<i64>>,
}

impl<'a> Columns<'a> {
    fn push(&mut self, renewal: &'a Renewal) -> Result<()> {
        let (token, ttl, claim_ttl) = match renewal.subject {
            // No token of this store is above i64::MAX, so such a lease is not this one.
            RenewalSubject::Lease { token, ttl } => (Some(token.get().try_into().unwrap_or(i64::MAX)), ttl, None),
            RenewalSubject::Ticket(ticket) => (None, ticket.ttl, Some(micros(ticket.claim_ttl))),
            _ => {
                return Err(LockError::new(ErrorKind::Unsupported, "this store does not support this kind of renewal"));
            }
        };
        self.ids.push(id_text(renewal.claim.id())?);
        self.keys.push(renewal.claim.key().as_str().as_bytes());
        self.tokens.push(token);
        self.ttls.push(micros(ttl));
        self.claim_ttls.push(claim_ttl);
        Ok(())
    }
}

#[async_trait]
impl LeaseStore for PostgresStore {
    fn capabilities(&self) -> StoreCapabilities {
        let mut capabilities = StoreCapabilities::default();
        capabilities.token_blocks = true;
        capabilities.minimum_hold = true;
        capabilities.ordered_claims = true;
        capabilities
    }

    fn name(&self) -> &str {
        "postgres"
    }

    async fn try_acquire(&self, attempt: &Attempt) -> Result<Reply> {
        let Attempt { claim, ttl, tokens, ticket, turn_window, holder, timeout, .. } = attempt;
        let (key, id) = (claim.key().as_str().as_bytes(), id_text(claim.id())?);
        let tokens =
            i32::try_from(tokens.get()).map_err(|_| LockError::invalid_options("the token block is too long"))?;
        let (ttl, window) = (micros(*ttl), micros(*turn_window));
        let (owner, metadata) = answers::description(holder);
        let ticket_ttl = ticket.map(|ticket| micros(ticket.ttl));
        let claim_ttl = ticket.map(|ticket| micros(ticket.claim_ttl));
        let capacity = ticket.map(|ticket| i64::from(ticket.capacity));
        let params: [&(dyn ToSql + Sync); 10] =
            [&key, &id, &ttl, &tokens, &window, &owner, &metadata, &ticket_ttl, &claim_ttl, &capacity];
        let (timeout, claim) = (*timeout, Some(claim));
        let request = Request { sql: Sql::Acquire, params: &params, effect: Effect::Write, timeout, claim };
        answers::reply(&self.rows(request).await?)
    }

    async fn renew(&self, renewal: &Renewal) -> Result<Standing> {
        self.renew_alone(renewal, renewal.timeout).await
    }

    async fn release(&self, release: &Release) -> Result<ReleaseOutcome> {
        let Release { claim, hold_at_least, timeout, .. } = release;
        let (key, id) = (claim.key().as_str().as_bytes(), id_text(claim.id())?);
        let hold = hold_at_least.map(micros);
        let used: Option<i64> = match claim.used() {
            Used::Unknown => None,
            Used::None => Some(0),
            Used::UpTo(token) => token.get().try_into().ok(),
        };
        let params: [&(dyn ToSql + Sync); 4] = [&key, &id, &hold, &used];
        let (timeout, claim) = (*timeout, Some(claim));
        let request = Request { sql: Sql::Release, params: &params, effect: Effect::Write, timeout, claim };
        let released = answers::value(&self.rows(request).await?)?;
        Ok(if released { ReleaseOutcome::Released } else { ReleaseOutcome::AlreadyLost })
    }

    fn extras(&self) -> StoreExtras<'_> {
        let mut extras = StoreExtras::default();
        extras.queue = Some(self);
        extras.events = Some(self);
        extras.batch_renew = Some(self);
        extras.remote = Some(self);
        extras.admin = Some(self);
        extras
    }
}

#[async_trait]
impl QueueStore for PostgresStore {
    async fn waiters(&self, claim: &Claim, timeout: Duration) -> Result<u32> {
        let key = claim.key().as_str().as_bytes();
        let params: [&(dyn ToSql + Sync); 1] = [&key];
        let request = Request { sql: Sql::Waiters, params: &params, effect: Effect::None, timeout, claim: None };
        let count: i64 = answers::value(&self.rows(request).await?)?;
        Ok(count.try_into().unwrap_or(u32::MAX))
    }
}

#[async_trait]
impl EventStore for PostgresStore {
    async fn subscribe(&self, watch: &Watch) -> Result<EventStream> {
        let channels = [self.schema.channel(), self.schema.channel_of(watch.provider)];
        listen(&*self.dial, &self.config, &channels, event::parse).await
    }
}

#[async_trait]
impl BatchRenewStore for PostgresStore {
    /// Sends one statement, which does not wait for records that are locked. Those are then renewed
    /// one by one, so that a record that stays locked costs no other lease.
    async fn renew_many(&self, renewals: &[Renewal]) -> Vec<Result<Standing>> {
        let begun = Instant::now();
        let timeout = renewals.iter().map(|renewal| renewal.timeout).min().unwrap_or_default();
        let batch: Vec<&Renewal> = renewals.iter().collect();
        if batch.iter().any(|renewal| Columns::default().push(renewal).is_err()) {
            // A renewal that cannot be sent fails alone.
            return join_all(batch.iter().map(|renewal| self.renew_alone(renewal, timeout))).await;
        }
        let answers = self.renewed(&batch, timeout, false).await.into_iter().zip(renewals);
        join_all(answers.map(|(answer, renewal)| async move {
            match answer? {
                Renewed::Answered(standing) => Ok(standing),
                Renewed::Locked => self.renew_alone(renewal, timeout.saturating_sub(begun.elapsed())).await,
            }
        }))
        .await
    }
}

#[async_trait]
impl RemoteStore for PostgresStore {
    fn lanes(&self) -> Option<Lanes> {
        Some(self.lanes.clone())
    }

    fn ensure_connected(&self, limit: Duration) -> Option<Connecting<'_>> {
        (!self.installed.initialized()).then(|| Box::pin(self.ready(limit)) as Connecting<'_>)
    }

    /// Closes the idle connections. The store stays usable, because another provider may use it.
    async fn close(&self) -> Result<()> {
        self.calls.close_idle();
        Ok(())
    }
}
