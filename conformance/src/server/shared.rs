//! One server for all processes of a run in which each check is a process of its own.
//!
//! `cargo nextest` is such a runner. The first process that needs a server starts a keeper – this program once more, in the background – which
//! starts the server, writes down where it is, and ends it when the runner, the parent of all, is gone, however that ended.

use std::fs;
use std::os::unix::process::{CommandExt, parent_id};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep};

use super::turn::Turn;
use super::{MongoServer, Topology};
use crate::container::owner::start_time;
use crate::fetch;

/// The environment variable with a keeper's job.
const VARIABLE: &str = "DISTLOCK_CONFORMANCE_KEEPER";
const POLL: Duration = Duration::from_millis(50);
/// An image may have to be pulled, or a server fetched.
const START_LIMIT: Duration = Duration::from_secs(240);

static RUN: OnceLock<PathBuf> = OnceLock::new();

/// Servers are shared from now on by the processes of the run of this name, if it can be seen when their parent ends.
pub(crate) fn share(run: &str) {
    let name: String = run.chars().filter(|c| c.is_ascii_alphanumeric() || *c == '-').collect();
    if start_time(parent_id()).is_some() {
        RUN.get_or_init(|| fetch::tools_dir().join("shared").join(name));
    }
}

/// The turn to use what a shared server has but once. None if no server is shared.
pub(crate) async fn turn(what: &str) -> std::io::Result<Option<Turn>> {
    let Some(folder) = RUN.get() else { return Ok(None) };
    fs::create_dir_all(folder)?;
    Turn::take(&folder.join(what)).await.map(Some)
}

/// Where a shared server is.
#[derive(Serialize, Deserialize)]
struct Place {
    uri: String,
    source: String,
}

/// What a keeper is told.
#[derive(Serialize, Deserialize)]
struct Job {
    folder: PathBuf,
    topology: String,
    /// Whose end is the server's, and when it started.
    runner: (u32, String),
}

/// The connection string and the source of the run's server, which is started if there is none; none if servers are not shared.
pub(super) async fn find(topology: Topology) -> Result<Option<(String, String)>, String> {
    let Some(folder) = RUN.get() else { return Ok(None) };
    let failed = |error: std::io::Error| format!("cannot share a server through {}: {error}", folder.display());
    fs::create_dir_all(folder).map_err(failed)?;
    let deadline = Instant::now() + START_LIMIT;
    let mut starting = None;
    while Instant::now() < deadline {
        if let Some(place) = read(&file(folder, topology, "place")) {
            return Ok(Some((place.uri, format!("{}, shared by the run", place.source))));
        }
        if let Ok(problem) = fs::read_to_string(file(folder, topology, "failed")) {
            return Err(problem);
        }
        if starting.is_none() {
            starting = Turn::try_take(&file(folder, topology, "starting")).map_err(failed)?;
            if starting.is_some() && !file(folder, topology, "place").exists() {
                start_keeper(folder, topology).map_err(failed)?;
            }
        }
        sleep(POLL).await;
    }
    Err(format!("no server that the processes of a run can share was there after {} s", START_LIMIT.as_secs()))
}

fn file(folder: &Path, topology: Topology, what: &str) -> PathBuf {
    folder.join(format!("{topology}.{what}").replace(' ', "-"))
}

fn read(file: &Path) -> Option<Place> {
    serde_json::from_str(&fs::read_to_string(file).ok()?).ok()
}

fn start_keeper(folder: &Path, topology: Topology) -> std::io::Result<()> {
    let runner = parent_id();
    let runner = (runner, start_time(runner).unwrap_or_default());
    let job = Job { folder: folder.to_owned(), topology: topology.to_string(), runner };
    let mut command = Command::new(std::env::current_exe()?);
    command.env(VARIABLE, serde_json::to_string(&job)?);
    // A group of its own, and none of our pipes: it must neither end with this check nor keep the runner waiting.
    command.process_group(0).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().map(drop)
}

/// The job of this process, if it is a keeper.
pub(crate) fn job() -> Option<String> {
    std::env::var(VARIABLE).ok()
}

/// Does a keeper's job.
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
        Err(error) => return fs::write(file(&job.folder, topology, "failed"), crate::failure::chain(&error)),
    };
    let place = Place { uri: server.uri().to_owned(), source: server.source().to_owned() };
    let draft = file(&job.folder, topology, "draft");
    let written = serde_json::to_string(&place).map_err(std::io::Error::other);
    let written = written.and_then(|text| fs::write(&draft, text));
    let written = written.and_then(|()| fs::rename(draft, file(&job.folder, topology, "place")));
    while written.is_ok() && start_time(*pid).as_ref() == Some(started) {
        sleep(POLL * 4).await;
    }
    server.stop().await;
    let _ = fs::remove_dir_all(&job.folder);
    written
}
