//! Finds `libfaketime`, for checks with clients whose clocks are wrong.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::fetch;

/// A wheel with the library, for x86-64.
const REQUIREMENTS: &str = include_str!("faketime.requirements.txt");
const MEMBER: &str = "libfaketime/vendor/libfaketime/src/libfaketime.so.1";
const VARIABLE: &str = "DISTLOCK_FAKETIME_LIB";
const SHIFT_SECONDS: u64 = 3600;
const TOLERANCE_SECONDS: u64 = 120;

/// Why there is no `libfaketime`: it is not installed and could not be fetched, or it does not
/// shift the clock.
#[derive(Debug, thiserror::Error)]
#[error("{0}; install the package libfaketime, or set DISTLOCK_FAKETIME_LIB to its libfaketime.so.1")]
pub struct FaketimeError(String);

/// Returns the path of a `libfaketime.so.1` for `LD_PRELOAD`, after a test that it works.
///
/// Searches in this order: the environment variable `DISTLOCK_FAKETIME_LIB`; the location of
/// Debian's package `libfaketime`; a wheel of PyPI, fetched once into `target/distlock-tools`
/// (x86-64 only). Blocks the calling thread: usually for milliseconds, or for seconds when it
/// fetches the wheel.
///
/// A child process with `LD_PRELOAD=<path>`, `FAKETIME=+1h` and `FAKETIME_DONT_FAKE_MONOTONIC=1`
/// sees a wall clock that is one hour ahead, and the true monotonic clock.
///
/// # Errors
///
/// There is no library, or it does not shift the clock. If the variable names a library that does
/// not work, no other one is tried.
pub fn faketime_library() -> Result<PathBuf, FaketimeError> {
    find().map_err(FaketimeError)
}

fn find() -> Result<PathBuf, String> {
    if let Some(given) = std::env::var_os(VARIABLE).filter(|value| !value.is_empty()) {
        let given = PathBuf::from(given);
        return match shifts_the_clock(&given) {
            Ok(()) => Ok(given),
            Err(problem) => Err(format!("the library given by {VARIABLE} does not work: {problem}")),
        };
    }
    if let Some(installed) = installed().into_iter().find(|path| shifts_the_clock(path).is_ok()) {
        return Ok(installed);
    }
    let fetched = fetch::from_wheel(REQUIREMENTS, MEMBER).map_err(|problem| format!("no libfaketime: {problem}"))?;
    match shifts_the_clock(&fetched) {
        Ok(()) => Ok(fetched),
        Err(problem) => Err(format!("the fetched libfaketime does not work here: {problem}")),
    }
}

/// `/usr/lib/<architecture>/faketime/libfaketime.so.1`
fn installed() -> Vec<PathBuf> {
    let Ok(architectures) = std::fs::read_dir("/usr/lib") else { return Vec::new() };
    architectures
        .flatten()
        .map(|entry| entry.path().join("faketime/libfaketime.so.1"))
        .filter(|path| path.is_file())
        .collect()
}

/// Runs `date` with a shifted clock. The loader only warns about a library that it cannot load, so
/// compare the time.
fn shifts_the_clock(library: &Path) -> Result<(), String> {
    if !library.is_file() {
        return Err("there is no such file".to_owned());
    }
    let output = Command::new("date")
        .arg("+%s")
        .env("LD_PRELOAD", library)
        .env("FAKETIME", format!("+{SHIFT_SECONDS}s"))
        .env("FAKETIME_DONT_FAKE_MONOTONIC", "1")
        .output()
        .map_err(|error| format!("cannot run `date`: {error}"))?;
    let shown: u64 = String::from_utf8_lossy(&output.stdout)
        .trim()
        .parse()
        .map_err(|_| String::from_utf8_lossy(&output.stderr).trim().to_owned())?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    if shown.abs_diff(now + SHIFT_SECONDS) > TOLERANCE_SECONDS {
        return Err("`date` with this library preloaded shows the unshifted time".to_owned());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_shifts_the_clock_is_found() {
        let library = faketime_library().unwrap();
        assert!(library.is_file());
    }

    #[test]
    fn a_file_that_is_no_library_is_refused() {
        assert!(shifts_the_clock(Path::new("/dev/null")).is_err());
        assert!(shifts_the_clock(Path::new("/etc/passwd")).is_err());
    }
}
