//! The user's own server.

use std::time::Duration;

use mongodb::Client;
use mongodb::bson::doc;
use mongodb::options::ClientOptions;

use super::replica_set;
use crate::topology::Topology;

/// Checks that the server is reachable and is a `topology`. Returns its hosts, without credentials.
pub(super) async fn verify(uri: &str, topology: Topology) -> Result<String, String> {
    // The driver's message is dropped on purpose: it may quote the connection string.
    let mut options = ClientOptions::parse(uri)
        .await
        .map_err(|_| "it is not a connection string that the driver understands".to_owned())?;
    let hosts: Vec<_> = options.hosts.iter().map(ToString::to_string).collect();
    let timeout = Duration::from_millis(replica_set::SELECTION_TIMEOUT_MS.into());
    options.server_selection_timeout.get_or_insert(timeout);

    let client = Client::with_options(options)
        .map_err(|_| "the driver does not accept the options of its connection string".to_owned())?;
    let hello = replica_set::admin(&client, doc! { "hello": 1 }).await;
    client.shutdown().await;
    replica_set::expect_topology(&hello?, topology)?;
    Ok(hosts.join(","))
}
