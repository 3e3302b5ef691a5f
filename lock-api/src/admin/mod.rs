//! Looking at locks, and taking them away.

mod event;
mod filter;
mod info;

use std::num::NonZeroUsize;
use std::pin::Pin;

use async_trait::async_trait;
use futures_core::Stream;
use futures_util::stream::{TryStreamExt, iter, try_unfold};

use crate::error::{ErrorKind, LockError, Result};
use crate::key::LockKey;

pub use event::{LockEvent, LockEvents};
pub use filter::{ListOptions, LockFilter};
pub use info::{ForcedRelease, LockInfo};

/// Administration of the locks behind a provider, for operators and their tools.
///
/// Nothing here is needed to use locks, and nothing that it returns may be used for safety: it was true when the store read it.
///
/// Owners are what holders say of themselves. Whoever can acquire a lock can name any owner, and whoever can administer can take every lock away.
///
/// # Implementing
/// Only [`inspect`](Self::inspect) and [`force_release`](Self::force_release) are required. Everything else says
/// [`Unsupported`](ErrorKind::Unsupported) unless a backend implements it; [`list`](Self::list) comes from [`page`](Self::page).
///
/// ```
/// use distlock_api::{ListOptions, LockAdmin, LockError, LockFilter};
/// use futures_util::TryStreamExt;
///
/// /// A web session has ended: whatever it still holds is given to others.
/// async fn end_session(admin: &dyn LockAdmin, session: &str) -> Result<(), LockError> {
///     let mut held = admin.list(ListOptions::new().owner(session));
///     while let Some(lock) = held.try_next().await? {
///         println!("{} for another {:?}", lock.key, lock.remaining);
///     }
///     admin.release_matching(&LockFilter::new().owner(session), "session ended").await?;
///     Ok(())
/// }
/// ```
#[async_trait]
pub trait LockAdmin: Send + Sync {
    /// The present state of a key: none if nobody holds it and nothing keeps it closed.
    ///
    /// # Errors
    /// When the store cannot be asked.
    async fn inspect(&self, key: &LockKey) -> Result<Option<LockInfo>>;

    /// Takes the lock away from its holder, and ends a minimum hold, whether or not there is still a
    /// guard (C22). Returns what kept the key closed, as [`inspect`](Self::inspect) shows it; `None` if
    /// the key was free. The [`id`](LockInfo::id) is `None` if only a minimum hold kept it closed.
    ///
    /// The key's token advances, and the victim's [`lost`](crate::LockGuard::lost) fires with its next renewal or pushed event. Until then the victim
    /// believes that it holds the lock: only its token tells a resource that it does not. [`history`](Self::history) remembers who, when and why.
    ///
    /// The reason is kept as it is, U+0000 included; a backend may cut a long one.
    ///
    /// # Errors
    /// When the store cannot be asked, or the outcome is unknown.
    async fn force_release(&self, key: &LockKey, reason: &str) -> Result<Option<LockInfo>>;

    /// The locks that match and are not free – what [`inspect`](Self::inspect) shows – in the order of their keys, read page by page as the stream is
    /// polled. A record that the backend cannot read is [an item of its own](LockInfo::unreadable). Each page is true at its own moment: a lock that is taken or freed meanwhile may be missing or be shown, but none twice.
    ///
    /// Made of [`page`](Self::page); there is no need to implement it. The stream ends after its first error.
    fn list(&self, options: ListOptions) -> LockList<'_> {
        let ListOptions { filter, page_size } = options;
        let pages = try_unfold(Some(None::<LockKey>), move |place| {
            let filter = filter.clone();
            async move {
                let Some(after) = place else { return Ok(None) };
                let page = self.page(&filter, after.as_ref(), page_size).await?;
                let last = page.last().map(|info| info.key.clone());
                let next = last.filter(|_| page.len() >= page_size.get()).map(Some);
                Ok::<_, LockError>(Some((iter(page.into_iter().map(Ok)), next)))
            }
        });
        Box::pin(pages.try_flatten())
    }

    /// One page of [`list`](Self::list): the first `limit` locks that match, by the order of their keys, beyond the key `after`. Fewer mean that
    /// there are no more.
    ///
    /// # Errors
    /// [`Unsupported`](ErrorKind::Unsupported) by default; when the store cannot be asked.
    async fn page(&self, filter: &LockFilter, after: Option<&LockKey>, limit: NonZeroUsize) -> Result<Vec<LockInfo>> {
        let _ = (filter, after, limit);
        Err(unsupported("cannot list locks"))
    }

    /// What happens to the locks from now on.
    ///
    /// Events of one key come in the order in which they happened. The stream tells by [`Gap`](LockEvent::Gap) that it may have missed some, and ends when
    /// the store ends it. It does not keep the provider alive or open.
    ///
    /// # Errors
    /// [`Unsupported`](ErrorKind::Unsupported) by default, and where the deployment has no push; when the store cannot be asked. The same hold for the items of the stream: an
    /// error is its last one.
    async fn watch(&self) -> Result<LockEvents> {
        Err(unsupported("cannot watch locks"))
    }

    /// Takes all locks away from the owner, as [`force_release`](Self::force_release) does with one, and tells how many there were: for a web session, a
    /// process or a host that has ended. Never one that somebody else has acquired meanwhile.
    ///
    /// # Errors
    /// As [`release_matching`](Self::release_matching).
    async fn release_owner(&self, owner: &str, reason: &str) -> Result<u64> {
        self.release_matching(&LockFilter::new().owner(owner), reason).await
    }

    /// Takes all locks away that are held and match, as [`force_release`](Self::force_release) does with one, and tells how many there were.
    ///
    /// Whether a lock matches is decided in the step that takes it away. The locks are taken away one by one, not all at one moment.
    ///
    /// # Errors
    /// [`InvalidOptions`](ErrorKind::InvalidOptions) for a filter that matches every lock; [`Unsupported`](ErrorKind::Unsupported) by default; when the store cannot be asked, or the
    /// outcome is unknown: then some of the locks may be released. It can be called again.
    async fn release_matching(&self, filter: &LockFilter, reason: &str) -> Result<u64> {
        let _ = (filter, reason);
        Err(unsupported("cannot release the locks of an owner"))
    }

    /// The last few times that this key was taken away by force, the oldest first: who lost it, when, and why.
    ///
    /// # Errors
    /// [`Unsupported`](ErrorKind::Unsupported) by default; when the store cannot be asked.
    async fn history(&self, key: &LockKey) -> Result<Vec<ForcedRelease>> {
        let _ = key;
        Err(unsupported("keeps no history of forced releases"))
    }
}

/// Locks, page by page. See [`LockAdmin::list`].
pub type LockList<'a> = Pin<Box<dyn Stream<Item = Result<LockInfo>> + Send + 'a>>;

fn unsupported(what: &str) -> LockError {
    LockError::new(ErrorKind::Unsupported, format!("this backend {what}"))
}
