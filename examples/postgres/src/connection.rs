//! One connection: how it is opened, and the settings of its session.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use distlock_api::async_trait;
use futures_util::future::{join, try_join_all};
use tokio::sync::{OnceCell, mpsc};
use tokio::task::AbortHandle;
use tokio_postgres::error::SqlState;
use tokio_postgres::tls::{MakeTlsConnect, TlsConnect};
use tokio_postgres::types::ToSql;
use tokio_postgres::{AsyncMessage, Client, Config, Error, Notification, Row, Socket, Statement};

use crate::statement::{HOT, Sql, Texts};

/// The settings of every session, whatever the defaults of the role, database or server are.
///
/// * A commit returns when it is on disk. The stronger setting `remote_apply` is kept.
/// * Requests wait for row locks and then see what was committed meanwhile: READ COMMITTED.
/// * The search path is empty, because all names contain their schemas.
const SESSION: &str = "SET search_path = ''; SET default_transaction_isolation = 'read committed'; \
                       SET jit = off; SET lock_timeout = 0; SET client_min_messages = warning; \
                       SELECT set_config('synchronous_commit', 'on', false) \
                       WHERE current_setting('synchronous_commit') NOT IN ('on', 'remote_apply')";
const SERVER_PROCESS: &str = "SELECT pid, (extract(epoch FROM backend_start) * 1000000)::bigint \
                   FROM pg_stat_activity WHERE pid = pg_backend_pid()";

/// Opens connections, with TLS or without.
#[async_trait]
pub(crate) trait Dial: Send + Sync {
    async fn dial(&self, config: &Config, events: Option<Events>) -> Result<Dialled, Error>;
}

/// A connection, with a task that reads what the server sends.
pub(crate) struct Dialled {
    pub(crate) client: Client,
    pub(crate) driver: AbortHandle,
    /// How many warnings without a code of their own the server has sent.
    warnings: Arc<AtomicU64>,
}

/// Where the notifications of a connection go.
#[derive(Debug)]
pub(crate) struct Events {
    pub(crate) sender: mpsc::Sender<Received>,
}

/// What a connection for events has received.
#[derive(Debug)]
pub(crate) enum Received {
    Notification(Notification),
    /// Its connection failed.
    Failed(Error),
}

/// A [`Dial`] with this kind of TLS.
pub(crate) struct Tls<T>(pub(crate) T);

#[async_trait]
impl<T> Dial for Tls<T>
where
    T: MakeTlsConnect<Socket> + Clone + Send + Sync + 'static,
    T::Stream: Send,
    T::TlsConnect: Send,
    <T::TlsConnect as TlsConnect<Socket>>::Future: Send,
{
    async fn dial(&self, config: &Config, events: Option<Events>) -> Result<Dialled, Error> {
        let warnings = Arc::<AtomicU64>::default();
        let counter = Arc::clone(&warnings);
        let (client, mut connection) = config.connect(self.0.clone()).await?;
        // Ends when the client is dropped and everything has been answered.
        let driver = tokio::spawn(async move {
            let warnings = counter;
            while let Some(message) = poll_fn(|cx| connection.poll_message(cx)).await {
                let received = match message {
                    Ok(AsyncMessage::Notification(notification)) => Received::Notification(notification),
                    Ok(AsyncMessage::Notice(notice)) => {
                        tracing::warn!(severity = notice.severity(), message = notice.message(), "PostgreSQL warns");
                        if notice.code() == &SqlState::WARNING {
                            warnings.fetch_add(1, Ordering::Relaxed);
                        }
                        continue;
                    }
                    Ok(_) => continue,
                    Err(error) => Received::Failed(error),
                };
                if let Some(events) = &events
                    && events.sender.send(received).await.is_err()
                {
                    return;
                }
            }
        });
        Ok(Dialled { client, driver: driver.abort_handle(), warnings })
    }
}

/// A server process. Its start distinguishes it from a later process with the same id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Backend {
    pub(crate) pid: i32,
    pub(crate) started: i64,
}

/// A connection for requests.
pub(crate) struct Connection {
    dialled: Dialled,
    backend: Backend,
    statements: [OnceCell<Statement>; Sql::COUNT],
    /// The session's `statement_timeout`, in milliseconds.
    limit: AtomicU64,
}

impl Connection {
    pub(crate) async fn open(dial: &dyn Dial, config: &Config, texts: &Texts) -> Result<Self, Error> {
        let dialled = session(dial, config, None).await?;
        let process = dialled.client.query_one(SERVER_PROCESS, &[]).await?;
        let backend = Backend { pid: process.try_get(0)?, started: process.try_get(1)? };
        let statements = std::array::from_fn(|_| OnceCell::new());
        let connection = Self { dialled, backend, statements, limit: AtomicU64::new(0) };
        try_join_all(HOT.into_iter().map(|sql| connection.statement(sql, texts))).await?;
        Ok(connection)
    }

    pub(crate) fn backend(&self) -> Backend {
        self.backend
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.dialled.client.is_closed()
    }

    /// Closes the connection even if it waits for an answer. The server finishes what it has begun.
    pub(crate) fn abort(self) {
        self.dialled.driver.abort();
    }

    /// How many warnings the server has sent. A warning during a commit means that the wait for a
    /// synchronous standby was cancelled. The server reports success, but the standby may not have
    /// the commit.
    pub(crate) fn warnings(&self) -> u64 {
        self.dialled.warnings.load(Ordering::Relaxed)
    }

    async fn statement(&self, sql: Sql, texts: &Texts) -> Result<&Statement, Error> {
        self.statements[sql as usize].get_or_try_init(|| self.dialled.client.prepare(texts.get(sql))).await
    }

    /// Sends one statement, which the server cancels after about `limit`.
    pub(crate) async fn query(
        &self,
        (sql, texts): (Sql, &Texts),
        params: &[&(dyn ToSql + Sync)],
        limit: Duration,
    ) -> Result<Vec<Row>, Error> {
        let statement = self.statement(sql, texts).await?;
        let client = &self.dialled.client;
        let Some(millis) = new_limit(self.limit.load(Ordering::Relaxed), limit) else {
            return client.query(statement, params).await;
        };
        // Both are sent together, without a round trip of its own.
        let setting = format!("SET statement_timeout = {millis}");
        let (set, rows) = join(client.batch_execute(&setting), client.query(statement, params)).await;
        if set.is_ok() {
            self.limit.store(millis, Ordering::Relaxed);
        }
        rows
    }
}

/// The setting for a limit; `None` if the present one is near enough.
fn new_limit(present: u64, limit: Duration) -> Option<u64> {
    let millis = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX).clamp(1, i32::MAX as u64);
    (present > millis || present < millis - millis / 5).then_some(millis)
}

/// Opens a connection and sets up its session.
pub(crate) async fn session(dial: &dyn Dial, config: &Config, events: Option<Events>) -> Result<Dialled, Error> {
    let dialled = dial.dial(config, events).await?;
    dialled.client.batch_execute(SESSION).await?;
    Ok(dialled)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_set_again_when_it_is_too_long_or_much_too_short() {
        let limit = Duration::from_millis(1000);
        assert_eq!(new_limit(0, limit), Some(1000));
        assert_eq!(new_limit(1001, limit), Some(1000));
        assert_eq!(new_limit(1000, limit), None);
        assert_eq!(new_limit(800, limit), None);
        assert_eq!(new_limit(799, limit), Some(1000));
        assert_eq!(new_limit(0, Duration::ZERO), Some(1), "zero would mean no limit");
        assert_eq!(new_limit(0, Duration::MAX), Some(i32::MAX as u64));
    }
}
