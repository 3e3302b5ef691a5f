//! The shards of a provider, and the mapping of keys to them.

use std::hash::BuildHasher;
use std::num::NonZeroUsize;
use std::sync::{Arc, OnceLock};

use distlock_api::LockKey;
use foldhash::fast::RandomState;

use super::turn::TurnShard;

/// Enough per core that threads seldom meet at one shard, and few enough that all of them stay in
/// the cache of the processor.
const PER_CORE: usize = 8;

pub(super) struct Shards {
    hasher: RandomState,
    /// Their number is a power of two.
    shards: Box<[Arc<TurnShard>]>,
}

impl Shards {
    /// Returns the hash of the key, and its shard.
    #[inline]
    pub(super) fn of(&self, key: &LockKey) -> (u64, &Arc<TurnShard>) {
        let hash = self.hasher.hash_one(key.as_str());
        // The table in the shard uses the lowest and the seven highest bits.
        (hash, &self.shards[(hash >> 40) as usize & (self.shards.len() - 1)])
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Arc<TurnShard>> {
        self.shards.iter()
    }
}

impl Default for Shards {
    fn default() -> Self {
        Self { hasher: RandomState::default(), shards: (0..count()).map(|_| Arc::default()).collect() }
    }
}

fn count() -> usize {
    static COUNT: OnceLock<usize> = OnceLock::new();
    *COUNT.get_or_init(|| {
        let cores = std::thread::available_parallelism().map_or(8, NonZeroUsize::get);
        (cores * PER_CORE).next_power_of_two()
    })
}
