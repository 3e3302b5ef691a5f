//! A disposable server for faults: it can be killed, stopped or cut off, and its records locked.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use distlock_api::LockKey;
use distlock_conformance::{Fault, FixtureError, TcpArena, TcpServer, async_trait};
use distlock_example_postgres::tokio_postgres::{self, Client, NoTls};
use tokio::sync::Mutex;
use tokio::time::{sleep, timeout};

use crate::server::Server;

const LIMIT: Duration = Duration::from_secs(20);

/// Starts one server and one proxy, which all clients use. The address is the schema and a
/// connection string.
pub(crate) async fn start(schema: &str) -> Result<TcpArena, FixtureError> {
    let server = Server::start_local().await?;
    let (uri, of) = (server.uri.clone(), schema.to_owned());
    let at = address(&server)?;
    let through = |proxy: SocketAddr| format!("{of} {}", uri.replace(&at.to_string(), &proxy.to_string()));
    let arena = TcpArena::new(server, through).await?;
    let (locking, locked) = (uri.clone(), of.clone());
    let purge = format!("SELECT {of}.purge_keys(array_agg(key), 0)::text FROM {of}.lease");
    Ok(arena.block(move |key| Arc::new(Locked::new(&locking, &locked, key))).age_records(move || {
        let (uri, purge) = (uri.clone(), purge.clone());
        async move { Ok(format!("{} records were removed", query(&uri, &purge).await?)) }
    }))
}

fn address(server: &Server) -> Result<SocketAddr, FixtureError> {
    let address = server.uri.split(['@', '/']).find_map(|part| part.parse().ok());
    address.ok_or_else(|| "no address in the URI".into())
}

/// The answer to one query, which does not pass through the proxy.
async fn query(uri: &str, query: &str) -> Result<String, FixtureError> {
    let querying = async {
        let client = connect(uri).await?;
        Ok::<_, FixtureError>(client.query_one(query, &[]).await?.try_get(0)?)
    };
    timeout(LIMIT, querying).await?
}

/// A connection that ends when the client is dropped.
async fn connect(uri: &str) -> Result<Client, FixtureError> {
    let (client, connection) = tokio_postgres::connect(uri, NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

#[async_trait]
impl TcpServer for Server {
    fn address(&self) -> SocketAddr {
        address(self).expect("looked at before")
    }

    async fn start(&self) -> Result<(), FixtureError> {
        self.run().await
    }

    async fn kill(&self) -> Result<(), FixtureError> {
        signalled(self, "KILL", None).await
    }

    async fn pause(&self) -> Result<(), FixtureError> {
        signalled(self, "STOP", Some('T')).await
    }

    async fn resume(&self) -> Result<(), FixtureError> {
        self.send("CONT")
    }

    async fn health_check(&self) -> Result<(), FixtureError> {
        query(&self.uri, "SELECT 'well'").await.map(drop)
    }

    /// Does nothing: the server ends when it is dropped.
    async fn stop(&self) {}
}

/// Signals all processes of the server, and waits until the first one is in the given state. A busy
/// machine delivers signals late.
async fn signalled(server: &Server, signal: &str, state: Option<char>) -> Result<(), FixtureError> {
    server.send(signal)?;
    let is_so = async {
        while server.state() != state {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(LIMIT, is_so).await.map_err(|_| format!("the server continues after SIG{signal}").into())
}

/// A transaction that has locked a key's record.
struct Locked {
    uri: String,
    lock: String,
    key: LockKey,
    holder: Mutex<Option<Client>>,
}

impl Locked {
    fn new(uri: &str, schema: &str, key: &LockKey) -> Self {
        let lock = format!("SELECT 1 FROM {schema}.lease WHERE key = $1 FOR UPDATE");
        Self { uri: uri.to_owned(), lock, key: key.clone(), holder: Mutex::default() }
    }
}

#[async_trait]
impl Fault for Locked {
    fn kind(&self) -> &'static str {
        "locked-record"
    }

    async fn begin(&self) -> Result<(), FixtureError> {
        let client = connect(&self.uri).await?;
        client.batch_execute("BEGIN").await?;
        client.query_one(&self.lock, &[&self.key.as_str().as_bytes()]).await?;
        *self.holder.lock().await = Some(client);
        Ok(())
    }

    async fn end(&self) -> Result<String, FixtureError> {
        let client = self.holder.lock().await.take().ok_or("it was not begun")?;
        client.batch_execute("ROLLBACK").await?;
        Ok(format!("the record of {:?} was locked", self.key))
    }
}
