//! The resource's side of a fencing token.

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::token::FencingToken;

/// What became of a write that carried a fencing token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "`FencedOff` means that nothing was written"]
pub enum FencedWrite {
    /// Nobody with a greater token had been there: it was written.
    Accepted,
    /// A later holder of the lock has been there: nothing was written. Whoever hears this has lost the lock, whatever its guard says.
    FencedOff {
        /// The greatest token seen.
        newest: FencingToken,
    },
}

impl FencedWrite {
    /// Whether it was written.
    #[must_use]
    pub const fn is_accepted(self) -> bool {
        matches!(self, Self::Accepted)
    }
}

/// A value that keeps late writers out: it remembers the greatest [`FencingToken`] that came with a write, and refuses smaller ones.
///
/// This is all that a resource has to do to be safe from a holder that was paused beyond its lease, and it is the only thing that is:
/// the pause may fall between the last look at the guard and the write (Martin Kleppmann, "How to do distributed locking", 2016).
/// Writes under the same token are accepted in any number.
///
/// This one is in memory: for resources within a process, for tests, and as a model. A resource elsewhere does the same where its data is –
/// in SQL `UPDATE … SET …, fence = :token WHERE id = :id AND fence <= :token`; for MongoDB `distlock-mongo` has a helper. Tokens
/// of different keys must not be compared: one register belongs to one lock.
///
/// ```
/// use distlock_api::{FencedRegister, FencedWrite, FencingToken};
///
/// let balance = FencedRegister::new(100);
/// let (slow, quick) = (FencingToken::new(33), FencingToken::new(34));
///
/// // The slow one is paused, its lease ends, and the quick one gets the lock.
/// assert_eq!(balance.write(quick, 70), FencedWrite::Accepted);
/// assert_eq!(balance.update(quick, |balance| *balance -= 20), FencedWrite::Accepted);
///
/// // The slow one wakes up.
/// assert_eq!(balance.write(slow, 90), FencedWrite::FencedOff { newest: quick });
/// assert_eq!(balance.get(), 50);
/// ```
pub struct FencedRegister<T> {
    state: Mutex<State<T>>,
}

struct State<T> {
    value: T,
    newest: Option<FencingToken>,
}

impl<T> FencedRegister<T> {
    /// A register that no holder of the lock has written to.
    #[must_use]
    pub const fn new(value: T) -> Self {
        Self { state: Mutex::new(State { value, newest: None }) }
    }

    /// Replaces the value, if no greater token has been here.
    pub fn write(&self, token: FencingToken, value: T) -> FencedWrite {
        let mut replaced = None;
        let outcome = self.update(token, |old| replaced = Some(std::mem::replace(old, value)));
        // The old value is dropped outside of the lock.
        drop(replaced);
        outcome
    }

    /// Changes the value in place, if no greater token has been here. Checking and changing are one step: other callers wait for it, and a change that
    /// uses the register itself waits for ever.
    pub fn update(&self, token: FencingToken, change: impl FnOnce(&mut T)) -> FencedWrite {
        let mut state = self.state();
        if let Some(newest) = state.newest.filter(|newest| *newest > token) {
            return FencedWrite::FencedOff { newest };
        }
        state.newest = Some(token);
        change(&mut state.value);
        FencedWrite::Accepted
    }

    /// The greatest token that came with a write; none before the first.
    #[must_use]
    pub fn newest(&self) -> Option<FencingToken> {
        self.state().newest
    }

    /// The value. Reading needs no token.
    #[must_use]
    pub fn get(&self) -> T
    where
        T: Clone,
    {
        self.state().value.clone()
    }

    fn state(&self) -> MutexGuard<'_, State<T>> {
        // A change that panicked has been here nevertheless.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: Default> Default for FencedRegister<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

impl<T> fmt::Debug for FencedRegister<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FencedRegister").field("newest", &self.newest()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_racing_writers_the_last_accepted_has_the_greatest_token() {
        let register = FencedRegister::new(0);
        std::thread::scope(|scope| {
            for token in 1..=64_u64 {
                let register = &register;
                scope.spawn(move || register.write(FencingToken::new(token), token).is_accepted());
            }
        });
        assert_eq!((register.get(), register.newest()), (64, Some(FencingToken::new(64))));
    }

    #[test]
    fn a_change_that_panics_leaves_the_register_usable_and_fenced() {
        let register = FencedRegister::new(1);
        let token = FencingToken::new(7);
        let change = || register.update(token, |_| panic!("in the middle of a change"));
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(change)).is_err());
        assert!(!register.write(FencingToken::new(6), 2).is_accepted());
        assert!(register.write(token, 3).is_accepted());
    }
}
