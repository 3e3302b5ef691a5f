//! The resource's side of a fencing token.

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::token::FencingToken;

/// The outcome of a write that carried a fencing token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "`FencedOff` means that nothing was written"]
pub enum FencedWrite {
    /// Written: no greater token had come before.
    Accepted,
    /// Not written: a later holder of the lock had written before. The caller has lost the lock,
    /// even if its guard does not show it yet.
    FencedOff {
        /// The greatest token seen.
        newest: FencingToken,
    },
}

impl FencedWrite {
    /// Returns whether the value was written.
    #[must_use]
    pub const fn is_accepted(self) -> bool {
        matches!(self, Self::Accepted)
    }
}

/// A value that keeps late writers out: it remembers the greatest [`FencingToken`] that came with a
/// write, and refuses smaller ones.
///
/// A resource that does this is safe from a holder that was paused beyond its lease. Nothing else
/// makes it safe: the pause may fall between the last look at the guard and the write (Martin
/// Kleppmann, "How to do distributed locking", 2016). Any number of writes under the same token are
/// accepted.
///
/// This register is in memory: for resources within a process, for tests, and as a model. Another
/// resource does the same where its data is:
/// * in SQL, `UPDATE … SET …, fence = :token WHERE id = :id AND fence <= :token`;
/// * in MongoDB, by the helper of `distlock-mongo`.
///
/// Tokens of different keys must not be compared: one register belongs to one lock.
///
/// ```
/// use distlock_api::{FencedRegister, FencedWrite, FencingToken};
///
/// let balance = FencedRegister::new(100);
/// let (slow, quick) = (FencingToken::new(33), FencingToken::new(34));
///
/// // The slow holder is paused, its lease ends, and the quick one gets the lock.
/// assert_eq!(balance.write(quick, 70), FencedWrite::Accepted);
/// assert_eq!(balance.update(quick, |balance| *balance -= 20), FencedWrite::Accepted);
///
/// // The slow holder wakes up.
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
    /// Makes a register that no holder of the lock has written to.
    #[must_use]
    pub const fn new(value: T) -> Self {
        Self { state: Mutex::new(State { value, newest: None }) }
    }

    /// Replaces the value, unless a greater token has come before.
    pub fn write(&self, token: FencingToken, value: T) -> FencedWrite {
        let mut replaced = None;
        let outcome = self.update(token, |old| replaced = Some(std::mem::replace(old, value)));
        // Drops the old value outside of the mutex.
        drop(replaced);
        outcome
    }

    /// Changes the value in place, unless a greater token has come before.
    ///
    /// The check and the change are one step. Other callers wait for it, and a change that uses the
    /// register itself waits for ever.
    pub fn update(&self, token: FencingToken, change: impl FnOnce(&mut T)) -> FencedWrite {
        let mut state = self.state();
        if let Some(newest) = state.newest.filter(|newest| *newest > token) {
            return FencedWrite::FencedOff { newest };
        }
        state.newest = Some(token);
        change(&mut state.value);
        FencedWrite::Accepted
    }

    /// Returns the greatest token that came with a write; `None` before the first.
    #[must_use]
    pub fn newest(&self) -> Option<FencingToken> {
        self.state().newest
    }

    /// Returns the value. Reading needs no token.
    #[must_use]
    pub fn get(&self) -> T
    where
        T: Clone,
    {
        self.state().value.clone()
    }

    fn state(&self) -> MutexGuard<'_, State<T>> {
        // The token of a change that panicked counts, too.
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
