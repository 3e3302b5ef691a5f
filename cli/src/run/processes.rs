//! The processes of the machine, as far as `/proc` shows them.

use std::fs::{read_dir, read_to_string};
use std::path::Path;

use rustix::process::Pid;

/// Returns whether the process group has processes, and all of them have ended: their parents have
/// not collected them yet. `false` without `/proc`.
pub(crate) fn have_ended(group: Pid) -> bool {
    let Ok(processes) = read_dir("/proc") else { return false };
    let is_in_group = |process: &Path| field(process, GROUP).is_some_and(|id| id == group.to_string());
    let mut members = processes.flatten().map(|entry| entry.path()).filter(|process| is_in_group(process)).peekable();
    members.peek().is_some() && members.all(|process| threads_have_ended(&process))
}

/// A process whose first thread has ended looks dead while its other threads work.
fn threads_have_ended(process: &Path) -> bool {
    let has_ended = |thread: &Path| field(thread, STATE).is_none_or(|state| state == "Z" || state == "X");
    read_dir(process.join("task"))
        .map_or(true, |mut threads| threads.all(|thread| thread.is_ok_and(|thread| has_ended(&thread.path()))))
}

const STATE: usize = 0;
const GROUP: usize = 2;

/// Reads a field of the status of a process or a thread; `None` if there is no such process.
fn field(process: &Path, number: usize) -> Option<String> {
    parse(&read_to_string(process.join("stat")).ok()?, number)
}

/// The fields follow the program's name, which is in parentheses and may itself hold any character.
fn parse(stat: &str, number: usize) -> Option<String> {
    stat.rsplit_once(')')?.1.split_whitespace().nth(number).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_follow_the_name() {
        let stat = "7 (a) b) S 1 9 7 0 -1";
        assert_eq!((parse(stat, STATE).as_deref(), parse(stat, GROUP).as_deref()), (Some("S"), Some("9")));
        assert_eq!(parse("7 (a", STATE), None);
    }
}
