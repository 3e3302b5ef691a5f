//! The replica set that is measured against.

use std::time::Duration;

use distlock_conformance_mongo::{MongoServer, Topology};
use mongodb::bson::{Bson, Document, doc};
use mongodb::options::{ClientOptions, CollectionOptions, ServerAddress, WriteConcern};
use mongodb::{Client, bson};
use rustix::process::{Pid, Signal, kill_process};
use tokio::time::timeout;

use crate::Outcome;
use crate::clock::{self, Nanos};

/// Members of the set that this program starts. Set in the environment, as [`MongoServer`] wants
/// it.
pub const ENVIRONMENT: [(&str, &str); 2] = [("DISTLOCK_MONGODB_SOURCE", "local"), ("DISTLOCK_MONGODB_NODES", "3")];

const POLL: Duration = Duration::from_millis(5);
const ELECTION_LIMIT: Duration = Duration::from_secs(30);
const HEALTH_POLL: Duration = Duration::from_millis(500);
const HEALTH_LIMIT: Duration = Duration::from_secs(60);

/// A replica set: our own, or one of the user.
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

    /// Uses an existing set.
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
        let Primary { pid, others, .. } = primary(&self.uri).await?;
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

/// Adds options to the address of servers.
pub fn with_options(uri: &str, options: &str) -> String {
    format!("{uri}{}{options}", if uri.contains('?') { '&' } else { '?' })
}

/// The primary of a replica set, as one of its clients sees it.
pub struct Primary {
    /// Host and port.
    pub address: String,
    /// A client of this member alone.
    pub client: Client,
    /// Its process.
    pub pid: Pid,
    /// Clients of each other member alone.
    pub others: Vec<Client>,
}

/// The present primary.
pub async fn primary(uri: &str) -> Outcome<Primary> {
    let any = Client::with_uri_str(uri).await?;
    let set = hello(&any).await?;
    let address = set.get_str("primary")?;
    let client = member(address).await?;
    let pid = process(&client).await?;
    let mut others = Vec::new();
    for host in set.get_array("hosts")?.iter().filter_map(Bson::as_str).filter(|host| *host != address) {
        others.push(member(host).await?);
    }
    Ok(Primary { address: address.to_owned(), client, pid, others })
}

/// The processes of all members, which run on this machine.
pub async fn processes(uri: &str) -> Outcome<Vec<Pid>> {
    let Primary { pid, others, .. } = primary(uri).await?;
    let mut all = vec![pid];
    for other in &others {
        all.push(process(other).await?);
    }
    Ok(all)
}

/// Waits until each member is primary or secondary and a majority takes a write.
pub async fn until_healthy(uri: &str) -> Outcome<()> {
    let deadline = clock::now() + HEALTH_LIMIT.as_nanos() as u64;
    while clock::now() < deadline {
        if matches!(timeout(HEALTH_POLL * 10, is_healthy(uri)).await, Ok(Ok(true))) {
            return Ok(());
        }
        tokio::time::sleep(HEALTH_POLL).await;
    }
    Err(format!("the replica set is not healthy after {} s", HEALTH_LIMIT.as_secs()).into())
}

async fn is_healthy(uri: &str) -> Outcome<bool> {
    let client = Client::with_uri_str(uri).await?;
    let status = client.database("admin").run_command(doc! { "replSetGetStatus": 1 }).await?;
    let mut members = status.get_array("members")?.iter().filter_map(Bson::as_document);
    let is_well = |member: &Document| matches!(member.get_str("stateStr"), Ok("PRIMARY" | "SECONDARY"));
    if !members.all(is_well) {
        return Ok(false);
    }
    let options = CollectionOptions::builder().write_concern(WriteConcern::majority()).build();
    let probes = client.database("bench_health").collection_with_options::<Document>("probes", options);
    probes.update_one(doc! { "_id": 1 }, doc! { "$inc": { "probes": 1 } }).upsert(true).await?;
    Ok(true)
}

/// The process of a member.
async fn process(member: &Client) -> Outcome<Pid> {
    let status = member.database("admin").run_command(doc! { "serverStatus": 1 }).await?;
    let pid = status.get("pid").and_then(as_i32).and_then(Pid::from_raw);
    pid.ok_or_else(|| "the server has no process id".into())
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

/// `serverStatus` reports process ids as 64-bit numbers.
fn as_i32(value: &Bson) -> Option<i32> {
    value.as_i32().or_else(|| i32::try_from(value.as_i64()?).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_added_to_those_there_are() {
        assert_eq!(with_options("mongodb://h/?replicaSet=rs0", "a=1"), "mongodb://h/?replicaSet=rs0&a=1");
        assert_eq!(with_options("mongodb://h/", "a=1&b=2"), "mongodb://h/?a=1&b=2");
    }
}
