//! The keys of one request.

use std::slice;

use distlock_api::LockKey;

/// The keys that one request locks: one key, or several that are taken together, all or nothing.
///
/// Several keys are sorted and each is taken once, so two requests that name the same keys in
/// different orders cannot deadlock. An empty set locks nothing: its request passes as if there
/// were no key.
///
/// ```
/// use distlock_api::LockKey;
/// use distlock_tower::KeySet;
///
/// let [from, to] = [LockKey::new("account/7")?, LockKey::new("account/3")?];
/// let both = KeySet::from_iter([from.clone(), to.clone(), from.clone()]);
/// assert_eq!(both.as_slice(), [to, from]);
/// # Ok::<(), distlock_api::LockError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct KeySet(Keys);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Keys {
    One(LockKey),
    /// Sorted, without duplicates; not exactly one.
    Several(Vec<LockKey>),
}

impl KeySet {
    /// Returns the keys, sorted.
    #[must_use]
    pub fn as_slice(&self) -> &[LockKey] {
        match &self.0 {
            Keys::One(key) => slice::from_ref(key),
            Keys::Several(keys) => keys,
        }
    }

    /// Returns the number of keys.
    #[must_use]
    pub fn len(&self) -> usize {
        self.as_slice().len()
    }

    /// Returns whether there is nothing to lock.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.as_slice().is_empty()
    }

    /// Returns the keys of both sets.
    #[must_use]
    pub fn union(self, other: Self) -> Self {
        self.into_iter().chain(other).collect()
    }
}

impl From<LockKey> for KeySet {
    fn from(key: LockKey) -> Self {
        Self(Keys::One(key))
    }
}

impl FromIterator<LockKey> for KeySet {
    fn from_iter<I: IntoIterator<Item = LockKey>>(keys: I) -> Self {
        let mut keys: Vec<LockKey> = keys.into_iter().collect();
        keys.sort_unstable();
        keys.dedup();
        match <[LockKey; 1]>::try_from(keys) {
            Ok([key]) => Self(Keys::One(key)),
            Err(keys) => Self(Keys::Several(keys)),
        }
    }
}

impl From<Vec<LockKey>> for KeySet {
    fn from(keys: Vec<LockKey>) -> Self {
        keys.into_iter().collect()
    }
}

impl<const N: usize> From<[LockKey; N]> for KeySet {
    fn from(keys: [LockKey; N]) -> Self {
        keys.into_iter().collect()
    }
}

impl IntoIterator for KeySet {
    type Item = LockKey;
    type IntoIter = std::vec::IntoIter<LockKey>;

    fn into_iter(self) -> Self::IntoIter {
        match self.0 {
            Keys::One(key) => vec![key].into_iter(),
            Keys::Several(keys) => keys.into_iter(),
        }
    }
}
