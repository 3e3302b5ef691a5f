//! Which keys were in use when they were last seen, and which were seen at all: Bloom filters.
//!
//! They decide only which command is tried first. A key that was free is taken by the fast path,
//! and one that was never seen may have no record. A wrong guess costs a command. Keys share bits,
//! so the memory does not grow with their number: 192 KiB for a store that locks, and nothing
//! before.

use std::hash::{BuildHasher, RandomState};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// The bits of one filter. With 65,000 leases held, a free key is mistaken for one in use once in
/// eight times.
const BITS: usize = 1 << 19;
/// When this many bits are set, half of what was seen is forgotten. A key that was never seen is
/// mistaken once in thirty times at most, because each has two bits.
const SEEN_AT_MOST: usize = BITS / 8;

/// The keys of one store.
#[derive(Debug, Default)]
pub(crate) struct KeyMemory {
    hasher: RandomState,
    in_use: Bits,
    /// The latest, and those before.
    seen: [Bits; 2],
    latest: AtomicUsize,
}

/// What is known of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Known {
    /// Whether it was free, or has not been seen yet.
    pub(crate) was_free: bool,
    /// Whether it was in use before, so that it has a record.
    pub(crate) was_seen: bool,
}

/// A bit per hash.
#[derive(Debug, Default)]
struct Bits {
    words: OnceLock<Box<[AtomicU64]>>,
    /// How many bits were set since the last [`clear`](Self::clear).
    set: AtomicUsize,
}

impl Bits {
    fn place(hash: u64) -> (usize, u64) {
        let bit = usize::try_from(hash % BITS as u64).expect("below BITS");
        (bit / 64, 1 << (bit % 64))
    }

    fn has(&self, hash: u64) -> bool {
        let (word, mask) = Self::place(hash);
        self.words.get().is_some_and(|words| words[word].load(Ordering::Relaxed) & mask != 0)
    }

    /// Returns how many bits were set since the last [`clear`](Self::clear).
    fn insert(&self, hash: u64) -> usize {
        let (word, mask) = Self::place(hash);
        let words = self.words.get_or_init(|| (0..BITS / 64).map(|_| AtomicU64::new(0)).collect());
        let is_new = words[word].fetch_or(mask, Ordering::Relaxed) & mask == 0;
        self.set.fetch_add(usize::from(is_new), Ordering::Relaxed) + usize::from(is_new)
    }

    fn remove(&self, hash: u64) {
        let (word, mask) = Self::place(hash);
        if let Some(words) = self.words.get() {
            words[word].fetch_and(!mask, Ordering::Relaxed);
        }
    }

    fn clear(&self) {
        self.words.get().into_iter().flatten().for_each(|word| word.store(0, Ordering::Relaxed));
        self.set.store(0, Ordering::Relaxed);
    }
}

impl KeyMemory {
    pub(crate) fn known(&self, key: &str) -> Known {
        self.known_by(self.hasher.hash_one(key))
    }

    fn known_by(&self, hash: u64) -> Known {
        let was_seen = self.seen.iter().any(|seen| twice(hash).iter().all(|hash| seen.has(*hash)));
        Known { was_free: !self.in_use.has(hash), was_seen }
    }

    /// Records that the key is about to have a holder or a waiter, and returns what was known
    /// before.
    pub(crate) fn begin_use(&self, key: &str) -> Known {
        let hash = self.hasher.hash_one(key);
        let known = self.known_by(hash);
        self.in_use.insert(hash);
        let latest = self.latest.load(Ordering::Relaxed);
        let seen = &self.seen[latest % 2];
        if twice(hash).map(|hash| seen.insert(hash))[1] >= SEEN_AT_MOST {
            let next = latest.wrapping_add(1);
            if self.latest.compare_exchange(latest, next, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
                self.seen[next % 2].clear();
            }
        }
        known
    }

    /// Records that the key was released, and had no waiter.
    pub(crate) fn end_use(&self, key: &str) {
        self.in_use.remove(self.hasher.hash_one(key));
    }
}

/// Two hashes from the halves of one.
fn twice(hash: u64) -> [u64; 2] {
    [hash, hash.rotate_left(32)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_free_until_it_is_used_and_again_after_its_release() {
        let memory = KeyMemory::default();
        assert!(memory.known("k").was_free);
        memory.begin_use("k");
        assert!(!memory.known("k").was_free);
        memory.end_use("k");
        assert!(memory.known("k").was_free);
    }

    #[test]
    fn few_keys_in_use_are_mistaken_for_others() {
        let memory = KeyMemory::default();
        for n in 0..10 {
            memory.begin_use(&format!("used {n}"));
        }
        let mistaken = (0..1000).filter(|n| !memory.known(&format!("other {n}")).was_free).count();
        assert!(mistaken < 100, "{mistaken}");
    }

    #[test]
    fn many_keys_in_use_leave_most_others_free() {
        let memory = KeyMemory::default();
        for n in 0..65_000 {
            memory.begin_use(&format!("used {n}"));
        }
        let mistaken = (0..1000).filter(|n| !memory.known(&format!("other {n}")).was_free).count();
        assert!(mistaken < 200, "{mistaken}");
    }

    #[test]
    fn the_latest_keys_are_remembered_and_older_ones_forgotten() {
        let memory = KeyMemory::default();
        let keys = 5 * SEEN_AT_MOST;
        for n in 0..keys {
            let key = format!("key {n}");
            memory.begin_use(&key);
            assert!(memory.known(&key).was_seen);
        }
        assert!((keys - SEEN_AT_MOST / 2..keys).all(|n| memory.known(&format!("key {n}")).was_seen));
        let mistaken = (0..1000).filter(|n| memory.known(&format!("key {n}")).was_seen).count();
        assert!(mistaken < 80, "{mistaken}");
    }
}
