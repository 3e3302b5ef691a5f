//! One server for all processes of a run in which each check is a separate process.
//!
//! `cargo nextest` is such a runner. The first process that needs a server starts a keeper: another
//! process of this program, in the background. The keeper starts the server, writes its address
//! into a file, and stops it when the runner, the parent of all processes, has ended for any
//! reason.

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

use self::turn::Turn;
use crate::topology::Topology;

/// The environment variable with a keeper's job.
const VARIABLE: &str = "DISTLOCK_CONFORMANCE_KEEPER";
pub(crate) const POLL: Duration = Duration::from_millis(50);
/// An image may have to be pulled, or a server fetched.
const START_LIMIT: Duration = Duration::from_secs(240);

static RUN: OnceLock<PathBuf> = OnceLock::new();

/// Shares servers from now on between the processes of the run of this name, if the end of their
/// parent is visible.
pub(crate) fn share(run: &str) {
    let name: String = run.chars().filter(|c| c.is_ascii_alphanumeric() || *c == '-').collect();
    if process::start_time(parent_id()).is_some() {
        RUN.get_or_init(|| fetch::tools_dir().join("shared").join(name));
    }
}

/// The address of a shared server.
#[derive(Serialize, Deserialize)]
pub(crate) struct Place {
    pub(crate) uri: String,
    pub(crate) source: String,
}

/// The job of a keeper.
#[derive(Serialize, Deserialize)]
pub(crate) struct Job {
    pub(crate) folder: PathBuf,
    pub(crate) topology: String,
    /// The process whose end stops the server, and its start time.
    pub(crate) runner: (u32, String),
}

/// Returns the connection string and the source of the run's server, which is started if there is
/// none. `None` if servers are not shared.
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
    Err(format!("no shared server was ready after {} s", START_LIMIT.as_secs()))
}

/// Returns the path of a file that the processes of the run share.
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
    // A separate process group, and none of our pipes: it must neither end with this check nor keep
    // the runner waiting.
    command.process_group(0).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().map(drop)
}

/// Returns the job of this process, if it is a keeper.
pub(crate) fn job() -> Option<String> {
    std::env::var(VARIABLE).ok()
}
