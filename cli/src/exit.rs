//! Exit codes: those of `sysexits.h`, those of shells, and two of our own. No I/O.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use distlock::{ErrorKind, LockError};

/// `doctor` found something that is wrong.
pub(crate) const WRONG: u8 = 1;
/// The command line cannot be understood.
pub(crate) const USAGE: u8 = 64;
/// MongoDB cannot be reached, or cannot serve now.
pub(crate) const UNAVAILABLE: u8 = 69;
/// Any other error.
pub(crate) const SOFTWARE: u8 = 70;
/// An input or output of this program failed.
pub(crate) const IO: u8 = 74;
/// The lock is busy: try again later.
pub(crate) const BUSY: u8 = 75;
/// The user lacks a privilege, or MongoDB refused the credentials.
pub(crate) const DENIED: u8 = 77;
/// The connection string, an option or the deployment does not fit.
pub(crate) const CONFIG: u8 = 78;
/// The lock was lost while the command ran. The last code of `sysexits.h` is 78.
pub(crate) const LOST: u8 = 79;
/// The command was found, and could not be started.
pub(crate) const NOT_EXECUTABLE: u8 = 126;
/// The command was not found.
pub(crate) const NOT_FOUND: u8 = 127;

/// The table of `--help` and of the man pages.
pub(crate) const HELP: &str = "\
Exit codes:
  0      done; for `run`, the command ended with 0
  1      `doctor` found something that is wrong
  64     the command line cannot be understood
  69     MongoDB cannot be reached, or cannot serve now
  70     any other error
  74     an input or output failed
  75     the lock is busy: --try found it held, or --timeout has passed
  77     MongoDB refused the credentials, or the user lacks a privilege
  78     the connection string, an option or the deployment does not fit
  79     the lock was lost, could not be renewed in time, or was held for --max-hold, while the
         command ran
  126    the command could not be started
  127    the command was not found
  128+N  ended by signal N, also the command
  Any other code is that of the command.";

/// Returns the exit code of a process that was ended by a signal, as shells do.
pub(crate) fn of_signal(signal: i32) -> u8 {
    u8::try_from(128_i32.saturating_add(signal)).unwrap_or(u8::MAX)
}

/// Returns the exit code with which the command's end is passed on.
pub(crate) fn of_command(status: ExitStatus) -> u8 {
    match (status.code(), status.signal()) {
        (Some(code), _) => u8::try_from(code).unwrap_or(u8::MAX),
        (None, Some(signal)) => of_signal(signal),
        (None, None) => SOFTWARE,
    }
}

/// Returns the exit code of an error of the library.
pub(crate) fn of_error(error: &LockError) -> u8 {
    if error.is_not_granted() {
        return BUSY;
    }
    match error.kind() {
        ErrorKind::InvalidKey => USAGE,
        ErrorKind::InvalidOptions | ErrorKind::Unsupported => CONFIG,
        ErrorKind::Timeout | ErrorKind::Unavailable | ErrorKind::Overloaded | ErrorKind::QueueFull => UNAVAILABLE,
        ErrorKind::PermissionDenied => DENIED,
        ErrorKind::Lost => LOST,
        _ => SOFTWARE,
    }
}

/// Returns the exit code of a command that could not be started.
pub(crate) fn of_start(error: &std::io::Error) -> u8 {
    if error.kind() == std::io::ErrorKind::NotFound { NOT_FOUND } else { NOT_EXECUTABLE }
}

#[cfg(test)]
mod tests {
    use distlock::Phase;

    use super::*;

    #[test]
    fn the_end_of_the_command_is_passed_on() {
        // The raw status of `wait`: the code in the second byte, or the signal in the first one.
        for (raw, code) in [(0, 0), (3 << 8, 3), (255 << 8, 255), (15, 143), (9, 137), (0x80 | 3, 131)] {
            assert_eq!(of_command(ExitStatus::from_raw(raw)), code, "{raw:#x}");
        }
    }

    #[test]
    fn errors_have_the_codes_of_sysexits() {
        let unanswered = LockError::timeout(Phase::Request, "no answer");
        for (error, code) in [
            (LockError::not_granted(), BUSY),
            (unanswered, UNAVAILABLE),
            (LockError::new(ErrorKind::Unavailable, ""), UNAVAILABLE),
            (LockError::new(ErrorKind::PermissionDenied, ""), DENIED),
            (LockError::invalid_options(""), CONFIG),
            (LockError::new(ErrorKind::Unsupported, ""), CONFIG),
            (LockError::invalid_key(""), USAGE),
            (LockError::lost(distlock::Loss::Expired), LOST),
            (LockError::new(ErrorKind::Corrupt, ""), SOFTWARE),
        ] {
            assert_eq!(of_error(&error), code, "{error:?}");
        }
    }

    #[test]
    fn the_help_names_every_code() {
        let codes = [WRONG, USAGE, UNAVAILABLE, SOFTWARE, IO, BUSY, DENIED, CONFIG, LOST, NOT_EXECUTABLE, NOT_FOUND];
        for code in codes {
            assert!(HELP.lines().any(|line| line.split_whitespace().next() == Some(&code.to_string())), "{code}");
        }
    }

    #[test]
    fn a_command_that_does_not_start_has_the_codes_of_shells() {
        use std::io::{Error, ErrorKind};
        assert_eq!(of_start(&Error::from(ErrorKind::NotFound)), NOT_FOUND);
        assert_eq!(of_start(&Error::from(ErrorKind::PermissionDenied)), NOT_EXECUTABLE);
    }
}
