//! The Docker engine, the images that it has, and containers that do not outlive their owners.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use testcontainers::bollard::Docker;
use testcontainers::core::client::docker_client_instance;
use testcontainers::runners::AsyncRunner;
use testcontainers::{ContainerAsync, ContainerRequest, GenericImage, ImageExt};
use tokio::time::timeout;

use super::owner;

const ENGINE_LIMIT: Duration = Duration::from_secs(10);
const PULL_LIMIT: Duration = Duration::from_secs(120);
const START_LIMIT: Duration = Duration::from_secs(60);

/// A container that is removed when this is dropped, with or without a Tokio runtime.
pub(super) struct Running(Option<Box<ContainerAsync<GenericImage>>>);

impl Running {
    pub(super) fn container(&self) -> Result<&ContainerAsync<GenericImage>, String> {
        self.0.as_deref().ok_or_else(|| "it is gone".to_owned())
    }

    pub(super) async fn remove(mut self) {
        // On an error the container's own `Drop` tries again.
        if let Some(container) = self.0.take()
            && let Err(error) = (*container).rm().await
        {
            eprintln!("distlock: a container could not be removed: {error}");
        }
    }
}

impl Drop for Running {
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
                // The next test process removes it, see `owner`.
                Err(_) => std::mem::forget(container),
            }
        });
        let _ = removal.join();
    }
}

/// Starts a container of an image that exists or can be pulled. First removes the containers of
/// test processes that have died.
pub(super) async fn start(docker: &Docker, request: ContainerRequest<GenericImage>) -> Result<Running, String> {
    owner::remove_orphans(docker).await;
    let image = request.descriptor();
    ensure_image(docker, &image).await?;
    let container = request.with_labels(owner::labels()).with_startup_timeout(START_LIMIT).start().await;
    let container = container.map_err(|error| format!("a container of {image} does not start: {error}"))?;
    Ok(Running(Some(Box::new(container))))
}

/// Returns the engine that testcontainers finds, if it answers.
pub(super) async fn engine() -> Result<Docker, String> {
    let docker = docker_client_instance().await.map_err(|error| format!("no Docker engine is configured: {error}"))?;
    match timeout(ENGINE_LIMIT, docker.ping()).await {
        Ok(Ok(_)) => Ok(docker),
        Ok(Err(error)) => Err(format!("no Docker engine answers: {error}")),
        Err(_) => Err(format!("no Docker engine answers within {} s", ENGINE_LIMIT.as_secs())),
    }
}

/// Without a reachable registry a pull may hang, so this process does not repeat a failed one.
static NOT_PULLED: Mutex<Vec<(String, String)>> = Mutex::new(Vec::new());

pub(super) async fn ensure_image(docker: &Docker, image: &str) -> Result<(), String> {
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

    let reason = match timeout(PULL_LIMIT, self::image(image).pull_image()).await {
        Ok(Ok(_)) => return Ok(()),
        Ok(Err(error)) => error.to_string(),
        Err(_) => format!("not finished after {} s", PULL_LIMIT.as_secs()),
    };
    let problem = format!("the image {image} does not exist here and cannot be pulled ({reason})");
    let mut failures = NOT_PULLED.lock().unwrap_or_else(PoisonError::into_inner);
    failures.push((image.to_owned(), problem.clone()));
    Err(problem)
}

/// Returns the image for a name with or without a tag, such as `mongo:7.0`. The default tag is
/// `latest`.
pub fn image(name: &str) -> GenericImage {
    let (name, tag) = split(name);
    GenericImage::new(name, tag)
}

/// Splits into name and tag. A colon before the last slash belongs to the port of a registry.
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
