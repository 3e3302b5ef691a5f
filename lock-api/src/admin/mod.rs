//! Administration: the state of locks, and their forced release.

mod event;
mod filter;
mod info;

use std::future::ready;
use std::num::NonZeroUsize;
use std::pin::Pin;

use async_trait::async_trait;
use futures_core::Stream;
use futures_util::stream::{TryStreamExt, iter, try_unfold};

use crate::acquisition::AcquisitionId;
use crate::error::{ErrorKind, LockError, Result};
use crate::key::LockKey;
use crate::style::yield_on_error;

pub use event::{LockEvent, LockEvents};
pub use filter::{ListOptions, LockFilter};
pub use info::{ForcedRelease, LockHolder, LockInfo};

/// Administration of the locks behind a provider, for operators and their tools.
///
/// Applications do not need it to use locks. Nothing that it returns may be used for safety: it was
/// true when the store read it.
///
/// Owners are descriptions, not identities. A caller that can acquire a lock can name any owner,
/// and a caller that can administer can take every lock away.
///
/// # Implementing
/// Only [`inspect`](Self::inspect) and [`force_release`](Self::force_release) are required. The
/// other methods answer [`Unsupported`](ErrorKind::Unsupported) unless a backend implements them.
/// [`list`](Self::list) is built on [`page`](Self::page).
///
/// ```
/// use distlock_api::{ListOptions, LockAdmin, LockError, LockFilter};
/// use futures_util::TryStreamExt;
///
/// /// Releases what a web session still holds after its end.
/// async fn end_session(admin: &dyn LockAdmin, session: &str) -> Result<(), LockError> {
///     let mut held = admin.list(ListOptions::new().owner(session));
///     while let Some(lock) = held.try_next().await? {
///         println!("{} is held for another {:?}", lock.key, lock.remaining);
///     }
///     admin.release_matching(&LockFilter::new().owner(session), "session ended").await?;
///     Ok(())
/// }
/// ```
#[async_trait]
pub trait LockAdmin: Send + Sync {
    /// Returns the present state of a key: `None` if no caller holds it and nothing keeps it
    /// closed.
    ///
    /// # Errors
    /// When the store does not answer.
    async fn inspect(&self, key: &LockKey) -> Result<Option<LockInfo>>;

    /// Takes the lock away from its holder, or from all of them, and ends a minimum hold, whether
    /// or not a guard still exists ([C22]). Returns what kept the key closed, as
    /// [`inspect`](Self::inspect) shows it; `None` if the key was free. The [`id`](LockInfo::id) is
    /// `None` if only a minimum hold kept it closed.
    ///
    /// The key's token advances, and the victim's [`lost`](crate::LockGuard::lost) resolves with
    /// its next renewal or pushed event. Until then the victim acts as the holder: only its token
    /// shows a resource that it is not. [`history`](Self::history) records the victim, the time and
    /// the reason.
    ///
    /// The reason is kept unchanged, U+0000 included; a backend may cut a long one.
    ///
    /// # Errors
    /// When the store does not answer, or the outcome is unknown.
    ///
    /// [C22]: distlock_api::contract#c22
    async fn force_release(&self, key: &LockKey, reason: &str) -> Result<Option<LockInfo>>;

    /// Takes the lock away from one of its holders, as [`force_release`](Self::force_release) does
    /// with all, and leaves the others. Returns what held the key before; `None` if this
    /// acquisition did not.
    ///
    /// # Errors
    /// As [`force_release`](Self::force_release); [`Unsupported`](ErrorKind::Unsupported) by
    /// default.
    async fn force_release_holder(&self, key: &LockKey, id: &AcquisitionId, reason: &str) -> Result<Option<LockInfo>> {
        let _ = (key, id, reason);
        unsupported("cannot take a lock away from one of its holders: `force_release` takes it from all").await
    }

    /// Returns the locks that match and are not free, as [`inspect`](Self::inspect) shows them, in
    /// the order of their keys. They are read page by page as the stream is polled.
    ///
    /// A record that the backend cannot read is [an item, too](LockInfo::unreadable). Each page is
    /// true at its own moment: a lock that is acquired or released meanwhile may be shown or not,
    /// but never twice.
    ///
    /// Built on [`page`](Self::page); there is no need to implement it, unless a page costs as much
    /// as all of them. The stream ends after its first error.
    fn list(&self, options: ListOptions) -> LockList<'_> {
        let (filter, page_size) = options.into_parts();
        let pages = try_unfold(Some(None::<LockKey>), move |next| {
            let filter = filter.clone();
            async move {
                let Some(after) = next else { return Ok(None) };
                let page = self.page(&filter, after.as_ref(), page_size).await?;
                let last = page.last().map(|info| info.key.clone());
                let next = last.filter(|_| page.len() >= page_size.get()).map(Some);
                Ok::<_, LockError>(Some((iter(page.into_iter().map(Ok)), next)))
            }
        });
        Box::pin(pages.try_flatten())
    }

    /// Returns one page of [`list`](Self::list): the first `limit` locks that match, in the order
    /// of their keys, after the key `after`. A shorter page is the last one.
    ///
    /// # Errors
    /// [`Unsupported`](ErrorKind::Unsupported) by default; when the store does not answer.
    async fn page(&self, filter: &LockFilter, after: Option<&LockKey>, limit: NonZeroUsize) -> Result<Vec<LockInfo>> {
        let _ = (filter, after, limit);
        unsupported("cannot list locks: `inspect` each key").await
    }

    /// Returns the changes of the locks from now on.
    ///
    /// Events of one key come in the order in which they happened. The stream reports by
    /// [`Gap`](LockEvent::Gap) that it may have missed some, and ends when the store ends it. It
    /// does not keep the provider alive or open.
    ///
    /// # Errors
    /// [`Unsupported`](ErrorKind::Unsupported) by default, and where the deployment has no push;
    /// when the store does not answer. Items of the stream can be the same errors; an error is the
    /// last item.
    async fn watch(&self) -> Result<LockEvents> {
        unsupported("cannot watch locks: `inspect` their keys from time to time").await
    }

    /// Takes all locks away from the owner, as [`force_release`](Self::force_release) does with
    /// one, and returns how many there were. For a web session, a process or a host that has ended.
    /// It never takes a lock away that another owner has acquired meanwhile.
    ///
    /// # Errors
    /// As [`release_matching`](Self::release_matching).
    async fn release_owner(&self, owner: &str, reason: &str) -> Result<u64> {
        self.release_matching(&LockFilter::new().owner(owner), reason).await
    }

    /// Takes all locks away that are held and match, as [`force_release`](Self::force_release) does
    /// with one, and returns how many there were.
    ///
    /// Whether a lock matches is decided in the step that takes it away. The locks are taken away
    /// one by one, not all at one moment.
    ///
    /// Of a key that several hold, each holder that matches loses it. A backend may count such a
    /// key once, or once for each.
    ///
    /// # Errors
    /// [`InvalidOptions`](ErrorKind::InvalidOptions) for a filter that matches every lock;
    /// [`Unsupported`](ErrorKind::Unsupported) by default; when the store does not answer, or the
    /// outcome is unknown: then some of the locks may be released. The call can be repeated.
    async fn release_matching(&self, filter: &LockFilter, reason: &str) -> Result<u64> {
        let _ = (filter, reason);
        unsupported("cannot release the locks of an owner: `force_release` each key").await
    }

    /// Returns the last forced releases of this key, the oldest first: the victim, the time and the
    /// reason.
    ///
    /// # Errors
    /// [`Unsupported`](ErrorKind::Unsupported) by default; when the store does not answer.
    async fn history(&self, key: &LockKey) -> Result<Vec<ForcedRelease>> {
        let _ = key;
        unsupported("keeps no history of forced releases").await
    }
}

/// A stream of locks. See [`LockAdmin::list`].
pub type LockList<'a> = Pin<Box<dyn Stream<Item = Result<LockInfo>> + Send + 'a>>;

async fn unsupported<T>(what: &str) -> Result<T> {
    let error = LockError::new(ErrorKind::Unsupported, format!("this backend {what}"));
    yield_on_error(ready(Err(error))).await
}
