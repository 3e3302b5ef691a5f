//! Locks within one process.

mod acquiring;
mod admin;
mod answers;
mod builder;
mod entry;
mod events;
mod gap_deque;
mod history;
mod holders;
mod max_hold;
mod minimum_hold;
mod queue;
mod shard;
mod shards;
mod spin;
mod state;
mod turn;

use std::fmt;
use std::sync::{Arc, Mutex, OnceLock};

use async_trait::async_trait;
use distlock_api::{
    Accounting, AcquireOptions, Acquired, Capabilities, Holder, LockAdmin, LockEvent, LockKey, LockProvider, Result,
};
use distlock_engine::store::ProviderId;
use futures_util::future::BoxFuture;
use tokio::sync::broadcast;

pub use self::builder::MemoryProviderBuilder;

use self::acquiring::Acquiring;
use self::entry::Entry;
use self::history::History;
use self::shards::Shards;

/// Locks between the tasks and threads of one process, as a direct [`LockProvider`]: no store, no
/// renewal, no expiry.
///
/// Clones share the same locks.
///
/// # Behaviour
/// * **Fair**: waiters of a key are served in the order of their calls. A release hands the lock
///   over to the first waiter, and no other caller overtakes it ([C15]). A caller that finds a key
///   held by another thread, and without a waiter, may spin for some microseconds before it joins
///   the queue. It does so only on machines with several cores, and only where locks are held that
///   briefly. A task that shares the holder's thread joins at once.
/// * **A lock never expires**: lease times are checked and otherwise ignored. Its guard is lost
///   only by [`close`](LockProvider::close) or [`force_release`](LockAdmin::force_release), and
///   then at once.
/// * **Idle keys take no memory**: a key without holder and waiter leaves nothing behind. Its
///   tokens still never repeat ([C5]). They start again with the process.
/// * **Minimum holds** are kept ([C25]). That of a shared guard, or of permits, keeps its share.
/// * **All modes**: exclusive, shared and permits, in one queue ([C26] to [C31]). A shared
///   acquisition of a free key costs as much as an exclusive one. The number of guards of a key is
///   not limited: [`Mode::MAX_HOLDERS`](distlock_api::Mode::MAX_HOLDERS) is a limit of leases.
///
/// # Runtime
/// [`Wait::Try`](distlock_api::Wait::Try) and [`Wait::Forever`](distlock_api::Wait::Forever) work
/// on any executor. [`Wait::UpTo`](distlock_api::Wait::UpTo), if it has to wait, and a minimum hold
/// need tokio's timer. Outside of a tokio runtime they are refused with
/// [`Unsupported`](distlock_api::ErrorKind::Unsupported); in one whose timer is not enabled they
/// panic.
///
/// # Examples
/// ```
/// use distlock_api::{LockError, LockProvider, LockProviderExt};
/// use distlock_memory::MemoryProvider;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), LockError> {
/// let locks = MemoryProvider::new();
/// let guard = locks.acquire("orders/4711").await?;
/// assert!(locks.try_acquire("orders/4711").await?.is_none());
/// assert!(guard.release().await?.is_released());
/// assert!(locks.accounting().balances());
/// # Ok(())
/// # }
/// ```
///
/// [C5]: distlock_api::contract#c5
/// [C15]: distlock_api::contract#c15
/// [C25]: distlock_api::contract#c25
/// [C26]: distlock_api::contract#c26
/// [C31]: distlock_api::contract#c31
#[derive(Clone)]
pub struct MemoryProvider {
    shared: Arc<Shared>,
}

struct Shared {
    id: ProviderId,
    shards: Shards,
    /// Owner and metadata of acquisitions that set none.
    defaults: Holder,
    history: Mutex<History>,
    /// Created for the first watcher.
    events: OnceLock<broadcast::Sender<LockEvent>>,
}

impl MemoryProvider {
    /// Creates a provider with locks of its own.
    #[must_use]
    pub fn new() -> Self {
        Self::with_defaults(Holder::this_process())
    }

    fn with_defaults(defaults: Holder) -> Self {
        Self {
            shared: Arc::new(Shared {
                id: ProviderId::random(),
                shards: Shards::default(),
                defaults,
                history: Mutex::default(),
                events: OnceLock::new(),
            }),
        }
    }

    /// Returns the number of keys in use: held, waited for, or kept closed by a minimum hold. Only
    /// these take memory.
    #[must_use]
    pub fn keys_in_use(&self) -> usize {
        self.shared.shards.iter().map(|shard| shard.lock().keys_in_use()).sum()
    }
}

impl Default for MemoryProvider {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Display for MemoryProvider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Memory")
    }
}

impl fmt::Debug for MemoryProvider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryProvider").field("accounting", &self.accounting()).finish_non_exhaustive()
    }
}

#[async_trait]
impl LockProvider for MemoryProvider {
    fn acquire_with<'a, 'f>(&'a self, key: LockKey, options: AcquireOptions) -> BoxFuture<'f, Result<Acquired>>
    where
        'a: 'f,
    {
        Box::pin(Acquiring::new(&self.shared.shards, key, options))
    }

    #[inline]
    fn acquire_now(&self, key: &LockKey, options: &AcquireOptions) -> Option<Result<Acquired>> {
        acquiring::at_once(&self.shared.shards, key, options).transpose()
    }

    fn capabilities(&self) -> Capabilities {
        acquiring::capabilities()
    }

    fn accounting(&self) -> Accounting {
        let mut sum = Accounting::new();
        for shard in self.shared.shards.iter() {
            sum += shard.lock().counts();
        }
        sum
    }

    fn admin(&self) -> Option<&dyn LockAdmin> {
        Some(self)
    }

    async fn close(&self) -> Result<()> {
        for shard in self.shared.shards.iter() {
            let entries = shard.lock().close();
            entries.into_iter().for_each(Entry::end_closed);
        }
        Ok(())
    }
}
