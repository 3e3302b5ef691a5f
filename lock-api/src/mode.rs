//! The mode of an acquisition: exclusive, shared, or a number of permits.

use std::fmt;

use crate::capabilities::Capabilities;
use crate::error::{ErrorKind, LockError, Result};

/// The share of a key that an acquisition claims.
///
/// | held \ requested | exclusive | shared | `k` permits of `n` |
/// |---|---|---|---|
/// | exclusive | waits | waits | waits |
/// | shared | waits | granted | waits |
/// | permits | waits | waits | granted while no more than `n` are held, these included |
///
/// *Granted* if no caller waits ahead: all modes of a key share one queue ([C28]).
///
/// Each guard has a fencing token of its own, greater than those of all guards before it that it
/// could not have held the key with ([C5]). So a writer's is greater than those of all readers
/// before it, and smaller than those of all after it. Among readers the order of the tokens says
/// nothing, because the readers of one process may share a lease. A shared guard that outlives its
/// lease is a stale reader: what it has read may be out of date. A
/// [fence](crate::FencedRegister) refuses what it writes once a later writer has written.
///
/// There is no upgrade: a holder that requests the same key again is another caller, and waits for
/// itself ([C31]).
///
/// A provider refuses a mode that it does not have: see
/// [`Capabilities::shared`](crate::Capabilities::shared) and
/// [`Capabilities::permits`](crate::Capabilities::permits).
///
/// ```
/// use distlock_api::{LockError, LockProvider, LockProviderExt};
///
/// async fn read_prices(locks: &dyn LockProvider) -> Result<(), LockError> {
///     // Beside other readers, but never beside a writer.
///     let reading = locks.acquire("prices").shared().await?;
///     reading.release().await?;
///
///     // One of at most ten exports at a time, on all servers together.
///     let export = locks.acquire("exports").permits(1, 10).await?;
///     export.release().await?;
///     Ok(())
/// }
/// ```
///
/// [C5]: distlock_api::contract#c5
/// [C28]: distlock_api::contract#c28
/// [C31]: distlock_api::contract#c31
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Mode {
    /// No other guard of the key is held meanwhile. The default.
    #[default]
    Exclusive,
    /// Only other shared guards of the key are held meanwhile.
    Shared,
    /// Only other permits of the key are held meanwhile, and all together no more than `of`.
    ///
    /// Each request is judged by its own `of`. Where requests of one key differ in it, one of a
    /// smaller number waits until few enough are held, and a later one may exceed that number.
    Permits {
        /// The number of permits of this guard; at least one.
        take: u32,
        /// The number of permits of the key; at least `take`.
        of: u32,
    },
}

impl Mode {
    /// The largest number of leases that hold one key at the same time: 256. A further request
    /// waits until one of them ends. Guards of one provider may share a lease, and so count once.
    pub const MAX_HOLDERS: usize = 256;

    /// Returns whether the key can have no other holder meanwhile.
    #[must_use]
    #[inline]
    pub const fn is_exclusive(self) -> bool {
        matches!(self, Self::Exclusive)
    }

    /// Returns whether a request of this mode fits beside guards of these modes: none of them is
    /// affected, and no number is exceeded. Whether it has its turn is another question. For
    /// backends.
    ///
    /// ```
    /// use distlock_api::Mode;
    ///
    /// let two = Mode::Permits { take: 2, of: 3 };
    /// assert!(Mode::Exclusive.fits([]) && !Mode::Exclusive.fits([Mode::Shared]));
    /// assert!(Mode::Shared.fits([Mode::Shared, Mode::Shared]) && !Mode::Shared.fits([two]));
    /// assert!(two.fits([]) && !two.fits([two]));
    /// ```
    #[must_use]
    pub fn fits(self, held: impl IntoIterator<Item = Self>) -> bool {
        let mut taken = 0_u64;
        for (others, held) in held.into_iter().enumerate() {
            taken += match (self, held) {
                (Self::Shared, Self::Shared) => 0,
                (Self::Permits { .. }, Self::Permits { take, .. }) => u64::from(take),
                _ => return false,
            };
            if others + 1 >= Self::MAX_HOLDERS {
                return false;
            }
        }
        match self {
            Self::Exclusive | Self::Shared => true,
            Self::Permits { take, of } => taken + u64::from(take) <= u64::from(of),
        }
    }

    /// Checks that the mode makes sense, and that a provider with these capabilities has it. For
    /// providers, before any I/O.
    ///
    /// # Errors
    /// * [`InvalidOptions`](ErrorKind::InvalidOptions) for no permits, for permits of none, and for
    ///   more permits than there are.
    /// * [`Unsupported`](ErrorKind::Unsupported) if the provider does not have the mode.
    pub fn ensure_supported(self, provider: &str, can: &Capabilities) -> Result<()> {
        let invalid = |message: String| Err(LockError::invalid_options(message));
        let (supported, what) = match self {
            Self::Exclusive => return Ok(()),
            Self::Shared => (can.shared, "shared locks"),
            Self::Permits { of: 0, .. } => return invalid("permits of 0: there must be at least one".into()),
            Self::Permits { take: 0, of } => return invalid(format!("0 of {of} permits: take at least one")),
            Self::Permits { take, of } if take > of => {
                return invalid(format!("{take} of {of} permits: take at most as many as there are"));
            }
            Self::Permits { .. } => (can.permits, "permits"),
        };
        if supported {
            return Ok(());
        }
        let message = format!("{provider} does not support {what}: acquire exclusively, or use another backend");
        Err(LockError::new(ErrorKind::Unsupported, message))
    }
}

/// As `exclusive`, `shared` or `2 of 10 permits`.
impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exclusive => f.write_str("exclusive"),
            Self::Shared => f.write_str("shared"),
            Self::Permits { take, of } => write!(f, "{take} of {of} permits"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn permits(take: u32, of: u32) -> Mode {
        Mode::Permits { take, of }
    }

    #[test]
    fn each_request_is_judged_by_its_own_number() {
        let held = [permits(1, 10), permits(2, 10)];
        assert!(permits(1, 4).fits(held) && !permits(1, 3).fits(held));
        assert!(permits(u32::MAX, u32::MAX).fits([]) && !permits(1, u32::MAX).fits([permits(u32::MAX, u32::MAX)]));
    }

    #[test]
    fn different_modes_never_fit() {
        let modes = [Mode::Exclusive, Mode::Shared, permits(1, 2)];
        for (at, mode) in modes.into_iter().enumerate() {
            for (other_at, other) in modes.into_iter().enumerate() {
                assert_eq!(mode.fits([other]), at == other_at && at > 0, "{mode} beside {other}");
            }
        }
        assert!(!Mode::Shared.fits([Mode::Shared, permits(1, 2)]));
    }

    #[test]
    fn a_key_has_a_largest_number_of_holders() {
        assert!(Mode::Shared.fits(vec![Mode::Shared; Mode::MAX_HOLDERS - 1]));
        assert!(!Mode::Shared.fits(vec![Mode::Shared; Mode::MAX_HOLDERS]));
    }

    #[test]
    fn each_mistake_has_its_own_message() {
        let all = Capabilities { shared: true, permits: true, ..Capabilities::default() };
        for (mode, expected) in [(permits(0, 2), "0 of 2"), (permits(1, 0), "permits of 0"), (permits(3, 2), "3 of 2")]
        {
            let error = mode.ensure_supported("x", &all).unwrap_err();
            assert!(error.kind() == ErrorKind::InvalidOptions && error.to_string().contains(expected), "{error}");
        }
        for mode in [Mode::Shared, permits(1, 2)] {
            assert!(mode.ensure_supported("x", &all).is_ok());
            let error = mode.ensure_supported("x", &Capabilities::default()).unwrap_err();
            assert!(error.kind() == ErrorKind::Unsupported && error.to_string().contains("x does not"), "{error}");
        }
        assert!(Mode::Exclusive.ensure_supported("x", &Capabilities::default()).is_ok());
    }
}
