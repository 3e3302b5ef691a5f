//! Which locks are meant.

use std::num::NonZeroUsize;

use crate::error::{LockError, Result};
use crate::key::LockKey;

/// Which locks are meant: those to which everything that is set applies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockFilter {
    /// What the key begins with, byte by byte; empty for all keys.
    pub prefix: String,
    /// The owner, exactly; none for all, those that nobody holds included.
    pub owner: Option<String>,
}

impl LockFilter {
    /// All locks.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Only keys that begin with this, byte by byte. Defaults to all keys.
    #[must_use]
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// Only locks that are held by exactly this owner. Defaults to all locks.
    #[must_use]
    pub fn owner(mut self, owner: impl Into<String>) -> Self {
        self.owner = Some(owner.into());
        self
    }

    /// Whether it matches every lock.
    #[must_use]
    pub fn is_everything(&self) -> bool {
        self.prefix.is_empty() && self.owner.is_none()
    }

    /// Whether a lock with this key and owner matches.
    #[must_use]
    pub fn matches(&self, key: &LockKey, owner: Option<&str>) -> bool {
        key.as_str().starts_with(&self.prefix) && self.owner.as_deref().is_none_or(|wanted| owner == Some(wanted))
    }

    /// Refuses to mean every lock, where that would be an accident.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidOptions`](crate::ErrorKind::InvalidOptions) if [`is_everything`](Self::is_everything).
    pub fn ensure_not_everything(&self) -> Result<()> {
        if self.is_everything() {
            return Err(LockError::invalid_options("neither an owner nor a prefix is named: that would be every lock"));
        }
        Ok(())
    }
}

/// What [`LockAdmin::list`](crate::LockAdmin::list) lists, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct ListOptions {
    pub(super) filter: LockFilter,
    pub(super) page_size: NonZeroUsize,
}

impl ListOptions {
    /// How many locks are asked for at once when nobody says: 100.
    pub const DEFAULT_PAGE_SIZE: NonZeroUsize = NonZeroUsize::new(100).expect("not zero");
    /// The biggest page: 1,000.
    pub const MAX_PAGE_SIZE: NonZeroUsize = NonZeroUsize::new(1000).expect("not zero");

    /// All locks.
    pub fn new() -> Self {
        Self { filter: LockFilter::new(), page_size: Self::DEFAULT_PAGE_SIZE }
    }

    /// Only locks that match. Replaces what was set before.
    pub fn filter(mut self, filter: LockFilter) -> Self {
        self.filter = filter;
        self
    }

    /// As [`LockFilter::prefix`].
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.filter = self.filter.prefix(prefix);
        self
    }

    /// As [`LockFilter::owner`].
    pub fn owner(mut self, owner: impl Into<String>) -> Self {
        self.filter = self.filter.owner(owner);
        self
    }

    /// With another filter, made of this one, for wrappers that translate keys.
    pub fn map_filter(mut self, translate: impl FnOnce(LockFilter) -> LockFilter) -> Self {
        self.filter = translate(self.filter);
        self
    }

    /// How many locks are asked for at once. Defaults to [`DEFAULT_PAGE_SIZE`](Self::DEFAULT_PAGE_SIZE); zero is one, and
    /// what is above [`MAX_PAGE_SIZE`](Self::MAX_PAGE_SIZE) is that.
    pub fn page_size(mut self, locks: usize) -> Self {
        self.page_size = NonZeroUsize::new(locks).unwrap_or(NonZeroUsize::MIN).min(Self::MAX_PAGE_SIZE);
        self
    }
}

impl Default for ListOptions {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_set_counts_together() {
        let key = LockKey::new("orders/7").unwrap();
        let both = LockFilter::new().prefix("orders/").owner("a");
        assert!(both.matches(&key, Some("a")) && !both.matches(&key, Some("b")) && !both.matches(&key, None));
        assert!(!both.prefix("Orders/").matches(&key, Some("a")));
        assert!(LockFilter::new().matches(&key, None) && LockFilter::new().ensure_not_everything().is_err());
        assert!(LockFilter::new().owner("").ensure_not_everything().is_ok());
    }

    #[test]
    fn a_page_holds_something_and_not_everything() {
        assert_eq!(ListOptions::new().page_size(0).page_size.get(), 1);
        assert_eq!(ListOptions::new().page_size(usize::MAX).page_size, ListOptions::MAX_PAGE_SIZE);
    }
}
