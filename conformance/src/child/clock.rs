//! The file by which a child's clock is set.

use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A file from which `libfaketime` reads the shift of a clock. Removed when dropped.
pub(super) struct ClockFile(Arc<PathBuf>);

impl ClockFile {
    pub(super) fn new() -> std::io::Result<Self> {
        let file = std::env::temp_dir().join(format!("distlock-clock-{:016x}", fastrand::u64(..)));
        set(&file, 0)?;
        Ok(Self(Arc::new(file)))
    }

    /// Returns the file, which others may set while the child lives.
    pub(super) fn shared(&self) -> Arc<PathBuf> {
        Arc::clone(&self.0)
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for ClockFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&*self.0);
    }
}

/// Writes a shift in seconds, in one step, so that half of it is never read.
pub(super) fn set(file: &Path, shift: i64) -> std::io::Result<()> {
    let draft = file.with_extension("draft");
    std::fs::write(&draft, format!("{shift:+}s\n"))?;
    std::fs::rename(draft, file)
}
