//! Which keys were in use when they were last seen: a Bloom filter with one hash.
//!
//! It decides only which way is tried first: a key that was free is taken by the short way, see
//! `Layout::take`. A wrong guess costs one command. Keys share bits, so the memory does not grow
//! with their number.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};

const WORDS: usize = 64;
const BITS: u64 = WORDS as u64 * 64;

/// The keys of one store.
#[derive(Debug)]
pub(crate) struct RecentUse {
    hasher: RandomState,
    in_use: [AtomicU64; WORDS],
}

impl Default for RecentUse {
    fn default() -> Self {
        Self { hasher: RandomState::new(), in_use: [const { AtomicU64::new(0) }; WORDS] }
    }
}

impl RecentUse {
    fn bit(&self, key: &str) -> (&AtomicU64, u64) {
        let bit = self.hasher.hash_one(key) % BITS;
        let word = usize::try_from(bit / 64).expect("below 64");
        (&self.in_use[word], 1 << (bit % 64))
    }

    /// Whether the key was free, or has not been seen yet.
    pub(crate) fn was_free(&self, key: &str) -> bool {
        let (word, mask) = self.bit(key);
        word.load(Ordering::Relaxed) & mask == 0
    }

    /// Records that the key has a holder, or is about to have one.
    pub(crate) fn mark_in_use(&self, key: &str) {
        let (word, mask) = self.bit(key);
        word.fetch_or(mask, Ordering::Relaxed);
    }

    /// Records that the key was released, and had no waiter.
    pub(crate) fn mark_free(&self, key: &str) {
        let (word, mask) = self.bit(key);
        word.fetch_and(!mask, Ordering::Relaxed);
    }
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
}
