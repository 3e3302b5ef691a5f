//! One server for all processes of a run in which each check is a process of its own.
//!
//! `cargo nextest` is such a runner. The first process that needs a server starts a keeper – this program once more, in the background – which
//! starts the server, writes down where it is, and ends it when the runner, the parent of all, is gone, however that ended.

mod turn;

use std::fs;
use std::os::unix::process::{CommandExt, parent_id};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use distlock_conformance::{fetch, process};
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep};

pub(crate) use self::turn::Turn;
use crate::topology::Topology;

/// The environment variable with a keeper's job.
const VARIABLE: &str = "DISTLOCK_CONFORMANCE_KEEPER";
pub(crate) const POLL: Duration = Duration::from_millis(50);
/// An image may have to be pulled, or a server fetched.
const START_LIMIT: Duration = Duration::from_secs(240);

static RUN: OnceLock<PathBuf> = OnceLock::new();

/// Servers are shared from now on by the processes of the run of this name, if it can be seen when their parent ends.
pub(crate) fn share(run: &str) {
    let name: String = run.chars().filter(|c| c.is_ascii_alphanumeric() || *c == '-').collect();
    if process::start_time(parent_id()).is_some() {
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
pub(crate) struct Place {
    pub(crate) uri: String,
    pub(crate) source: String,
}

/// What a keeper is told.
#[derive(Serialize, Deserialize)]
pub(crate) struct Job {
    pub(crate) folder: PathBuf,
    pub(crate) topology: String,
    /// Whose end is the server's, and when it started.
    pub(crate) runner: (u32, String),
}

/// The connection string and the source of the run's server, which is started if there is none; none if servers are not shared.
pub(crate) async fn find(topology: Topology) -> Result<Option<(String, String)>, String> {
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

/// What the processes of the run leave for each other.
pub(crate) fn file(folder: &Path, topology: Topology, what: &str) -> PathBuf {
    folder.join(format!("{topology}.{what}").replace(' ', "-"))
}

fn read(file: &Path) -> Option<Place> {
    serde_json::from_str(&fs::read_to_string(file).ok()?).ok()
}

fn start_keeper(folder: &Path, topology: Topology) -> std::io::Result<()> {
    let runner = parent_id();
    let runner = (runner, process::start_time(runner).unwrap_or_default());
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
