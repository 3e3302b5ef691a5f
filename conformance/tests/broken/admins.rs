//! Administration that breaks what [`LockAdmin`] says.

use std::fmt;
use std::num::NonZeroUsize;

use distlock_api::{
    Accounting, AcquireOptions, Acquired, Capabilities, ForcedRelease, LockAdmin, LockEvent, LockEvents, LockFilter,
    LockInfo, LockKey, LockProvider, Result, async_trait,
};
use distlock_engine::LeaseProvider;
use futures_util::TryStreamExt;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Admin {
    /// An owner's locks are found by a prefix of the owner.
    OwnerByPrefix,
    /// A list ends after its first page.
    OnePage,
    /// A release by filter releases all locks, whatever the filter.
    ReleasesOthers,
    /// Only the last force-release is remembered.
    ShortMemory,
    /// An empty filter is accepted and releases nothing, instead of being refused.
    AcceptsEmptyFilters,
    /// A force-release is reported as a release.
    ForceIsRelease,
    /// A force-release needs a holder, so a minimum hold keeps its key closed.
    ForceNeedsHolder,
    /// Releases are not reported.
    HidesReleases,
}

impl Admin {
    pub(crate) fn around(self, inner: LeaseProvider) -> BrokenAdmin {
        BrokenAdmin { inner, broken: self }
    }
}

#[derive(Debug)]
pub(crate) struct BrokenAdmin {
    inner: LeaseProvider,
    broken: Admin,
}

impl BrokenAdmin {
    fn admin(&self) -> &dyn LockAdmin {
        self.inner.admin().expect("a store with administration")
    }
}

#[async_trait]
impl LockAdmin for BrokenAdmin {
    async fn inspect(&self, key: &LockKey) -> Result<Option<LockInfo>> {
        self.admin().inspect(key).await
    }

    async fn force_release(&self, key: &LockKey, reason: &str) -> Result<Option<LockInfo>> {
        if self.broken == Admin::ForceNeedsHolder
            && self.admin().inspect(key).await?.is_none_or(|info| info.id.is_none())
        {
            return Ok(None);
        }
        self.admin().force_release(key, reason).await
    }

    async fn page(&self, filter: &LockFilter, after: Option<&LockKey>, limit: NonZeroUsize) -> Result<Vec<LockInfo>> {
        match self.broken {
            Admin::OnePage if after.is_some() => Ok(Vec::new()),
            Admin::OwnerByPrefix if filter.owner.is_some() => {
                let all = LockFilter::new().prefix(&*filter.prefix);
                let mut found = self.admin().page(&all, after, NonZeroUsize::MAX).await?;
                let wanted = filter.owner.as_deref().unwrap_or_default();
                found.retain(|info| info.owner.as_deref().is_some_and(|owner| owner.starts_with(wanted)));
                found.truncate(limit.get());
                Ok(found)
            }
            _ => self.admin().page(filter, after, limit).await,
        }
    }

    async fn watch(&self) -> Result<LockEvents> {
        let events = self.admin().watch().await?;
        let (force_is_release, hides) = (self.broken == Admin::ForceIsRelease, self.broken == Admin::HidesReleases);
        let hidden = move |event: &LockEvent| hides && matches!(event, LockEvent::Released { .. });
        let events = events.try_filter(move |event| std::future::ready(!hidden(event)));
        Ok(Box::pin(events.map_ok(move |event| match event {
            LockEvent::ForceReleased { key, id } if force_is_release => LockEvent::Released { key, id },
            event => event,
        })))
    }

    async fn release_matching(&self, filter: &LockFilter, reason: &str) -> Result<u64> {
        match self.broken {
            Admin::AcceptsEmptyFilters if filter.matches_all() => Ok(0),
            Admin::ReleasesOthers => {
                let all = self.admin().page(&LockFilter::new(), None, NonZeroUsize::MAX).await?;
                for info in &all {
                    self.admin().force_release(&info.key, reason).await?;
                }
                Ok(all.len() as u64)
            }
            _ => self.admin().release_matching(filter, reason).await,
        }
    }

    async fn history(&self, key: &LockKey) -> Result<Vec<ForcedRelease>> {
        let mut history = self.admin().history(key).await?;
        if self.broken == Admin::ShortMemory {
            history.drain(..history.len().saturating_sub(1));
        }
        Ok(history)
    }
}

#[async_trait]
impl LockProvider for BrokenAdmin {
    async fn acquire_with(&self, key: LockKey, options: AcquireOptions) -> Result<Acquired> {
        self.inner.acquire_with(key, options).await
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn accounting(&self) -> Accounting {
        self.inner.accounting()
    }

    fn admin(&self) -> Option<&dyn LockAdmin> {
        Some(self)
    }

    async fn close(&self) -> Result<()> {
        self.inner.close().await
    }
}

impl fmt::Display for BrokenAdmin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}({})", self.broken, self.inner)
    }
}
