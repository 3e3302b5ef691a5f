//! Sends requests: on a connection of the pool, within its timeout. Neither a caller that leaves
//! nor a server that hangs affects the next request.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use deadpool::Runtime;
use deadpool::managed::{self, Metrics, Object, PoolError, QueueMode, RecycleError, Timeouts};
use distlock_api::{ErrorKind, LockError, Result};
use distlock_engine::store::Claim;
use tokio::time::{Instant, timeout_at};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Config, Error, Row};

use crate::connection::{Backend, Connection, Dial};
use crate::error::{self, Effect};
use crate::statement::{Sql, Texts};

/// Makes connections for the pool.
pub(crate) struct Manager {
    pub(crate) dial: Arc<dyn Dial>,
    pub(crate) config: Config,
    pub(crate) texts: Arc<Texts>,
}

impl managed::Manager for Manager {
    type Type = Connection;
    type Error = Error;

    async fn create(&self) -> Result<Connection, Error> {
        Connection::open(&*self.dial, &self.config, &self.texts).await
    }

    async fn recycle(&self, connection: &mut Connection, _: &Metrics) -> managed::RecycleResult<Error> {
        if connection.is_closed() { Err(RecycleError::message("closed")) } else { Ok(()) }
    }
}

/// A request: one statement.
pub(crate) struct Request<'a> {
    pub(crate) sql: Sql,
    pub(crate) params: &'a [&'a (dyn ToSql + Sync)],
    pub(crate) effect: Effect,
    pub(crate) timeout: Duration,
    /// The claim whose later requests must not overtake this one, if it may grant or free the key.
    pub(crate) claim: Option<&'a Claim>,
}

/// The pool.
#[derive(Clone)]
pub(crate) struct Calls {
    pool: managed::Pool<Manager>,
    texts: Arc<Texts>,
}

impl Calls {
    pub(crate) fn new(manager: Manager, connections: usize) -> Result<Self> {
        let texts = Arc::clone(&manager.texts);
        // The connection that was used last is the one that is most likely to be alive.
        let builder = managed::Pool::builder(manager).max_size(connections).queue_mode(QueueMode::Lifo);
        let pool = builder.runtime(Runtime::Tokio1).build();
        let pool = pool.map_err(|error| LockError::invalid_options("no pool of this kind").with_source(error))?;
        Ok(Self { pool, texts })
    }

    /// Sends a request and returns the rows of its answer.
    pub(crate) async fn rows(&self, request: &Request<'_>) -> Result<Vec<Row>> {
        let deadline = Instant::now() + request.timeout;
        let connection = self.connection(request.timeout, deadline).await?;
        let connection = match request.claim.and_then(doubtful) {
            None => connection,
            Some(backend) => self.fence(connection, request, backend, deadline).await?,
        };
        let mut under_way = UnderWay { connection: Some(connection), claim: request.claim };
        under_way.query((request.sql, &self.texts), request.params, request.effect, deadline, request.timeout).await
    }

    async fn connection(&self, limit: Duration, deadline: Instant) -> Result<Object<Manager>> {
        let limits = Timeouts { wait: Some(limit), create: Some(limit), recycle: Some(limit) };
        match timeout_at(deadline, self.pool.timeout_get(&limits)).await {
            Ok(Ok(connection)) => Ok(connection),
            Ok(Err(PoolError::Backend(error))) => Err(error::of_connecting(&error)),
            Ok(Err(PoolError::Timeout(_))) | Err(_) => Err(error::not_connected(limit)),
            Ok(Err(other)) => Err(LockError::new(ErrorKind::Other, "the pool failed").with_source(other.to_string())),
        }
    }

    /// Waits until an earlier request of the claim, whose outcome is unknown, has ended. It can
    /// then no longer take effect after the present request.
    async fn fence(
        &self,
        connection: Object<Manager>,
        request: &Request<'_>,
        backend: Backend,
        deadline: Instant,
    ) -> Result<Object<Manager>> {
        let mut fencing = UnderWay { connection: Some(connection), claim: None };
        let params: [&(dyn ToSql + Sync); 2] = [&backend.pid, &backend.started];
        let fenced = fencing.query((Sql::Fence, &self.texts), &params, Effect::None, deadline, request.timeout).await;
        fenced.map_err(error::not_fenced)?;
        if let Some(claim) = request.claim {
            *doubt(claim) = None;
        }
        match fencing.connection.take() {
            Some(connection) => Ok(connection),
            None => self.connection(request.timeout, deadline).await,
        }
    }

    /// Closes the connections that are not in use.
    pub(crate) fn close_idle(&self) {
        let _ = self.pool.retain(|_, _| false);
    }
}

/// The server process of the claim's last request, if the outcome of that is unknown. It is kept in
/// the claim.
#[derive(Debug, Default)]
struct Doubt(Mutex<Option<Backend>>);

fn doubt(claim: &Claim) -> std::sync::MutexGuard<'_, Option<Backend>> {
    claim.state(Doubt::default).0.lock().expect("no code in here panics")
}

fn doubtful(claim: &Claim) -> Option<Backend> {
    *doubt(claim)
}

/// A connection with a request on it. If the request's future is dropped, the connection is closed:
/// the next request would wait for the answer to this one.
struct UnderWay<'a> {
    /// `None` when it is no longer usable.
    connection: Option<Object<Manager>>,
    claim: Option<&'a Claim>,
}

impl UnderWay<'_> {
    /// Sends a statement. The connection stays in `self` if it is still usable.
    async fn query(
        &mut self,
        statement: (Sql, &Texts),
        params: &[&(dyn ToSql + Sync)],
        effect: Effect,
        deadline: Instant,
        limit: Duration,
    ) -> Result<Vec<Row>> {
        let cut_off = CutOff(self);
        let connection = cut_off.0.connection.as_ref().ok_or_else(|| error::not_connected(limit))?;
        // The time limit of the server ends first, and its answer then says that nothing happened.
        let at_server = deadline.saturating_duration_since(Instant::now()).mul_f64(0.9);
        let warnings = connection.warnings();
        let answer = timeout_at(deadline, connection.query(statement, params, at_server)).await;
        let error = match answer {
            Ok(Ok(_)) if effect == Effect::Write && connection.warnings() != warnings => {
                return Err(error::not_replicated());
            }
            Ok(Ok(rows)) => {
                std::mem::forget(cut_off);
                return Ok(rows);
            }
            Ok(Err(error)) => error,
            Err(_) => return Err(error::unanswered(limit, effect)),
        };
        let refused = error::of_request(&error, effect);
        if error::leaves_connection_usable(&error) {
            std::mem::forget(cut_off);
        } else if !refused.is_outcome_unknown() {
            cut_off.0.claim = None;
        }
        Err(refused)
    }
}

/// Closes the connection of a request that was not answered, and records its server process in the
/// claim.
struct CutOff<'a, 'b>(&'a mut UnderWay<'b>);

impl Drop for CutOff<'_, '_> {
    fn drop(&mut self) {
        let Some(connection) = self.0.connection.take() else { return };
        if let Some(claim) = self.0.claim {
            *doubt(claim) = Some(connection.backend());
        }
        Object::take(connection).abort();
    }
}
