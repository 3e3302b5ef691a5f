//! Servers in containers, through testcontainers.

use testcontainers::core::{IntoContainerPort, WaitFor};
use testcontainers::{GenericImage, ImageExt};

use super::{COMMON_ARGUMENTS, Topology, replica_set};
use crate::container::engine::{Running, engine, split, start as start_container};

const PORT: u16 = 27017;

/// Starts a server from `image`; returns its connection string as well.
pub(super) async fn start(topology: Topology, image: &str) -> Result<(Running, String), String> {
    let (name, tag) = split(image);
    let mut command = vec!["mongod".to_owned(), "--bind_ip_all".to_owned()];
    command.extend(COMMON_ARGUMENTS.map(str::to_owned));
    if topology == Topology::ReplicaSet {
        command.extend(["--replSet".to_owned(), replica_set::NAME.to_owned()]);
    }
    let request = GenericImage::new(name, tag)
        .with_exposed_port(PORT.tcp())
        .with_wait_for(WaitFor::message_on_stdout("Waiting for connections"))
        .with_cmd(command);
    let hint = |problem| format!("{problem}; scripts/build-mongo-image makes an image without a registry");
    let container = start_container(&engine().await?, request).await.map_err(hint)?;

    match make_ready(&container, topology).await {
        Ok(uri) => Ok((container, uri)),
        Err(problem) => {
            container.remove().await;
            Err(format!("the server in a container of {image} does not get ready: {problem}"))
        }
    }
}

async fn make_ready(running: &Running, topology: Topology) -> Result<String, String> {
    let container = running.container()?;
    let host = container.get_host().await.map_err(|error| error.to_string())?;
    let port = container.get_host_port_ipv4(PORT).await.map_err(|error| error.to_string())?;
    let uri = replica_set::direct_uri(&format!("{host}:{port}"));
    if topology == Topology::ReplicaSet {
        let client = replica_set::client(&uri).await?;
        // The member's address is the one inside the container: clients connect directly.
        let ready = async {
            replica_set::initiate(&client, &[format!("localhost:{PORT}")]).await?;
            replica_set::wait_until_writable(&client).await
        };
        let ready = ready.await;
        client.shutdown().await;
        ready?;
    }
    Ok(uri)
}
