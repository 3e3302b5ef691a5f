//! Removes containers that outlived a killed test process, when the next one starts.
//!
//! Every container has labels that identify its owner process. A container is an orphan only if its
//! owner would be visible from here (same boot, process namespace and user) and does not exist.

use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;

use testcontainers::bollard::Docker;
use testcontainers::bollard::query_parameters::{ListContainersOptionsBuilder, RemoveContainerOptionsBuilder};

use crate::process::start_time;

const MARK: &str = "distlock.test";
const VIEW: &str = "distlock.test.view";
const PID: &str = "distlock.test.pid";
const STARTED: &str = "distlock.test.started";

/// Returns the labels for a container that belongs to this process.
pub(super) fn labels() -> Vec<(&'static str, String)> {
    let mut labels = vec![(MARK, "1".to_owned())];
    let pid = std::process::id();
    if let (Some(view), Some(started)) = (view(), start_time(pid)) {
        labels.extend([(VIEW, view), (PID, pid.to_string()), (STARTED, started)]);
    }
    labels
}

/// Removes the containers whose owner has died. The next run repeats what fails.
pub(super) async fn remove_orphans(docker: &Docker) {
    let Some(view) = view() else { return };
    let filters = HashMap::from([("label".to_owned(), vec![format!("{MARK}=1"), format!("{VIEW}={view}")])]);
    let options = ListContainersOptionsBuilder::new().all(true).filters(&filters).build();
    let Ok(containers) = docker.list_containers(Some(options)).await else { return };
    for container in containers {
        let (Some(id), Some(labels)) = (container.id, container.labels) else { continue };
        if !owner_is_gone(&labels) {
            continue;
        }
        let options = RemoveContainerOptionsBuilder::new().force(true).v(true).build();
        match docker.remove_container(&id, Some(options)).await {
            Ok(()) => eprintln!("distlock: removed a container whose test process had died: {id:.12}"),
            Err(error) => tracing::debug!(%error, id, "orphaned container not removed"),
        }
    }
}

fn owner_is_gone(labels: &HashMap<String, String>) -> bool {
    let (Some(pid), Some(started)) = (labels.get(PID), labels.get(STARTED)) else { return false };
    let Ok(pid) = pid.parse() else { return false };
    start_time(pid).as_ref() != Some(started)
}

/// Returns which processes are visible to this one: boot, process namespace, and user, because
/// `/proc` may hide the processes of other users. `None` without `/proc`.
fn view() -> Option<String> {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let namespace = std::fs::read_link("/proc/self/ns/pid").ok()?;
    let user = std::fs::metadata("/proc/self").ok()?.uid();
    Some(format!("{}/{}/{user}", boot.trim(), namespace.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_containers_of_the_dead_are_orphans() {
        let own: HashMap<_, _> = labels().into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        assert!(!owner_is_gone(&own));

        let mut recycled = own.clone();
        recycled.insert(STARTED.to_owned(), "0".to_owned());
        assert!(owner_is_gone(&recycled));

        let mut anonymous = own;
        anonymous.remove(PID);
        assert!(!owner_is_gone(&anonymous));
    }
}
