//! Filters and options for lists of locks.

use std::num::NonZeroUsize;

use crate::admin::info::LockInfo;
use crate::error::{LockError, Result};
use crate::key::LockKey;

/// Selects locks: those that meet every condition that is set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockFilter {
    /// The start of the key, compared byte by byte; empty for all keys.
    pub prefix: String,
    /// The exact owner; `None` for all locks, including those without a holder.
    pub owner: Option<String>,
}

impl LockFilter {
    /// Makes a filter that matches every lock.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Matches only keys that start with `prefix`, compared byte by byte. Defaults to all keys.
    #[must_use]
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// Matches only locks that are held by exactly this owner. Defaults to all locks.
    #[must_use]
    pub fn owner(mut self, owner: impl Into<String>) -> Self {
        self.owner = Some(owner.into());
        self
    }

    /// Returns whether the filter matches every lock.
    #[must_use]
    pub fn matches_all(&self) -> bool {
        self.prefix.is_empty() && self.owner.is_none()
    }

    /// Returns whether the filter matches a lock with this key and owner.
    #[must_use]
    pub fn matches(&self, key: &LockKey, owner: Option<&str>) -> bool {
        key.as_str().starts_with(&self.prefix) && self.owner.as_deref().is_none_or(|wanted| owner == Some(wanted))
    }

    /// Returns whether the filter matches a lock by its key and by one of its owners:
    /// [`LockInfo::owner`], or the owner of any of [`LockInfo::holders`].
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use distlock_api::{AcquisitionId, FencingToken, LockFilter, LockHolder, LockInfo, LockKey, Mode};
    ///
    /// let (token, left) = (FencingToken::new(8), Duration::from_secs(20));
    /// let reader = |id: &str, owner: &str| {
    ///     let holder = LockHolder::new(AcquisitionId::new(id), Mode::Shared, token, left);
    ///     holder.with_holder(Some(owner.into()), Default::default())
    /// };
    /// let holders = vec![reader("a", "host-1"), reader("b", "host-2")];
    /// let info = LockInfo::new(LockKey::new("report/7")?, Some(AcquisitionId::new("a")), token, left)
    ///     .with_holder(Some("host-1".into()), Default::default())
    ///     .with_holders(holders);
    ///
    /// assert!(LockFilter::new().owner("host-2").matches_info(&info));
    /// assert!(!LockFilter::new().owner("host-3").matches_info(&info));
    /// assert!(!LockFilter::new().prefix("order/").owner("host-2").matches_info(&info));
    /// # Ok::<(), distlock_api::LockError>(())
    /// ```
    #[must_use]
    pub fn matches_info(&self, info: &LockInfo) -> bool {
        let others = info.holders.iter().map(|holder| &holder.owner);
        others.chain([&info.owner]).any(|owner| self.matches(&info.key, owner.as_deref()))
    }

    /// Checks that the filter does not match every lock, where that would be an accident.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidOptions`](crate::ErrorKind::InvalidOptions) if
    /// [`matches_all`](Self::matches_all).
    pub fn ensure_restricted(&self) -> Result<()> {
        if self.matches_all() {
            return Err(LockError::invalid_options("the filter matches every lock: set an owner or a prefix"));
        }
        Ok(())
    }
}

/// Options of [`LockAdmin::list`](crate::LockAdmin::list).
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct ListOptions {
    filter: LockFilter,
    page_size: NonZeroUsize,
}

impl ListOptions {
    /// The default page size: 100.
    pub const DEFAULT_PAGE_SIZE: NonZeroUsize = NonZeroUsize::new(100).expect("not zero");
    /// The largest page size: 1,000.
    pub const MAX_PAGE_SIZE: NonZeroUsize = NonZeroUsize::new(1000).expect("not zero");

    /// Makes options that list every lock.
    pub fn new() -> Self {
        Self { filter: LockFilter::new(), page_size: Self::DEFAULT_PAGE_SIZE }
    }

    /// Lists only locks that match. Replaces the filter that was set before.
    pub fn filter(mut self, filter: LockFilter) -> Self {
        self.filter = filter;
        self
    }

    /// Sets the prefix of the filter: see [`LockFilter::prefix`].
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.filter = self.filter.prefix(prefix);
        self
    }

    /// Sets the owner of the filter: see [`LockFilter::owner`].
    pub fn owner(mut self, owner: impl Into<String>) -> Self {
        self.filter = self.filter.owner(owner);
        self
    }

    /// Replaces the filter by what `translate` makes of it. For wrappers that translate keys.
    pub fn map_filter(mut self, translate: impl FnOnce(LockFilter) -> LockFilter) -> Self {
        self.filter = translate(self.filter);
        self
    }

    /// Sets how many locks are read at once. Defaults to
    /// [`DEFAULT_PAGE_SIZE`](Self::DEFAULT_PAGE_SIZE). Zero counts as one, and a number above
    /// [`MAX_PAGE_SIZE`](Self::MAX_PAGE_SIZE) as that.
    pub fn page_size(mut self, locks: usize) -> Self {
        self.page_size = NonZeroUsize::new(locks).unwrap_or(NonZeroUsize::MIN).min(Self::MAX_PAGE_SIZE);
        self
    }

    /// Returns the filter and the page size. For backends that implement
    /// [`LockAdmin::list`](crate::LockAdmin::list) themselves.
    #[must_use]
    pub fn into_parts(self) -> (LockFilter, NonZeroUsize) {
        (self.filter, self.page_size)
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
    fn every_condition_must_be_met() {
        let key = LockKey::new("orders/7").unwrap();
        let both = LockFilter::new().prefix("orders/").owner("a");
        assert!(both.matches(&key, Some("a")) && !both.matches(&key, Some("b")) && !both.matches(&key, None));
        assert!(!both.prefix("Orders/").matches(&key, Some("a")));
        assert!(LockFilter::new().matches(&key, None) && LockFilter::new().ensure_restricted().is_err());
        assert!(LockFilter::new().owner("").ensure_restricted().is_ok());
    }

    #[test]
    fn a_page_size_is_between_one_and_the_largest() {
        assert_eq!(ListOptions::new().page_size(0).page_size.get(), 1);
        assert_eq!(ListOptions::new().page_size(usize::MAX).page_size, ListOptions::MAX_PAGE_SIZE);
    }
}
