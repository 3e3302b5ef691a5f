//! Who holds a lock, for people.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use crate::error::{LockError, Result};

/// Free text about who holds a lock and why: for people and dashboards, never used for safety.
///
/// # U+0000
/// The owner, the metadata and the reason of a forced release may contain this character. All
/// backends of this project keep it, in the names of metadata as well:
///
/// | backend | owner | metadata, names and values | reason |
/// |---|---|---|---|
/// | `distlock-memory` | as it is | as they are | as it is |
/// | `distlock-mongo` | a BSON string, which carries its length | BSON strings: a name is a value there, not a field | a BSON string |
/// | the SQLite example | JSON, where it is escaped | JSON, where it is escaped | as it is, in a text column |
/// | the PostgreSQL example | bytes: its texts cannot contain it | JSON, where it is escaped | bytes |
///
/// Another backend keeps or escapes it in owners, values and reasons. It may refuse names with it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// Who: a host, a process, a user, a web session.
    pub owner: Option<Arc<str>>,
    /// Anything else, by name.
    pub metadata: Option<Arc<BTreeMap<String, String>>>,
}

impl Holder {
    /// The longest owner, in bytes.
    pub const MAX_OWNER_LEN: usize = 256;
    /// The largest metadata: the bytes of all names and values together.
    pub const MAX_METADATA_LEN: usize = 4096;

    /// Nobody in particular.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// This process: the owner is host and process id, and the metadata names the executable as `program`, as far as they are known.
    ///
    /// The version of a program is known to the program alone: `.metadata("version", env!("CARGO_PKG_VERSION"))`.
    #[must_use]
    pub fn of_this_process() -> Self {
        static HERE: OnceLock<Holder> = OnceLock::new();
        HERE.get_or_init(|| {
            let here = Self::new().with_owner(owner_here());
            match program() {
                Some(program) => here.with_metadata("program", program),
                None => here,
            }
        })
        .clone()
    }

    /// With an owner. Comes back as it is from every backend, U+0000 included (C20): one whose database
    /// cannot keep that character escapes it.
    #[must_use]
    pub fn with_owner(mut self, owner: impl Into<Arc<str>>) -> Self {
        self.owner = Some(owner.into());
        self
    }

    /// With one more named remark. A later one of the same name counts. The value comes back as it is,
    /// as the owner does. A name with U+0000 comes back from the [backends of this
    /// project](Self#u0000); others may refuse it.
    #[must_use]
    pub fn with_metadata(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        let metadata = self.metadata.get_or_insert_default();
        Arc::make_mut(metadata).insert(name.into(), value.into());
        self
    }

    /// This owner and these remarks where they are set, those of `defaults` elsewhere.
    #[must_use]
    pub fn or(self, defaults: &Self) -> Self {
        let metadata = match (self.metadata, &defaults.metadata) {
            (Some(own), Some(defaults)) => {
                let mut all = BTreeMap::clone(defaults);
                all.extend(own.iter().map(|(name, value)| (name.clone(), value.clone())));
                Some(Arc::new(all))
            }
            (own, defaults) => own.or_else(|| defaults.clone()),
        };
        Self { owner: self.owner.or_else(|| defaults.owner.clone()), metadata }
    }

    /// Refuses what would bloat every record.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidOptions`](crate::ErrorKind::InvalidOptions) when the owner or the metadata is too long.
    #[inline]
    pub fn validate(&self) -> Result<()> {
        if self.owner.is_none() && self.metadata.is_none() { Ok(()) } else { self.validate_said() }
    }

    fn validate_said(&self) -> Result<()> {
        let owner = self.owner.as_ref().map_or(0, |owner| owner.len());
        if owner > Self::MAX_OWNER_LEN {
            return Err(LockError::invalid_options(format!(
                "an owner has at most {} bytes, this one has {owner}",
                Self::MAX_OWNER_LEN
            )));
        }
        let Some(metadata) = &self.metadata else { return Ok(()) };
        let size: usize = metadata.iter().map(|(name, value)| name.len() + value.len()).sum();
        if size > Self::MAX_METADATA_LEN {
            return Err(LockError::invalid_options(format!(
                "metadata has at most {} bytes, this has {size}",
                Self::MAX_METADATA_LEN
            )));
        }
        Ok(())
    }
}

/// Host and process, as far as they are known.
fn owner_here() -> String {
    let host = std::env::var("HOSTNAME").or_else(|_| std::fs::read_to_string("/proc/sys/kernel/hostname"));
    let host = host.unwrap_or_default();
    let host = cut(host.trim(), 200);
    let pid = std::process::id();
    if host.is_empty() { format!("pid {pid}") } else { format!("{host} pid {pid}") }
}

fn program() -> Option<String> {
    let path = std::env::current_exe().ok()?;
    Some(cut(&path.file_name()?.to_string_lossy(), 100).to_owned())
}

/// At most so many bytes.
fn cut(text: &str, len: usize) -> &str {
    let mut end = len.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_described_and_fits() {
        let here = Holder::of_this_process();
        here.validate().unwrap();
        assert!(here.owner.as_deref().unwrap().ends_with(&format!("pid {}", std::process::id())));
        assert!(!here.metadata.unwrap()["program"].is_empty());
    }

    #[test]
    fn what_is_said_last_and_closest_counts() {
        let provider = Holder::new().with_owner("p").with_metadata("a", "1").with_metadata("b", "1");
        let said = Holder::new().with_metadata("b", "0").with_metadata("b", "2").or(&provider);
        assert_eq!(said.owner.as_deref(), Some("p"));
        assert_eq!(said.metadata.as_deref().unwrap()["a"], "1");
        assert_eq!(said.metadata.as_deref().unwrap()["b"], "2");
        assert_eq!(Holder::new().with_owner("q").or(&provider).owner.as_deref(), Some("q"));
        assert_eq!(cut("éé", 3), "é");
    }
}
