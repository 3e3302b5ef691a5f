//! The replica set that is measured against.

use std::time::Duration;

use distlock_conformance::server::{MongoServer, Topology};
use mongodb::bson::{Bson, Document, doc};
use mongodb::options::{ClientOptions, ServerAddress};
use mongodb::{Client, bson};
use rustix::process::{Pid, Signal, kill_process};

use crate::Outcome;
use crate::clock::{self, Nanos};

/// Members of the set that this program starts. Set in the environment, as [`MongoServer`] wants it.
pub const ENVIRONMENT: [(&str, &str); 2] = [("DISTLOCK_MONGODB_SOURCE", "local"), ("DISTLOCK_MONGODB_NODES", "3")];

const POLL: Duration = Duration::from_millis(5);
const ELECTION_LIMIT: Duration = Duration::from_secs(30);

/// A replica set, our own or somebody's.
pub struct Deployment {
    server: Option<MongoServer>,
    uri: String,
}

impl Deployment {
    /// Starts three processes of our own.
    pub async fn start() -> Outcome<Self> {
        let server = MongoServer::start(Topology::ReplicaSet).await?;
        Ok(Self { uri: server.uri().to_owned(), server: Some(server) })
    }

    /// Uses a set that is there.
    pub fn given(uri: String) -> Self {
        Self { server: None, uri }
    }

    /// For clients.
    pub fn uri(&self) -> &str {
        &self.uri
    }

    /// Version and number of members.
    pub async fn describe(&self) -> Outcome<(String, usize)> {
        let client = Client::with_uri_str(&self.uri).await?;
        let info = client.database("admin").run_command(doc! { "buildInfo": 1 }).await?;
        let members = hello(&client).await?.get_array("hosts").map_or(0, Vec::len);
        Ok((info.get_str("version")?.to_owned(), members))
    }

    /// When the lease in a record expires, on our clock.
    pub async fn expiry(&self, database: &str, collection: &str, key: &str) -> Outcome<Nanos> {
        let client = Client::with_uri_str(&self.uri).await?;
        let records = client.database(database).collection::<Document>(collection);
        let record = records.find_one(doc! { "_id": key }).await?.ok_or("there is no record of the lock")?;
        Ok(clock::from_wall_millis(record.get_datetime("expiresAt")?.timestamp_millis()))
    }

    /// Removes what earlier rounds left.
    pub async fn drop_database(&self, name: &str) -> Outcome<()> {
        Ok(Client::with_uri_str(&self.uri).await?.database(name).drop().await?)
    }

    /// Kills the primary and returns when that was, and when another member took its place.
    pub async fn kill_primary(&self) -> Outcome<(Nanos, Nanos)> {
        if self.server.is_none() {
            return Err("only a primary that this program has started is killed".into());
        }
        let any = Client::with_uri_str(&self.uri).await?;
        let primary = hello(&any).await?.get_str("primary")?.to_owned();
        let status = member(&primary).await?.database("admin").run_command(doc! { "serverStatus": 1 }).await?;
        let pid = status.get("pid").and_then(as_i32).and_then(Pid::from_raw).ok_or("the server has no process id")?;
        let mut others = Vec::new();
        for host in hello(&any).await?.get_array("hosts")?.iter().filter_map(Bson::as_str) {
            if host != primary {
                others.push(member(host).await?);
            }
        }
        kill_process(pid, Signal::KILL)?;
        let killed = clock::now();
        while clock::now() < killed + ELECTION_LIMIT.as_nanos() as u64 {
            for other in &others {
                let writable =
                    hello(other).await.is_ok_and(|hello| hello.get_bool("isWritablePrimary").unwrap_or(false));
                if writable {
                    return Ok((killed, clock::now()));
                }
            }
            tokio::time::sleep(POLL).await;
        }
        Err("no other member became primary".into())
    }

    /// Ends a set of our own.
    pub async fn stop(self) {
        if let Some(server) = self.server {
            server.stop().await;
        }
    }
}

async fn hello(client: &Client) -> Outcome<bson::Document> {
    Ok(client.database("admin").run_command(doc! { "hello": 1 }).await?)
}

/// A client of one member, whatever its role.
async fn member(address: &str) -> Outcome<Client> {
    let options = ClientOptions::builder()
        .hosts(vec![ServerAddress::parse(address)?])
        .direct_connection(true)
        .server_selection_timeout(Duration::from_secs(2))
        .build();
    Ok(Client::with_options(options)?)
}

/// `serverStatus` tells process ids as 64-bit numbers.
fn as_i32(value: &Bson) -> Option<i32> {
    value.as_i32().or_else(|| i32::try_from(value.as_i64()?).ok())
}
