//! Where and with what was measured. Nothing that names the machine or its folders.

use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;
use time::UtcDateTime;

use crate::Outcome;

/// The lock file decides what is compiled, so the versions are read from it.
const LOCK_FILE: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.lock"));
const CRATES: [&str; 14] = [
    "distlock-mongo",
    "distlock-example-postgres",
    "distlock-memory",
    "distlock-tower",
    "distributed-lock-mongo",
    "mongodb-lock",
    "mongo-lock",
    "keyed-lock",
    "lockable",
    "mongodb",
    "tokio-postgres",
    "tokio",
    "axum",
    "hyper",
];

/// A machine and what ran on it.
#[derive(Debug, Serialize)]
pub struct Machine {
    /// Day of the run, UTC.
    pub date: String,
    /// Model of the processor.
    pub processor: String,
    /// Processors that this program may use.
    pub cores: usize,
    /// In GiB.
    pub memory_gib: f64,
    /// Operating system.
    pub system: String,
    /// Compiler.
    pub rustc: String,
    /// Server.
    pub mongodb: String,
    /// Members of the replica set, all on this machine.
    pub members: usize,
    /// The other server, if a figure used it.
    pub postgresql: Option<String>,
    /// Versions of those compared.
    pub crates: Vec<String>,
}

impl Machine {
    /// This one.
    pub fn look(mongodb: String, members: usize, postgresql: Option<String>) -> Self {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let seconds = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let system = rustix::system::uname();
        Self {
            date: date(seconds),
            processor: field(&read("/proc/cpuinfo"), "model name").unwrap_or("unknown").to_owned(),
            cores: std::thread::available_parallelism().map_or(0, usize::from),
            memory_gib: memory(&read("/proc/meminfo")),
            system: format!("{} {}", system.sysname().to_string_lossy(), system.release().to_string_lossy()),
            rustc: rustc(),
            mongodb,
            members,
            postgresql,
            crates: versions(LOCK_FILE, &CRATES),
        }
    }
}

/// The resident memory of this process, in bytes.
pub fn resident_bytes() -> Outcome<i64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).ok_or("/proc has no VmRSS")?;
    Ok(line.trim().trim_end_matches("kB").trim().parse::<i64>()? * 1024)
}

fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let line = text.lines().find(|line| line.starts_with(name))?;
    Some(line.split_once(':')?.1.trim())
}

fn memory(meminfo: &str) -> f64 {
    let kib = field(meminfo, "MemTotal").and_then(|value| value.trim_end_matches("kB").trim().parse::<f64>().ok());
    kib.map_or(f64::NAN, |kib| (kib / 1024.0 / 1024.0 * 10.0).round() / 10.0)
}

fn rustc() -> String {
    let output = std::process::Command::new("rustc").arg("--version").output();
    let version = output.ok().filter(|output| output.status.success()).map(|output| output.stdout);
    version.map_or_else(|| "unknown".to_owned(), |text| String::from_utf8_lossy(&text).trim().to_owned())
}

/// `name version` of each crate, several times if several versions are linked.
fn versions(lock_file: &str, names: &[&str]) -> Vec<String> {
    let packages = lock_file.split("[[package]]").filter_map(|package| {
        let value = |name: &str| package.lines().find_map(|line| line.strip_prefix(name)?.strip_suffix('"'));
        Some((value("name = \"")?, value("version = \"")?))
    });
    let packages: Vec<_> = packages.collect();
    let of = |name: &str| packages.iter().filter(move |package| package.0 == name).collect::<Vec<_>>();
    names.iter().flat_map(|name| of(name)).map(|(name, version)| format!("{name} {version}")).collect()
}

/// The day of a moment in seconds since 1970, UTC.
fn date(unix_seconds: u64) -> String {
    let seconds = i64::try_from(unix_seconds).unwrap_or(i64::MAX);
    UtcDateTime::from_unix_timestamp(seconds).unwrap_or(UtcDateTime::MAX).date().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates() {
        assert_eq!(date(0), "1970-01-01");
        assert_eq!(date(11_016 * 86_400), "2000-02-29");
        assert_eq!(date(11_017 * 86_400), "2000-03-01");
        assert_eq!(date(20_453 * 86_400), "2025-12-31");
        assert_eq!(date(20_454 * 86_400), "2026-01-01");
    }

    #[test]
    fn versions_are_found() {
        let lock = "version = 4\n\n[[package]]\nname = \"a\"\nversion = \"1.2.3\"\n\n[[package]]\nname = \"b\"\nversion = \"0.1.0\"\n\
                    \n[[package]]\nname = \"a\"\nversion = \"2.0.0\"\n";
        assert_eq!(versions(lock, &["b", "a", "c"]), ["b 0.1.0", "a 1.2.3", "a 2.0.0"]);
        assert!(versions(LOCK_FILE, &CRATES).len() >= CRATES.len());
    }

    #[test]
    fn memory_is_read() {
        assert_eq!(memory("MemFree: 1 kB\nMemTotal:       16777216 kB\n"), 16.0);
    }
}
