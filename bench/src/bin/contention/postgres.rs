//! The PostgreSQL server of the contenders that use PostgreSQL, and connections to it by hand.

// The finder of the example's tests: the only place that decides where a server comes from.
#[path = "../../../../examples/postgres/tests/server/mod.rs"]
mod server;

use std::future::poll_fn;

use distlock_example_postgres::tokio_postgres::{self, AsyncMessage, Client, NoTls};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use self::server::Server;
use crate::Outcome;

/// Removes what an earlier run left on a server of the user's, and makes the tables of the raw
/// driver. The store makes its own.
const PREPARE: &str = "
    DROP SCHEMA IF EXISTS bench_distlock CASCADE;
    DROP SCHEMA IF EXISTS bench_raw CASCADE;
    CREATE SCHEMA bench_raw;
    CREATE TABLE bench_raw.lock (key text PRIMARY KEY, holder bigint, acquired_at timestamptz NOT NULL);
    CREATE TABLE bench_raw.relay (key text PRIMARY KEY, number bigint NOT NULL);
    CREATE TABLE bench_raw.queued (key text, place bigint, number bigint NOT NULL, PRIMARY KEY (key, place));
";
const DESCRIBE: &str = "SELECT current_setting('server_version'), current_setting('fsync'), \
                        current_setting('synchronous_commit')";

/// A server: our own, or one of the user.
pub struct Postgres {
    server: Server,
    description: String,
}

impl Postgres {
    /// Takes the server that `DISTLOCK_POSTGRES_URI` names, else starts a process of this machine.
    /// Never a container, whose network would be measured, too.
    pub async fn start() -> Outcome<Self> {
        let is_given = std::env::var_os("DISTLOCK_POSTGRES_URI").is_some();
        let server = if is_given { Server::start().await? } else { Server::start_local().await? };
        let client = connect(&server.uri).await?;
        client.batch_execute(PREPARE).await?;
        let row = client.query_one(DESCRIBE, &[]).await?;
        let [version, fsync, commit] = [row.try_get::<_, &str>(0)?, row.try_get(1)?, row.try_get(2)?];
        // Distributors add the version of their package.
        let version = version.split(' ').next().unwrap_or_default();
        let description = format!("{version}, fsync {fsync}, synchronous_commit {commit}");
        Ok(Self { server, description })
    }

    /// For clients.
    pub fn uri(&self) -> &str {
        &self.server.uri
    }

    /// Version and durability.
    pub fn description(&self) -> &str {
        &self.description
    }

    /// Ends a server of our own.
    pub fn stop(self) {
        self.server.stop();
    }
}

/// A connection, which ends when the client is dropped.
pub async fn connect(uri: &str) -> Outcome<Client> {
    let (client, connection) = tokio_postgres::connect(uri, NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

/// A connection that listens on a channel.
pub struct Listener {
    /// The connection lives as long as this.
    _client: Client,
    payloads: UnboundedReceiver<String>,
}

impl Listener {
    pub async fn open(uri: &str, channel: &str) -> Outcome<Self> {
        let (client, mut connection) = tokio_postgres::connect(uri, NoTls).await?;
        let (sender, payloads) = unbounded_channel();
        tokio::spawn(async move {
            while let Some(Ok(message)) = poll_fn(|cx| connection.poll_message(cx)).await {
                if let AsyncMessage::Notification(event) = message
                    && sender.send(event.payload().to_owned()).is_err()
                {
                    return;
                }
            }
        });
        client.batch_execute(&format!("LISTEN \"{channel}\"")).await?;
        Ok(Self { _client: client, payloads })
    }

    /// The payload of the next notification.
    pub async fn next(&mut self) -> Outcome<String> {
        self.payloads.recv().await.ok_or_else(|| "the connection that listens has ended".into())
    }
}
