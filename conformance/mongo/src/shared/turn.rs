//! A lock between the processes of one machine: a file that names its owner.

use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use distlock_conformance::process::start_time;

/// Held until dropped. With `/proc`, a process that dies loses it.
#[derive(Debug)]
pub(crate) struct Turn(PathBuf);

impl Turn {
    /// Takes the turn if no living process has it.
    pub(crate) fn try_take(file: &Path) -> std::io::Result<Option<Self>> {
        match OpenOptions::new().write(true).create_new(true).open(file) {
            Ok(mut created) => {
                let pid = std::process::id();
                write!(created, "{pid} {} .", start_time(pid).unwrap_or_default())?;
                Ok(Some(Self(file.to_owned())))
            }
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                remove_of_dead(file);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// Removes the file of an owner that has ended, but not a newer file.
fn remove_of_dead(file: &Path) {
    let is_dead = |text: String| {
        let mut words = text.split(' ');
        // A file without the final full stop is still being written.
        let (Some(pid), Some(started), Some(".")) = (words.next(), words.next(), words.next()) else { return false };
        let Ok(pid) = pid.parse() else { return false };
        !started.is_empty() && start_time(pid).as_deref() != Some(started)
    };
    if !fs::read_to_string(file).is_ok_and(is_dead) {
        return;
    }
    let aside = file.with_extension(format!("{:016x}.dead", fastrand::u64(..)));
    if fs::rename(file, &aside).is_ok() {
        if fs::read_to_string(&aside).is_ok_and(is_dead) {
            let _ = fs::remove_file(&aside);
        } else {
            // A living process was faster, and keeps its turn.
            let _ = fs::rename(&aside, file);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file() -> PathBuf {
        std::env::temp_dir().join(format!("distlock-turn-{:016x}", fastrand::u64(..)))
    }

    #[test]
    fn one_has_it_at_a_time() {
        let file = file();
        let first = Turn::try_take(&file).unwrap();
        assert!(first.is_some());
        assert!(Turn::try_take(&file).unwrap().is_none());
        drop(first);
        assert!(Turn::try_take(&file).unwrap().is_some());
        assert!(!file.exists());
    }

    #[test]
    fn the_dead_lose_it() {
        let file = file();
        fs::write(&file, format!("{} 1 .", std::process::id())).unwrap();
        assert!(Turn::try_take(&file).unwrap().is_none());
        assert!(Turn::try_take(&file).unwrap().is_some());
        // An incomplete file belongs to a process that is still writing it.
        fs::write(&file, format!("{} 1", std::process::id())).unwrap();
        assert!(Turn::try_take(&file).unwrap().is_none());
        assert!(file.exists());
        fs::remove_file(&file).unwrap();
    }
}
