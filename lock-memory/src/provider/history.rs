//! The last releases by force. Idle keys take no memory, so the history is kept apart from the keys
//! and is bounded for all of them together.

use std::collections::VecDeque;

use distlock_api::{ForcedRelease, LockKey};

/// How many releases of one key are returned.
const PER_KEY: usize = 5;
/// How many releases of all keys are kept.
const KEPT: usize = 256;

/// The last releases by force of all keys, the oldest first.
#[derive(Default)]
pub(super) struct History(VecDeque<(LockKey, ForcedRelease)>);

impl History {
    pub(super) fn record(&mut self, key: LockKey, release: ForcedRelease) {
        if self.0.len() == KEPT {
            self.0.pop_front();
        }
        self.0.push_back((key, release));
    }

    /// Returns the last releases of this key, the oldest first.
    pub(super) fn of_key(&self, key: &LockKey) -> Vec<ForcedRelease> {
        let newest_first = self.0.iter().rev().filter(|(of, _)| of == key).take(PER_KEY);
        let mut releases: Vec<_> = newest_first.map(|(_, release)| release.clone()).collect();
        releases.reverse();
        releases
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use distlock_api::{FencingToken, LockInfo};

    use super::*;

    fn key(name: &str) -> LockKey {
        LockKey::new(name).unwrap()
    }

    /// The reasons that are returned for `key` after releases of these keys, the n-th for reason n.
    fn reasons<'a>(released: impl IntoIterator<Item = &'a str>, of: &str) -> Vec<String> {
        let mut history = History::default();
        for (n, name) in (1..).zip(released) {
            let victim = LockInfo::new(key(name), None, FencingToken::new(n), Duration::ZERO);
            history.record(key(name), ForcedRelease::from_info(&victim, SystemTime::UNIX_EPOCH, n.to_string()));
        }
        history.of_key(&key(of)).into_iter().map(|release| release.reason.to_string()).collect()
    }

    #[test]
    fn five_of_a_key_among_the_last_of_all_keys() {
        for (released, a) in [
            (vec![], vec![]),
            (vec!["b"], vec![]),
            (vec!["a", "b", "a"], vec!["1", "3"]),
            (vec!["a"; 7], vec!["3", "4", "5", "6", "7"]),
            ([vec!["a"], vec!["b"; KEPT - 1]].concat(), vec!["1"]),
            ([vec!["a"], vec!["b"; KEPT]].concat(), vec![]),
            ([vec!["a", "a"], vec!["b"; KEPT - 1]].concat(), vec!["2"]),
        ] {
            assert_eq!(reasons(released.iter().copied(), "a"), a, "after {released:?}");
        }
    }
}
