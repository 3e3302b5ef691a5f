//! Locks within one process.

mod admin;
mod builder;
mod entry;
mod shard;
mod turn;
mod wait;
mod watched;

use std::fmt;
use std::hash::BuildHasher;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use distlock_api::store::ProviderId;
use distlock_api::{
    Accounting, AcquireOptions, Acquired, Capabilities, ErrorKind, FencingToken, Holder, LeaseOptions, LockAdmin,
    LockError, LockEvent, LockGuard, LockKey, LockProvider, Result,
};
use foldhash::fast::RandomState;
use tokio::runtime::Handle;
use tokio::sync::broadcast;
use tokio::time::Instant;

pub use self::builder::MemoryProviderBuilder;

use self::admin::History;
use self::entry::Entry;
use self::shard::Shard;
use self::turn::Turn;

/// Enough that threads seldom meet at one, and little memory for those that never see a key.
const SHARDS: usize = 64;

/// Locks between the tasks and threads of one process, as a direct [`LockProvider`]: no store, no renewal, no expiry.
///
/// Clones share the same locks.
///
/// # Behaviour
/// * **Fair**: waiters of a key are served in the order of their calls; a release hands the lock over, nobody barges in (C15).
/// * **A lock never expires**: lease times are checked and otherwise ignored. Its guard is lost only by [`close`](LockProvider::close) or
///   [`force_release`](LockAdmin::force_release), and then at once.
/// * **Idle keys take no memory**: a key that nobody holds or waits for leaves nothing behind, and yet its tokens never repeat (C5). They do start anew with the process.
/// * **Minimum holds** are kept (C25).
///
/// # Runtime
/// [`Wait::Try`](distlock_api::Wait::Try) and [`Wait::Forever`](distlock_api::Wait::Forever) work on any executor. [`Wait::UpTo`](distlock_api::Wait::UpTo), where it really has to wait, and a minimum hold need tokio's timer: outside of a tokio
/// runtime they are refused with [`Unsupported`](ErrorKind::Unsupported); in one whose timer is not enabled they panic.
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
#[derive(Clone)]
pub struct MemoryProvider {
    shared: Arc<Shared>,
}

struct Shared {
    id: ProviderId,
    hasher: RandomState,
    shards: [Arc<Shard>; SHARDS],
    /// Of holders who say nothing of themselves.
    defaults: Holder,
    history: Mutex<History>,
    /// Made for the first watcher.
    events: OnceLock<broadcast::Sender<LockEvent>>,
}

/// A minimum hold, and the runtime whose timer will end it.
#[derive(Clone, Debug)]
struct Hold {
    at_least: Duration,
    runtime: Handle,
}

impl Hold {
    /// The hold of a lock that is granted now: when it ends, and whose timer waits for that.
    fn start(self) -> (Instant, Handle) {
        (Instant::now() + self.at_least, self.runtime)
    }
}

impl MemoryProvider {
    /// A provider with locks of its own.
    #[must_use]
    pub fn new() -> Self {
        Self::with_defaults(Holder::of_this_process())
    }

    /// A provider still to be configured.
    pub fn builder() -> MemoryProviderBuilder {
        MemoryProviderBuilder::new()
    }

    fn with_defaults(defaults: Holder) -> Self {
        Self {
            shared: Arc::new(Shared {
                id: ProviderId::random(),
                hasher: RandomState::default(),
                shards: std::array::from_fn(|_| Arc::default()),
                defaults,
                history: Mutex::default(),
                events: OnceLock::new(),
            }),
        }
    }

    /// How many keys are held, waited for or kept closed by a minimum hold: those that take memory.
    #[must_use]
    pub fn keys_in_use(&self) -> usize {
        self.shared.shards.iter().map(|shard| shard.lock().keys_in_use()).sum()
    }

    #[inline]
    fn shard(&self, key: &LockKey) -> (u64, &Arc<Shard>) {
        let hash = self.shared.hasher.hash_one(key.as_str());
        // The table in the shard looks at the lowest and the seven highest bits.
        (hash, &self.shared.shards[(hash >> 40) as usize % SHARDS])
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
    async fn acquire_with(&self, key: LockKey, options: AcquireOptions) -> Result<Acquired> {
        let mut hold = minimum_hold(&options)?;
        options.holder().validate()?;
        let (hash, shard) = self.shard(&key);
        let granted = shard.lock().grant(hash, &key, options.holder(), &mut hold);
        if let Some(token) = granted {
            return Ok(Acquired::Held(guard(key, Turn::new(shard.clone(), hash, token))));
        }
        // Boxed, so that those who need not wait do not carry a waiter's state about.
        Box::pin(wait::granted(shard, hash, key, options, hold)).await
    }

    fn capabilities(&self) -> Capabilities {
        let mut capabilities = Capabilities::default();
        capabilities.minimum_hold = true;
        capabilities.fair = true;
        capabilities.push = true;
        capabilities
    }

    fn accounting(&self) -> Accounting {
        let mut sum = Accounting::new();
        for shard in &self.shared.shards {
            sum += shard.lock().tally();
        }
        sum
    }

    fn admin(&self) -> Option<&dyn LockAdmin> {
        Some(self)
    }

    async fn close(&self) -> Result<()> {
        for shard in &self.shared.shards {
            let entries = shard.lock().close();
            entries.into_iter().for_each(Entry::end_closed);
        }
        Ok(())
    }
}

#[inline]
fn guard(key: LockKey, turn: Turn) -> LockGuard {
    LockGuard::new(key, FencingToken::new(turn.token()), Box::new(turn))
}

/// Checks the lease options. All of them but the minimum hold mean nothing here.
fn minimum_hold(options: &AcquireOptions) -> Result<Option<Hold>> {
    const DEFAULTS: LeaseOptions = LeaseOptions::new();
    if options.lease() == DEFAULTS {
        return Ok(None);
    }
    let Some(at_least) = options.lease().terms()?.hold_at_least else { return Ok(None) };
    let runtime = Handle::try_current().map_err(|error| needs_runtime("a minimum hold").with_source(error))?;
    Ok(Some(Hold { at_least, runtime }))
}

fn needs_runtime(what: &str) -> LockError {
    LockError::new(ErrorKind::Unsupported, format!("{what} needs a tokio runtime"))
}
