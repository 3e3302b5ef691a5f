//! The keeper of a shared server: another process of this program, in the background. It starts the
//! server, writes its address into a file, and stops it when the run's runner has ended.

use std::fs;
use std::process::ExitCode;

use distlock_conformance::process;
use tokio::time::sleep;

use crate::server::MongoServer;
use crate::shared::{Job, POLL, Place, file};
use crate::topology::Topology;

/// Does the job of a keeper.
pub(crate) fn keep(job: &str) -> ExitCode {
    let Ok(job) = serde_json::from_str::<Job>(job) else { return ExitCode::FAILURE };
    let topologies = [Topology::ReplicaSet, Topology::Standalone];
    let topology = topologies.into_iter().find(|topology| topology.to_string() == job.topology);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let (Some(topology), Ok(runtime)) = (topology, runtime) else { return ExitCode::FAILURE };
    let kept = runtime.block_on(keep_server(&job, topology));
    if kept.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

async fn keep_server(job: &Job, topology: Topology) -> std::io::Result<()> {
    let (pid, started) = &job.runner;
    let server = match MongoServer::start_own(topology).await {
        Ok(server) => server,
        Err(error) => return fs::write(file(&job.folder, topology, "failed"), error.to_string()),
    };
    let place = Place { uri: server.uri().to_owned(), source: server.source().to_owned() };
    let draft = file(&job.folder, topology, "draft");
    let written = serde_json::to_string(&place).map_err(std::io::Error::other);
    let written = written.and_then(|text| fs::write(&draft, text));
    let written = written.and_then(|()| fs::rename(draft, file(&job.folder, topology, "place")));
    while written.is_ok() && process::start_time(*pid).as_ref() == Some(started) {
        sleep(POLL * 4).await;
    }
    server.stop().await;
    let _ = fs::remove_dir_all(&job.folder);
    written
}
