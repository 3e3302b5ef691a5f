//! Which keys were in use when they were last seen, which were seen at all, which were crowded, and
//! which had holders or waiters that were not exclusive: Bloom filters.
//!
//! They decide only which way is tried first: a key that was free is taken by the fast path, see
//! `Layout::take`; one that was never seen may have no record; for one that was crowded a ticket is
//! taken by the fast path, see `Layout::take_ticket`, and a reader takes the full path; one without
//! modes is handed over with fewer expressions, see `Layout::pass`. A wrong guess costs a command.
//! Keys share bits, so the memory does not grow with their number: 192 KiB for a store that locks,
//! 8 KiB more for one that meets crowds, and for one that meets modes, and nothing before.

use std::hash::{BuildHasher, RandomState};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicIsize, AtomicU64, AtomicUsize, Ordering};

/// With 65,000 leases held, a free key is mistaken for one in use once in eight times.
const IN_USE_BITS: usize = 1 << 19;
/// Two bits for each key, so that one that was never seen is mistaken once in thirty times at most.
const SEEN_BITS: usize = 1 << 19;
/// All is forgotten when half of the bits are set.
const CROWDED_BITS: usize = 1 << 16;
/// A mistake costs the server some expressions, so all is forgotten when half of the bits are set.
const MODES_BITS: usize = 1 << 16;
/// When this many bits are set, half of what was seen is forgotten.
const SEEN_AT_MOST: usize = SEEN_BITS / 8;

/// The keys of one store.
#[derive(Debug, Default)]
pub(crate) struct RecentUse {
    hasher: RandomState,
    in_use: Bits<IN_USE_BITS>,
    /// The latest, and those before.
    seen: [Bits<SEEN_BITS>; 2],
    latest: AtomicUsize,
    crowded: Bits<CROWDED_BITS>,
    modes: Bits<MODES_BITS>,
}

/// A bit per hash.
#[derive(Debug, Default)]
struct Bits<const LEN: usize> {
    words: OnceLock<Box<[AtomicU64]>>,
    /// How many bits are set. It is changed after its bit, so another thread may bring it below
    /// zero for a moment.
    set: AtomicIsize,
}

impl<const LEN: usize> Bits<LEN> {
    fn place(hash: u64) -> (usize, u64) {
        let bit = usize::try_from(hash % LEN as u64).expect("below LEN");
        (bit / 64, 1 << (bit % 64))
    }

    fn has(&self, hash: u64) -> bool {
        let (word, mask) = Self::place(hash);
        self.words.get().is_some_and(|words| words[word].load(Ordering::Relaxed) & mask != 0)
    }

    /// Returns how many bits are set.
    fn insert(&self, hash: u64) -> usize {
        let (word, mask) = Self::place(hash);
        let words = self.words.get_or_init(|| (0..LEN / 64).map(|_| AtomicU64::new(0)).collect());
        let is_new = words[word].fetch_or(mask, Ordering::Relaxed) & mask == 0;
        let new = isize::from(is_new);
        let set = self.set.fetch_add(new, Ordering::Relaxed).wrapping_add(new);
        usize::try_from(set).unwrap_or(0)
    }

    /// Forgets all when half of the bits are set.
    fn insert_or_clear(&self, hash: u64) {
        if self.insert(hash) > LEN / 2 {
            self.clear();
        }
    }

    fn remove(&self, hash: u64) {
        let (word, mask) = Self::place(hash);
        if let Some(words) = self.words.get() {
            let was_set = words[word].fetch_and(!mask, Ordering::Relaxed) & mask != 0;
            self.set.fetch_sub(isize::from(was_set), Ordering::Relaxed);
        }
    }

    fn clear(&self) {
        self.words.get().into_iter().flatten().for_each(|word| word.store(0, Ordering::Relaxed));
        self.set.store(0, Ordering::Relaxed);
    }
}

impl RecentUse {
    /// Whether the key was free, or has not been seen yet.
    pub(crate) fn was_free(&self, key: &str) -> bool {
        !self.in_use.has(self.hasher.hash_one(key))
    }

    /// Whether the key was in use before, so that it has a record.
    pub(crate) fn was_seen(&self, key: &str) -> bool {
        let hashes = twice(self.hasher.hash_one(key));
        self.seen.iter().any(|seen| hashes.iter().all(|hash| seen.has(*hash)))
    }

    /// Records that the key has a holder, or is about to have one.
    pub(crate) fn mark_in_use(&self, key: &str) {
        let hash = self.hasher.hash_one(key);
        self.in_use.insert(hash);
        let latest = self.latest.load(Ordering::Relaxed);
        let seen = &self.seen[latest % 2];
        if twice(hash).map(|hash| seen.insert(hash))[1] >= SEEN_AT_MOST {
            let next = latest.wrapping_add(1);
            if self.latest.compare_exchange(latest, next, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
                self.seen[next % 2].clear();
            }
        }
    }

    /// Whether a caller of this process had others before it in the key's queue, or beside it as
    /// holders.
    pub(crate) fn was_crowded(&self, key: &str) -> bool {
        self.crowded.has(self.hasher.hash_one(key))
    }

    /// Records whether a caller of this process has others before it or beside it.
    pub(crate) fn mark_crowded(&self, key: &str, is_crowded: bool) {
        let hash = self.hasher.hash_one(key);
        if is_crowded {
            self.crowded.insert_or_clear(hash);
        } else {
            self.crowded.remove(hash);
        }
    }

    /// Whether the key had a holder or a waiter that was not exclusive.
    pub(crate) fn had_modes(&self, key: &str) -> bool {
        self.modes.has(self.hasher.hash_one(key))
    }

    /// Records that the key has a holder or a waiter that is not exclusive.
    pub(crate) fn mark_modes(&self, key: &str) {
        self.modes.insert_or_clear(self.hasher.hash_one(key));
    }

    /// Records that the key was released, and had no waiter.
    pub(crate) fn mark_free(&self, key: &str) {
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
        let recent = RecentUse::default();
        assert!(recent.was_free("k"));
        recent.mark_in_use("k");
        assert!(!recent.was_free("k"));
        recent.mark_free("k");
        assert!(recent.was_free("k"));
    }

    #[test]
    fn few_keys_in_use_are_mistaken_for_others() {
        let recent = RecentUse::default();
        (0..10).for_each(|n| recent.mark_in_use(&format!("used {n}")));
        let mistaken = (0..1000).filter(|n| !recent.was_free(&format!("other {n}"))).count();
        assert!(mistaken < 100, "{mistaken}");
    }

    #[test]
    fn many_keys_in_use_leave_most_others_free() {
        let recent = RecentUse::default();
        (0..65_000).for_each(|n| recent.mark_in_use(&format!("used {n}")));
        let mistaken = (0..1000).filter(|n| !recent.was_free(&format!("other {n}"))).count();
        assert!(mistaken < 200, "{mistaken}");
    }

    #[test]
    fn keys_with_modes_are_remembered_until_there_are_too_many() {
        let recent = RecentUse::default();
        assert!(!recent.had_modes("k"));
        recent.mark_modes("k");
        assert!(recent.had_modes("k") && recent.was_free("k"));
        (0..MODES_BITS).for_each(|n| recent.mark_modes(&format!("key {n}")));
        let mistaken = (0..1000).filter(|n| recent.had_modes(&format!("other {n}"))).count();
        assert!(mistaken < 600, "{mistaken}");
    }

    #[test]
    fn a_key_that_is_crowded_now_and_then_does_not_make_others_forgotten() {
        let recent = RecentUse::default();
        recent.mark_crowded("crowded", true);
        for is_crowded in [true, false].into_iter().cycle().take(4 * CROWDED_BITS) {
            recent.mark_crowded("now and then", is_crowded);
        }
        assert!(recent.was_crowded("crowded") && !recent.was_crowded("now and then"));
    }

    #[test]
    fn threads_may_mark_one_key_differently() {
        let recent = RecentUse::default();
        std::thread::scope(|scope| {
            for is_crowded in [true, false] {
                let recent = &recent;
                scope.spawn(move || (0..200_000).for_each(|_| recent.mark_crowded("k", is_crowded)));
            }
        });
        recent.mark_crowded("k", false);
        assert_eq!(recent.crowded.set.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn the_latest_keys_are_remembered_and_older_ones_forgotten() {
        let recent = RecentUse::default();
        let keys = 5 * SEEN_AT_MOST;
        for n in 0..keys {
            let key = format!("key {n}");
            recent.mark_in_use(&key);
            assert!(recent.was_seen(&key));
        }
        assert!((keys - SEEN_AT_MOST / 2..keys).all(|n| recent.was_seen(&format!("key {n}"))));
        let mistaken = (0..1000).filter(|n| recent.was_seen(&format!("key {n}"))).count();
        assert!(mistaken < 80, "{mistaken}");
    }
}
