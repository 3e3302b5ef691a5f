//! Signals to processes that the suite has started.

use tokio::process::Command;

/// Sends a signal by its name without `SIG`: `KILL`, `STOP`, `CONT`.
pub(crate) async fn send(signal: &str, pid: u32) -> std::io::Result<()> {
    let status =
        Command::new("sh").args(["-c", "kill -s \"$1\" \"$2\"", "kill", signal]).arg(pid.to_string()).status().await?;
    if status.success() {
        return Ok(());
    }
    Err(std::io::Error::other(format!("SIG{signal} could not be sent to process {pid}")))
}

/// What a process does: `T` if it is stopped, `Z` if it is dead and nobody has asked yet. None where `/proc` does not tell.
pub(crate) fn state(pid: u32) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

/// Whether a process in this [state] is no more.
pub(crate) fn is_end(state: Option<char>) -> bool {
    matches!(state, None | Some('Z' | 'X'))
}

/// Whether a process is no more.
pub(crate) fn is_dead(pid: u32) -> bool {
    is_end(state(pid))
}
