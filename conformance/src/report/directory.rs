//! The files of a report: a JSON and a JUnit XML file for each backend, and one page for all.
//!
//! `mine.json`, `mine.xml`, `index.html`. The page shows every backend whose JSON is in the
//! directory, so that several test binaries can share one. A process that runs a single check
//! writes its part into `parts`, and makes the files again from all parts of the run.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::text::plain;
use super::{Backend, html, junit};

/// How often the files are made again at most, while other processes add parts.
const ROUNDS: usize = 50;

/// Writes the reports of some backends. `run` is the name of the run if this process is only a part
/// of it.
pub(crate) fn save(directory: &Path, backends: &[Backend], run: Option<&str>) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    for backend in backends {
        match run {
            None => write_backend(directory, backend)?,
            Some(run) => merge(directory, backend, run)?,
        }
    }
    settled(directory, |files| {
        let backends: Vec<Backend> = files.iter().filter_map(|file| read(file)).collect();
        replace(&directory.join("index.html"), &html::page(&backends))
    })
}

fn write_backend(directory: &Path, backend: &Backend) -> io::Result<()> {
    let name = plain(&backend.name);
    let json = serde_json::to_string_pretty(backend).map_err(io::Error::other)?;
    replace(&directory.join(format!("{name}.json")), &json)?;
    replace(&directory.join(format!("{name}.xml")), &junit::document(backend))
}

/// Adds the checks of this process to those of the others of its run.
fn merge(directory: &Path, backend: &Backend, run: &str) -> io::Result<()> {
    let all = directory.join("parts").join(plain(&backend.name));
    let own = all.join(plain(run));
    fs::create_dir_all(&own)?;
    for entry in fs::read_dir(&all)?.flatten().filter(|entry| entry.path() != own) {
        // Another process may have done it.
        let _ = fs::remove_dir_all(entry.path());
    }
    for check in &backend.checks {
        let part = Backend { checks: vec![check.clone()], ..backend.clone() };
        let json = serde_json::to_string(&part).map_err(io::Error::other)?;
        replace(&own.join(format!("{}.json", plain(&check.name))), &json)?;
    }
    settled(&own, |files| {
        let parts = files.iter().filter_map(|file| read(file));
        parts.reduce(Backend::with).map_or(Ok(()), |merged| write_backend(directory, &merged))
    })
}

/// Makes something from the JSON files of a folder, and again if they have changed in the meantime.
/// So the last process has seen all of them.
fn settled(folder: &Path, make: impl Fn(&[PathBuf]) -> io::Result<()>) -> io::Result<()> {
    let mut seen = listing(folder)?;
    for _ in 0..ROUNDS {
        let files: Vec<PathBuf> = seen.iter().map(|(file, _)| file.clone()).collect();
        make(&files)?;
        let now = listing(folder)?;
        if now == seen {
            break;
        }
        seen = now;
    }
    Ok(())
}

fn listing(folder: &Path) -> io::Result<Vec<(PathBuf, Option<SystemTime>)>> {
    let files = fs::read_dir(folder)?.flatten().map(|entry| entry.path());
    let files = files.filter(|file| file.extension().is_some_and(|extension| extension == "json"));
    let changed = |file: &Path| fs::metadata(file).and_then(|metadata| metadata.modified()).ok();
    let mut listing: Vec<_> = files.map(|file| (file.clone(), changed(&file))).collect();
    listing.sort();
    Ok(listing)
}

/// Reads a backend. Ignores other JSON files.
fn read(file: &Path) -> Option<Backend> {
    serde_json::from_str(&fs::read_to_string(file).ok()?).ok()
}

/// Replaces a file in one step, so that no reader sees half of it.
fn replace(file: &Path, text: &str) -> io::Result<()> {
    let draft = file.with_extension(format!("{}-{:016x}.draft", std::process::id(), fastrand::u64(..)));
    fs::write(&draft, text)?;
    fs::rename(&draft, file)
}

impl Backend {
    /// Merges with another part of the same run.
    fn with(mut self, other: Self) -> Self {
        let end = |part: &Self| part.started_unix_ms as f64 + part.took_ms;
        let ended = end(&self).max(end(&other));
        self.started_unix_ms = self.started_unix_ms.min(other.started_unix_ms);
        self.took_ms = (ended - self.started_unix_ms as f64).round();
        if self.seed != other.seed {
            self.seed = "one for each check".into();
        }
        self.checks.extend(other.checks);
        self.sort();
        self
    }
}
