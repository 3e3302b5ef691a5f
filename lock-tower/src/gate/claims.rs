//! What a request claims.

use distlock_api::Mode;

use crate::keys::KeySet;

/// The keys of a request, and the mode in which it acquires them.
#[derive(Clone, Debug)]
pub(crate) struct Claims {
    pub(crate) keys: KeySet,
    pub(crate) mode: Mode,
}

impl Claims {
    pub(crate) fn new(keys: KeySet, mode: Mode) -> Self {
        Self { keys, mode }
    }

    /// Returns how many requests like this one can hold a key at the same time, as far as the wait
    /// for it depends on that.
    pub(super) fn at_once(&self) -> usize {
        match self.mode {
            Mode::Permits { take, of } => usize::try_from(of / take.max(1)).unwrap_or(usize::MAX).max(1),
            _ => 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permits_are_held_together() {
        let at_once = |mode| Claims::new(KeySet::from_iter([]), mode).at_once();
        assert_eq!(at_once(Mode::Exclusive), 1);
        assert_eq!(at_once(Mode::Permits { take: 1, of: 10 }), 10);
        assert_eq!(at_once(Mode::Permits { take: 4, of: 10 }), 2);
        // Refused by the provider.
        assert_eq!(at_once(Mode::Permits { take: 0, of: 0 }), 1);
    }
}
