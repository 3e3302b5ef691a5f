//! The description of a holder, for people.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, OnceLock};

use crate::error::{LockError, Result};

/// The description of a holder: free text for people and dashboards, never used for safety.
///
/// # U+0000
/// The owner, the metadata and the reason of a forced release may contain this character. All
/// backends of this project keep it, in the names of metadata as well:
///
/// | backend | owner | metadata, names and values | reason |
/// |---|---|---|---|
/// | `distlock-memory` | as it is | as they are | as it is |
/// | `distlock-mongo` | a BSON string, which carries its length | BSON strings: a name is a value there, not a field | a BSON string |
/// | the SQLite example | escaped, in JSON | escaped, in JSON | escaped, in JSON |
/// | the PostgreSQL example | bytes: its texts cannot contain it | escaped, in JSON | bytes |
///
/// Other backends must keep or escape it in owners, values and reasons. They may refuse names that
/// contain it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// The owner: a host, a process, a user, a web session.
    pub owner: Option<Arc<str>>,
    /// Named remarks.
    pub metadata: Option<Arc<BTreeMap<String, String>>>,
}

impl Holder {
    /// The length of the longest owner, in bytes: 256.
    pub const MAX_OWNER_LEN: usize = 256;
    /// The size of the largest metadata, in bytes of all names and values together: 4,096.
    pub const MAX_METADATA_LEN: usize = 4096;

    /// Makes a description without an owner and without metadata.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Describes this process: the owner is the host, the process id and a random number of the
    /// process, such as `web-1 pid 4711 3f9a1c2e`. The metadata names the executable as `program`.
    /// A host or a name that cannot be read is left out.
    ///
    /// The random number is chosen once per process. Without it, two containers of hosts with one
    /// name would be one owner, because each of their processes has the id 1, and a release by
    /// owner would take the locks of both away.
    ///
    /// The version of the program has to be added by the program itself:
    /// `.metadata("version", env!("CARGO_PKG_VERSION"))`.
    #[must_use]
    pub fn this_process() -> Self {
        static THIS_PROCESS: OnceLock<Holder> = OnceLock::new();
        THIS_PROCESS
            .get_or_init(|| {
                let process = Self::new().with_owner(owner_of_this_process());
                match program() {
                    Some(program) => process.with_metadata("program", program),
                    None => process,
                }
            })
            .clone()
    }

    /// Sets the owner. Every backend returns it unchanged, U+0000 included ([C20]): a backend whose
    /// database cannot keep that character escapes it.
    ///
    /// [C20]: distlock_api::contract#c20
    #[must_use]
    pub fn with_owner(mut self, owner: impl AsRef<str>) -> Self {
        self.owner = Some(owner.as_ref().into());
        self
    }

    /// Adds a named remark. It replaces one of the same name. Every backend returns the value
    /// unchanged, as it does the owner. The [backends of this project](Self#u0000) also accept
    /// a name that contains U+0000; others may refuse it.
    #[must_use]
    pub fn with_metadata(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        let metadata = self.metadata.get_or_insert_default();
        Arc::make_mut(metadata).insert(name.into(), value.into());
        self
    }

    /// Returns this description, with the owner and the remarks of `defaults` for what is not set.
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

    /// Checks that the owner and the metadata are small enough for every record.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidOptions`](crate::ErrorKind::InvalidOptions) when the owner or the
    /// metadata is too long.
    #[inline]
    pub fn validate(&self) -> Result<()> {
        if self.owner.is_none() && self.metadata.is_none() { Ok(()) } else { self.validate_lengths() }
    }

    fn validate_lengths(&self) -> Result<()> {
        let owner = self.owner.as_ref().map_or(0, |owner| owner.len());
        if owner > Self::MAX_OWNER_LEN {
            return Err(LockError::invalid_options(format!(
                "an owner has at most {} bytes, this one has {owner}: shorten it",
                Self::MAX_OWNER_LEN
            )));
        }
        let Some(metadata) = &self.metadata else { return Ok(()) };
        let size: usize = metadata.iter().map(|(name, value)| name.len() + value.len()).sum();
        if size > Self::MAX_METADATA_LEN {
            return Err(LockError::invalid_options(format!(
                "metadata has at most {} bytes, this has {size}: shorten it",
                Self::MAX_METADATA_LEN
            )));
        }
        Ok(())
    }
}

/// Returns the host, as far as it can be read, the process id, and a random number.
fn owner_of_this_process() -> String {
    let host = std::env::var("HOSTNAME").or_else(|_| std::fs::read_to_string("/proc/sys/kernel/hostname"));
    let host = host.unwrap_or_default();
    let host = cut(host.trim(), 200);
    let separator = if host.is_empty() { "" } else { " " };
    // The standard library seeds its hash tables from the system's source of randomness.
    let random = RandomState::new().hash_one(()) as u32;
    format!("{host}{separator}pid {} {random:08x}", std::process::id())
}

fn program() -> Option<String> {
    let path = std::env::current_exe().ok()?;
    Some(cut(&path.file_name()?.to_string_lossy(), 100).to_owned())
}

/// Returns the start of the text, at most `len` bytes.
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
        let here = Holder::this_process();
        here.validate().unwrap();
        let owner = here.owner.unwrap();
        let (place, random) = owner.rsplit_once(' ').unwrap();
        assert!(place.ends_with(&format!("pid {}", std::process::id())), "{owner}");
        assert!(random.len() == 8 && random.bytes().all(|digit| digit.is_ascii_hexdigit()), "{owner}");
        assert_eq!(Holder::this_process().owner.unwrap(), owner, "one per process");
        assert!(!here.metadata.unwrap()["program"].is_empty());
    }

    #[test]
    fn the_last_and_closest_value_takes_precedence() {
        let provider = Holder::new().with_owner("p").with_metadata("a", "1").with_metadata("b", "1");
        let own = Holder::new().with_metadata("b", "0").with_metadata("b", "2").or(&provider);
        assert_eq!(own.owner.as_deref(), Some("p"));
        assert_eq!(own.metadata.as_deref().unwrap()["a"], "1");
        assert_eq!(own.metadata.as_deref().unwrap()["b"], "2");
        assert_eq!(Holder::new().with_owner("q").or(&provider).owner.as_deref(), Some("q"));
        assert_eq!(cut("éé", 3), "é");
    }
}
