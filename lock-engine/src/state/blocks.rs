//! Decides how many tokens a lease asks for: rules R5, R21 and R26 of distlock-mongo's PROTOCOL.
//!
//! Each guard of a lease has a token of its own, and a lease whose tokens are used up ends: the
//! next guard costs requests again. A large block is only worth its while for a key that is in use
//! all the time, because what a dead process leaves of it is lost. So the block of a key follows
//! what its last leases used: it grows by a step at once, and falls by one step per lease.

use std::num::NonZeroU32;

use distlock_api::{LockKey, Mode};

use crate::state::recent_keys::RecentKeys;

/// The largest lasts twenty seconds at a million guards per second. It is eight seconds of the
/// tokens' clock (R5).
const STEPS: [NonZeroU32; 4] = [
    NonZeroU32::new(1 << 10).expect("not zero"),
    NonZeroU32::new(1 << 16).expect("not zero"),
    NonZeroU32::new(1 << 20).expect("not zero"),
    NonZeroU32::new(1 << 24).expect("not zero"),
];

/// The first step of an exclusive lease, which guards have in turn, and that of a shared one.
const FIRST: (usize, usize) = (1, 0);

/// The steps of the keys that used many tokens lately. Keys that displace each other only cost each
/// other some requests.
#[derive(Debug, Default)]
pub(crate) struct Blocks(RecentKeys<usize>);

impl Blocks {
    /// Returns how many tokens a lease of the key in this mode asks for.
    pub(crate) fn next(&self, key: &LockKey, mode: Mode) -> NonZeroU32 {
        let first = if mode.is_exclusive() { FIRST.0 } else { FIRST.1 };
        STEPS[self.step(key).max(first)]
    }

    /// Records how many tokens a lease of the key has used.
    pub(crate) fn used(&mut self, key: &LockKey, tokens: u64) {
        let last = STEPS.len() - 1;
        let fits = STEPS.iter().position(|step| tokens < u64::from(step.get())).unwrap_or(last);
        let step = fits.max(self.step(key).saturating_sub(1));
        self.0.set(key, (step > 0).then_some(step));
    }

    fn step(&self, key: &LockKey) -> usize {
        self.0.get(key).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_kit::key;

    #[test]
    fn r21_the_block_of_a_key_follows_its_use() {
        let (mut blocks, hot) = (Blocks::default(), key("hot"));
        let mut next_after = |used: u64| {
            blocks.used(&hot, used);
            (blocks.next(&hot, Mode::Exclusive).get(), blocks.next(&hot, Mode::Shared).get())
        };
        // (tokens used, the next exclusive block, the next shared one), as powers of two
        for (used, exclusive, shared) in [
            (1, 16, 10),
            ((1 << 10) - 1, 16, 10),
            (1 << 10, 16, 16),
            ((1 << 16) - 1, 16, 16),
            (1 << 16, 20, 20),
            (1 << 20, 24, 24),
            (1 << 24, 24, 24),
            (1 << 23, 24, 24),
            (1, 20, 20),
            (1, 16, 16),
            (1, 16, 10),
        ] {
            assert_eq!(next_after(used), (1 << exclusive, 1 << shared), "after {used}");
        }
    }
}
