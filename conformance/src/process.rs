//! Processes of this machine: whether they are alive, and signals to those that the suite has
//! started.
//!
//! For fixtures that start servers, or share one with other processes of a run.

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

/// Returns the state of a process: `T` if it is stopped, `Z` if it is dead and not yet reaped.
/// `None` without `/proc`.
pub(crate) fn state(pid: u32) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

/// Whether a process in this [state] has ended.
pub(crate) fn is_end(state: Option<char>) -> bool {
    matches!(state, None | Some('Z' | 'X'))
}

/// Returns whether a process has ended. Without `/proc` this is always true.
#[must_use]
pub fn is_dead(pid: u32) -> bool {
    is_end(state(pid))
}

/// Returns when a living process started, in clock ticks since boot. Together with the id it is
/// unique for a boot. `None` if the process has ended, or without `/proc`.
#[must_use]
pub fn start_time(pid: u32) -> Option<String> {
    parse_start_time(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// The fields follow the program's name, which is in parentheses and may itself hold any character.
fn parse_start_time(stat: &str) -> Option<String> {
    const START_TIME: usize = 19;
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let dead = matches!(*fields.first()?, "Z" | "X");
    fields.get(START_TIME).filter(|_| !dead).map(|ticks| (*ticks).to_owned())
}

#[cfg(test)]
mod tests {
    use super::parse_start_time;

    #[test]
    fn start_times() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4 5 6 7 8 9 10 11 12 20 0 1 0 4711 99 1";
        assert_eq!(parse_start_time(stat).as_deref(), Some("4711"));
        assert_eq!(parse_start_time(&stat.replace(") S", ") Z")), None);
        assert_eq!(parse_start_time("7 (a)"), None);
    }
}
