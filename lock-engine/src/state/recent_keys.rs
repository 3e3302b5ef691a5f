//! A bounded table of values for recent keys, which needs no clearing.

use std::hash::BuildHasher;

use distlock_api::LockKey;
use foldhash::fast::FixedState;

/// How many keys are remembered. Two that share a place displace each other.
const PLACES: u64 = 64;

/// One value for each of some keys.
#[derive(Debug)]
pub(crate) struct RecentKeys<T> {
    /// The key's hash and its value, by place; empty until a key needs one.
    places: Vec<Option<(u64, T)>>,
}

impl<T> Default for RecentKeys<T> {
    fn default() -> Self {
        Self { places: Vec::new() }
    }
}

impl<T: Copy> RecentKeys<T> {
    pub(crate) fn get(&self, key: &LockKey) -> Option<T> {
        if self.places.is_empty() {
            return None;
        }
        let hash = hash(key);
        self.places[place(hash)].filter(|place| place.0 == hash).map(|place| place.1)
    }

    /// Sets the value of a key. `None` removes it.
    pub(crate) fn set(&mut self, key: &LockKey, value: Option<T>) {
        if value.is_none() && self.places.is_empty() {
            return;
        }
        let hash = hash(key);
        match value {
            Some(value) => {
                self.places.resize(PLACES as usize, None);
                self.places[place(hash)] = Some((hash, value));
            }
            None => {
                if let Some(place) = self.places.get_mut(place(hash)) {
                    place.take_if(|place| place.0 == hash);
                }
            }
        }
    }
}

fn hash(key: &LockKey) -> u64 {
    FixedState::default().hash_one(key)
}

fn place(hash: u64) -> usize {
    (hash % PLACES) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_kit::key;

    #[test]
    fn the_keys_that_are_remembered_are_bounded() {
        let mut places = RecentKeys::default();
        places.set(&key("cold"), None);
        assert!(places.places.is_empty(), "most keys need no place");
        (0..1000).for_each(|n| places.set(&key(&n.to_string()), Some(n)));
        assert_eq!(places.places.len() as u64, PLACES);
        assert_eq!(places.get(&key("999")), Some(999));
        assert_eq!(places.get(&key("other")), None, "by hash, not by place");
        places.set(&key("other"), None);
        assert_eq!(places.get(&key("999")), Some(999), "another key's value stays");
        places.set(&key("999"), None);
        assert_eq!(places.get(&key("999")), None);
    }
}
