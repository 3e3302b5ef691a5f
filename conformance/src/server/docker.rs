//! Servers in containers, through testcontainers.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use testcontainers::bollard::Docker;
use testcontainers::core::client::docker_client_instance;
use testcontainers::core::{IntoContainerPort, WaitFor};
use testcontainers::runners::AsyncRunner;
use testcontainers::{ContainerAsync, GenericImage, ImageExt};
use tokio::time::timeout;

use super::{COMMON_ARGUMENTS, Topology, owner, replica_set};

const PORT: u16 = 27017;
const ENGINE_LIMIT: Duration = Duration::from_secs(10);
const PULL_LIMIT: Duration = Duration::from_secs(120);
const START_LIMIT: Duration = Duration::from_secs(60);

/// A container that is removed when this is dropped, inside a tokio runtime or not.
pub(super) struct Container(Option<Box<ContainerAsync<GenericImage>>>);

impl Container {
    pub(super) async fn remove(mut self) {
        // On an error the container's own `Drop` tries again.
        if let Some(container) = self.0.take()
            && let Err(error) = (*container).rm().await
        {
            eprintln!("distlock: a MongoDB container could not be removed: {error}");
        }
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        let Some(container) = self.0.take() else { return };
        if tokio::runtime::Handle::try_current().is_ok() {
            drop(container);
            return;
        }
        // The container's own `Drop` panics outside a runtime.
        let removal = std::thread::spawn(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            match runtime {
                Ok(runtime) => runtime.block_on(async { drop(container) }),
                // Left to the next test process, see `owner`.
                Err(_) => std::mem::forget(container),
            }
        });
        let _ = removal.join();
    }
}

/// Starts a server from `image`; returns its connection string as well.
pub(super) async fn start(topology: Topology, image: &str) -> Result<(Container, String), String> {
    let docker = engine().await?;
    owner::remove_orphans(&docker).await;
    ensure_image(&docker, image).await?;

    let (name, tag) = split(image);
    let mut command = vec!["mongod".to_owned(), "--bind_ip_all".to_owned()];
    command.extend(COMMON_ARGUMENTS.map(str::to_owned));
    if topology == Topology::ReplicaSet {
        command.extend(["--replSet".to_owned(), replica_set::NAME.to_owned()]);
    }
    let container = GenericImage::new(name, tag)
        .with_exposed_port(PORT.tcp())
        .with_wait_for(WaitFor::message_on_stdout("Waiting for connections"))
        .with_cmd(command)
        .with_labels(owner::labels())
        .with_startup_timeout(START_LIMIT)
        .start()
        .await
        .map_err(|error| format!("a container of {image} does not start: {error}"))?;
    let container = Container(Some(Box::new(container)));

    match make_ready(&container, topology).await {
        Ok(uri) => Ok((container, uri)),
        Err(problem) => {
            container.remove().await;
            Err(format!("the server in a container of {image} does not get ready: {problem}"))
        }
    }
}

async fn make_ready(container: &Container, topology: Topology) -> Result<String, String> {
    let Some(container) = &container.0 else { return Err("it is gone".to_owned()) };
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

async fn engine() -> Result<Docker, String> {
    let docker = docker_client_instance().await.map_err(|error| format!("no Docker engine is configured: {error}"))?;
    match timeout(ENGINE_LIMIT, docker.ping()).await {
        Ok(Ok(_)) => Ok(docker),
        Ok(Err(error)) => Err(format!("no Docker engine answers: {error}")),
        Err(_) => Err(format!("no Docker engine answers within {} s", ENGINE_LIMIT.as_secs())),
    }
}

/// Where no registry is reachable a pull may hang, so a failed one is not repeated by this process.
static NOT_PULLED: Mutex<Vec<(String, String)>> = Mutex::new(Vec::new());

async fn ensure_image(docker: &Docker, image: &str) -> Result<(), String> {
    if docker.inspect_image(image).await.is_ok() {
        return Ok(());
    }
    let earlier = {
        let failures = NOT_PULLED.lock().unwrap_or_else(PoisonError::into_inner);
        failures.iter().find(|(name, _)| name == image).map(|(_, problem)| problem.clone())
    };
    if let Some(problem) = earlier {
        return Err(problem);
    }

    let (name, tag) = split(image);
    let reason = match timeout(PULL_LIMIT, GenericImage::new(name, tag).pull_image()).await {
        Ok(Ok(_)) => return Ok(()),
        Ok(Err(error)) => error.to_string(),
        Err(_) => format!("no end after {} s", PULL_LIMIT.as_secs()),
    };
    let problem = format!(
        "the image {image} is not there and cannot be pulled ({reason}); \
         scripts/build-mongo-image makes one without a registry"
    );
    let mut failures = NOT_PULLED.lock().unwrap_or_else(PoisonError::into_inner);
    failures.push((image.to_owned(), problem.clone()));
    Err(problem)
}

/// Name and tag. A colon before the last slash belongs to the port of a registry.
fn split(image: &str) -> (&str, &str) {
    match image.rsplit_once(':') {
        Some((name, tag)) if !tag.contains('/') => (name, tag),
        _ => (image, "latest"),
    }
}

#[cfg(test)]
mod tests {
    use super::split;

    #[test]
    fn image_names() {
        assert_eq!(split("mongo:7.0"), ("mongo", "7.0"));
        assert_eq!(split("mongo"), ("mongo", "latest"));
        assert_eq!(split("registry.internal:5000/mongo"), ("registry.internal:5000/mongo", "latest"));
        assert_eq!(split("registry.internal:5000/mongo:7"), ("registry.internal:5000/mongo", "7"));
    }
}
