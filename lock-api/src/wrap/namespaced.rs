//! A part of the key space as a provider.

use std::fmt;
use std::future::ready;
use std::num::NonZeroUsize;

use async_trait::async_trait;
use futures_util::stream::{self, TryStreamExt};

use crate::acquisition::AcquisitionId;
use crate::admin::{ForcedRelease, ListOptions, LockAdmin, LockEvents, LockFilter, LockInfo, LockList};
use crate::delegate_provider;
use crate::error::{LockError, Result};
use crate::key::LockKey;
use crate::options::AcquireOptions;
use crate::parse::check_namespace;
use crate::provider::{Acquired, LockProvider};
use crate::style::yield_on_error;

/// A provider whose keys live under a prefix of another provider's: key `7` of namespace `orders`
/// is key `orders/7` inside.
///
/// A namespace does not contain `/`, so two namespaces of one provider never share a key ([C20]):
/// the first `/` ends the namespace. Namespaces nest. Code that uses the inner provider directly
/// sees, and can use, every namespace.
///
/// Guards, errors and [`LockInfo`] show the key without the prefix, as the caller named it. For
/// single calls, a pair as a key does the same: see [`IntoLockKey`](crate::IntoLockKey#pairs).
///
/// ```
/// use distlock_api::{LockProvider, Namespaced, LockError};
///
/// fn of_tenant<P: LockProvider>(locks: P) -> Result<Namespaced<P>, LockError> {
///     Namespaced::new(locks, "tenant-1")
/// }
/// ```
///
/// [C20]: distlock_api::contract#c20
#[derive(Clone, Debug)]
pub struct Namespaced<P> {
    inner: P,
    prefix: String,
}

impl<P: LockProvider> Namespaced<P> {
    /// Makes a namespace of a provider.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidKey`](crate::ErrorKind::InvalidKey) when the namespace is empty,
    /// contains `/`, or leaves no room for a key.
    pub fn new(inner: P, namespace: &str) -> Result<Self> {
        check_namespace(namespace)?;
        if namespace.len() + 2 > LockKey::MAX_LEN {
            return Err(LockError::invalid_key(format!(
                "the namespace leaves no room for a key: shorten it to {} bytes at most",
                LockKey::MAX_LEN - 2
            )));
        }
        Ok(Self { inner, prefix: format!("{namespace}/") })
    }

    /// Returns the provider inside.
    pub fn get_ref(&self) -> &P {
        &self.inner
    }

    /// Returns the provider inside.
    pub fn into_inner(self) -> P {
        self.inner
    }

    fn full_key(&self, key: &LockKey) -> Result<LockKey> {
        LockKey::new(format!("{}{}", self.prefix, key.as_str())).map_err(|error| error.with_key(key.clone()))
    }
}

/// Returns the answer with the key as the caller named it.
fn without_namespace(answer: Result<Acquired>, key: LockKey) -> Result<Acquired> {
    match answer {
        Ok(Acquired::Held(guard)) => Ok(Acquired::Held(guard.with_key(key))),
        Ok(busy) => Ok(busy),
        Err(error) => Err(error.with_key(key)),
    }
}

impl<P: fmt::Display> fmt::Display for Namespaced<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Namespaced({}, {:?})", self.inner, &self.prefix[..self.prefix.len() - 1])
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl<P: LockProvider> LockProvider for Namespaced<P> {
    async fn acquire_with(&self, key: LockKey, options: AcquireOptions) -> Result<Acquired> {
        let full = yield_on_error(ready(self.full_key(&key))).await?;
        without_namespace(self.inner.acquire_with(full, options).await, key)
    }

    fn acquire_now(&self, key: &LockKey, options: &AcquireOptions) -> Option<Result<Acquired>> {
        let full = match self.full_key(key) {
            Ok(full) => full,
            Err(error) => return Some(Err(error)),
        };
        Some(without_namespace(self.inner.acquire_now(&full, options)?, key.clone()))
    }

    fn admin(&self) -> Option<&dyn LockAdmin> {
        self.inner.admin().is_some().then_some(self)
    }

    delegate_provider!(this => this.inner; capabilities, accounting, close);
}

/// Locks outside of the namespace are neither shown nor changed.
#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl<P: LockProvider> LockAdmin for Namespaced<P> {
    async fn inspect(&self, key: &LockKey) -> Result<Option<LockInfo>> {
        let (admin, full) = self.inner_admin_of(key).await?;
        let info = admin.inspect(&full).await?;
        Ok(info.map(|info| LockInfo { key: key.clone(), ..info }))
    }

    async fn force_release(&self, key: &LockKey, reason: &str) -> Result<Option<LockInfo>> {
        let (admin, full) = self.inner_admin_of(key).await?;
        let info = admin.force_release(&full, reason).await?;
        Ok(info.map(|info| LockInfo { key: key.clone(), ..info }))
    }

    async fn force_release_holder(&self, key: &LockKey, id: &AcquisitionId, reason: &str) -> Result<Option<LockInfo>> {
        let (admin, full) = self.inner_admin_of(key).await?;
        let info = admin.force_release_holder(&full, id, reason).await?;
        Ok(info.map(|info| LockInfo { key: key.clone(), ..info }))
    }

    fn list(&self, options: ListOptions) -> LockList<'_> {
        let admin = match self.inner_admin() {
            Ok(admin) => admin,
            Err(error) => return Box::pin(stream::once(ready(Err(error)))),
        };
        let inner = admin.list(options.map_filter(|filter| self.full_filter(filter)));
        Box::pin(inner.try_filter_map(|info| ready(Ok(self.own_key(&info.key).map(|key| LockInfo { key, ..info })))))
    }

    async fn page(&self, filter: &LockFilter, after: Option<&LockKey>, limit: NonZeroUsize) -> Result<Vec<LockInfo>> {
        // The bare prefix is no key of this namespace: the page starts after it.
        let after = after.map_or_else(|| LockKey::new(self.prefix.as_str()), |key| self.full_key(key));
        let checked = after.and_then(|after| Ok((self.inner_admin()?, after)));
        let (admin, after) = yield_on_error(ready(checked)).await?;
        let page = admin.page(&self.full_filter(filter.clone()), Some(&after), limit).await?;
        Ok(page.into_iter().filter_map(|info| self.own_key(&info.key).map(|key| LockInfo { key, ..info })).collect())
    }

    async fn watch(&self) -> Result<LockEvents> {
        let inner = yield_on_error(ready(self.inner_admin())).await?.watch().await?;
        let prefix = self.prefix.clone();
        Ok(Box::pin(inner.try_filter_map(move |event| {
            ready(Ok(match event.key() {
                None => Some(event),
                Some(full) => without_prefix(full, &prefix).map(|key| event.with_key(key)),
            }))
        })))
    }

    async fn release_owner(&self, owner: &str, reason: &str) -> Result<u64> {
        self.release_matching(&LockFilter::new().owner(owner), reason).await
    }

    async fn release_matching(&self, filter: &LockFilter, reason: &str) -> Result<u64> {
        // Before the prefix is added, which would restrict it.
        let checked = filter.ensure_restricted().and_then(|()| self.inner_admin());
        let admin = yield_on_error(ready(checked)).await?;
        admin.release_matching(&self.full_filter(filter.clone()), reason).await
    }

    async fn history(&self, key: &LockKey) -> Result<Vec<ForcedRelease>> {
        let (admin, full) = self.inner_admin_of(key).await?;
        admin.history(&full).await
    }
}

impl<P: LockProvider> Namespaced<P> {
    fn inner_admin(&self) -> Result<&dyn LockAdmin> {
        let message = "this backend offers no administration: use one that does";
        self.inner.admin().ok_or_else(|| LockError::new(crate::ErrorKind::Unsupported, message))
    }

    /// Returns the administration inside, and the key there.
    async fn inner_admin_of(&self, key: &LockKey) -> Result<(&dyn LockAdmin, LockKey)> {
        let found = self.inner_admin().and_then(|admin| Ok((admin, self.full_key(key)?)));
        yield_on_error(ready(found)).await
    }

    fn full_filter(&self, filter: LockFilter) -> LockFilter {
        let prefix = format!("{}{}", self.prefix, filter.prefix);
        filter.prefix(prefix)
    }

    /// Returns a key of this namespace as the caller names it; `None` for a key of another
    /// namespace, and for the bare prefix.
    fn own_key(&self, full: &LockKey) -> Option<LockKey> {
        without_prefix(full, &self.prefix)
    }
}

fn without_prefix(full: &LockKey, prefix: &str) -> Option<LockKey> {
    LockKey::new(full.as_str().strip_prefix(prefix)?).ok()
}
