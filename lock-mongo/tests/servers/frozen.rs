//! Processes that are stopped for a while.

use std::process::Command;

/// A process that is stopped by SIGSTOP until the value is dropped.
pub(crate) struct Frozen(String);

impl Frozen {
    pub(crate) fn freeze(pid: i64) -> Self {
        let pid = pid.to_string();
        signal("-STOP", &pid);
        Self(pid)
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        signal("-CONT", &self.0);
    }
}

fn signal(name: &str, pid: &str) {
    let status = Command::new("kill").args([name, pid]).status().expect("a program `kill`");
    assert!(status.success(), "kill {name} {pid}: {status}");
}
