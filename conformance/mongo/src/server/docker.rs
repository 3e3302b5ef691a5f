//! Servers in containers, through testcontainers.

use std::future::ready;

use distlock_conformance::container::{self, Service};
use distlock_conformance::testcontainers::ImageExt;
use distlock_conformance::testcontainers::core::{IntoContainerPort, Mount, WaitFor};

use super::mongod::COMMON_ARGUMENTS;
use super::replica_set;
use crate::topology::Topology;

const PORT: u16 = 27017;
/// Where the server has its data, by default.
const DATA: &str = "/data/db";

/// Starts a server from `image`. Also returns its connection string.
pub(super) async fn start(topology: Topology, image: &str) -> Result<(Service, String), String> {
    let mut command = vec!["mongod".to_owned(), "--bind_ip_all".to_owned()];
    command.extend(COMMON_ARGUMENTS.map(str::to_owned));
    if topology == Topology::ReplicaSet {
        command.extend(["--replSet".to_owned(), replica_set::NAME.to_owned()]);
    }
    let request = container::image(image)
        .with_exposed_port(PORT.tcp())
        .with_wait_for(WaitFor::message_on_stdout("Waiting for connections"))
        .with_cmd(command)
        // In memory, for the reason that `fetch::memory_dir` gives.
        .with_mount(Mount::tmpfs_mount(DATA));
    let hint =
        |problem| format!("{problem}; if no registry is reachable, build an image with scripts/build-mongo-image");
    // The server reports in its log that it is ready.
    let service = Service::start(request, PORT, |_| ready(Ok(()))).await.map_err(hint)?;

    match make_ready(&service.address(), topology).await {
        Ok(uri) => Ok((service, uri)),
        Err(problem) => {
            service.stop().await;
            Err(format!("the server in a container of {image} does not become ready: {problem}"))
        }
    }
}

async fn make_ready(address: &str, topology: Topology) -> Result<String, String> {
    let uri = replica_set::direct_uri(address);
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
