//! Sets up a new server: `hello`, initiation, and the wait until a replica set accepts writes.

use std::time::Duration;

use mongodb::Client;
use mongodb::bson::{Bson, Document, doc};
use tokio::time::{Instant, sleep};

use crate::topology::Topology;

/// The name of every replica set that this module starts.
pub(crate) const NAME: &str = "rs0";
/// For the connection strings that are returned: short, so that a dead server fails a test soon.
pub(super) const SELECTION_TIMEOUT_MS: u32 = 10_000;

const ELECTION_LIMIT: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(50);
/// The default of 10 s makes the first election of three members take as long.
const ELECTION_TIMEOUT_MS: i32 = 2_000;
/// How long a new primary waits for a member that is frozen before it accepts writes. The default
/// is 10 s.
const HEARTBEAT_TIMEOUT_SECS: i32 = 2;

/// Returns the connection string of one server, independent of the server's configured address.
pub(crate) fn direct_uri(address: &str) -> String {
    format!("mongodb://{address}/?directConnection=true&serverSelectionTimeoutMS={SELECTION_TIMEOUT_MS}")
}

/// Returns the connection string of a replica set whose members are reachable under their
/// configured addresses.
pub(crate) fn set_uri(addresses: &[String]) -> String {
    format!("mongodb://{}/?replicaSet={NAME}&serverSelectionTimeoutMS={SELECTION_TIMEOUT_MS}", addresses.join(","))
}

/// Makes a client for a connection string of this module, which contains no credentials.
pub(super) async fn client(uri: &str) -> Result<Client, String> {
    Client::with_uri_str(uri).await.map_err(|error| error.kind.to_string())
}

pub(super) async fn admin(client: &Client, command: Document) -> Result<Document, String> {
    client.database("admin").run_command(command).await.map_err(|error| error.kind.to_string())
}

/// Checks that a reply to `hello` is from a server of this topology. The error names the actual
/// kind.
pub(super) fn expect_topology(hello: &Document, topology: Topology) -> Result<(), String> {
    let mongos = hello.get_str("msg").is_ok_and(|message| message == "isdbgrid");
    let found = match (mongos, hello.contains_key("setName")) {
        (true, _) => return Err("it is the router of a sharded cluster".to_owned()),
        (false, true) => Topology::ReplicaSet,
        (false, false) => Topology::Standalone,
    };
    if found != topology {
        return Err(format!("it is a {found}"));
    }
    Ok(())
}

/// Initiates a replica set. `client` is connected only to the first member; `members` are the
/// addresses by which the members reach each other.
pub(crate) async fn initiate(client: &Client, members: &[String]) -> Result<(), String> {
    let hosts: Vec<Bson> =
        members.iter().zip(0_i32..).map(|(host, id)| doc! { "_id": id, "host": host }.into()).collect();
    let config = doc! {
        "_id": NAME,
        "members": hosts,
        "settings": { "electionTimeoutMillis": ELECTION_TIMEOUT_MS, "heartbeatTimeoutSecs": HEARTBEAT_TIMEOUT_SECS },
    };
    admin(client, doc! { "replSetInitiate": config }).await.map(drop)
}

/// Waits until the primary accepts writes and every other member has caught up. The commands of
/// `client` must reach the primary once there is one.
pub(crate) async fn wait_until_writable(client: &Client) -> Result<(), String> {
    wait(client, Ready::Set).await
}

/// Waits until the member of `client` is the primary and accepts writes. Needs no privilege.
pub(super) async fn wait_until_primary(client: &Client) -> Result<(), String> {
    wait(client, Ready::Primary).await
}

/// What must be ready.
#[derive(Clone, Copy)]
enum Ready {
    Primary,
    Set,
}

async fn wait(client: &Client, ready: Ready) -> Result<(), String> {
    let deadline = Instant::now() + ELECTION_LIMIT;
    loop {
        let answer = match ready {
            Ready::Primary => primary(client).await,
            Ready::Set => writable(client).await,
        };
        let Err(state) = answer else { return Ok(()) };
        if Instant::now() > deadline {
            let seconds = ELECTION_LIMIT.as_secs();
            return Err(format!("the replica set accepts no writes after {seconds} s: {state}"));
        }
        sleep(POLL).await;
    }
}

async fn primary(client: &Client) -> Result<(), String> {
    // A new primary that is still catching up refuses writes.
    let hello = admin(client, doc! { "hello": 1 }).await?;
    if hello.get_bool("isWritablePrimary").unwrap_or(false) {
        Ok(())
    } else {
        Err("there is no writable primary".to_owned())
    }
}

async fn writable(client: &Client) -> Result<(), String> {
    primary(client).await?;
    let status = admin(client, doc! { "replSetGetStatus": 1 }).await?;
    let members = status.get_array("members").map_err(|error| error.to_string())?;
    let states: Vec<&str> =
        members.iter().filter_map(Bson::as_document).filter_map(|member| member.get_str("stateStr").ok()).collect();
    if states.iter().all(|state| matches!(*state, "PRIMARY" | "SECONDARY")) {
        Ok(())
    } else {
        Err(format!("its members are {states:?}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topology_is_read_from_hello() {
        let set = doc! { "setName": "rs0", "isWritablePrimary": true };
        let alone = doc! { "isWritablePrimary": true };
        let router = doc! { "msg": "isdbgrid" };
        assert_eq!(expect_topology(&set, Topology::ReplicaSet), Ok(()));
        assert_eq!(expect_topology(&alone, Topology::Standalone), Ok(()));
        assert!(expect_topology(&set, Topology::Standalone).is_err());
        assert!(expect_topology(&alone, Topology::ReplicaSet).is_err());
        assert!(expect_topology(&router, Topology::ReplicaSet).is_err());
        assert!(expect_topology(&router, Topology::Standalone).is_err());
    }

    #[test]
    fn uris() {
        let direct = direct_uri("127.0.0.1:1");
        assert!(direct.contains("directConnection=true") && direct.ends_with("TimeoutMS=10000"));
        let set = set_uri(&["a:1".to_owned(), "b:2".to_owned()]);
        assert!(set.starts_with("mongodb://a:1,b:2/?replicaSet=rs0&"), "{set}");
    }
}
