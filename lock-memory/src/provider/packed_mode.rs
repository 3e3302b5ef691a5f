//! A mode in eight bytes, so that it takes no more of an entry than was left over.

use distlock_api::Mode;

/// A [`Mode`]. Also the sum of the modes of all holders of a key, which are of one kind.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct PackedMode {
    /// The number of permits; zero if they are not permits.
    take: u32,
    /// The number of permits of the key. Otherwise whether the key is shared: one or zero.
    of: u32,
}

impl PackedMode {
    pub(super) const EXCLUSIVE: Self = Self { take: 0, of: 0 };
    const SHARED: Self = Self { take: 0, of: 1 };

    /// Packs a valid mode. One that is not known here excludes all others.
    #[inline]
    pub(super) const fn new(mode: Mode) -> Self {
        match mode {
            Mode::Shared => Self::SHARED,
            Mode::Permits { take, of } => Self { take, of },
            _ => Self::EXCLUSIVE,
        }
    }

    #[inline]
    pub(super) const fn get(self) -> Mode {
        match self {
            Self::EXCLUSIVE => Mode::Exclusive,
            Self::SHARED => Mode::Shared,
            Self { take, of } => Mode::Permits { take, of },
        }
    }

    #[inline]
    pub(super) const fn is_exclusive(self) -> bool {
        self.take == 0 && self.of == 0
    }

    /// Adds the mode of a holder that [fits](Self::has_room_for). So the permits of all holders are
    /// never more than the `of` of one of them.
    pub(super) const fn add(&mut self, holder: Self) {
        self.take += holder.take;
    }

    /// Subtracts the mode of a holder that leaves.
    pub(super) const fn subtract(&mut self, holder: Self) {
        self.take -= holder.take;
    }

    /// Returns whether a request fits beside these holders. [`Mode::MAX_HOLDERS`] is a limit of
    /// leases, and there are none here.
    #[inline]
    pub(super) fn has_room_for(self, request: Mode) -> bool {
        request.fits([self.get()])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn permits(take: u32, of: u32) -> Mode {
        Mode::Permits { take, of }
    }

    #[test]
    fn a_packed_mode_is_the_same_mode() {
        for mode in [Mode::Exclusive, Mode::Shared, permits(1, 1), permits(1, 2), permits(u32::MAX, u32::MAX)] {
            assert_eq!(PackedMode::new(mode).get(), mode);
            assert_eq!(PackedMode::new(mode).is_exclusive(), mode.is_exclusive());
        }
    }

    #[test]
    fn a_sum_is_judged_as_its_parts_are() {
        let parts = [permits(3, 10), permits(2, 7), permits(1, u32::MAX)];
        let mut sum = PackedMode::new(parts[0]);
        parts[1..].iter().for_each(|mode| sum.add(PackedMode::new(*mode)));
        for request in [Mode::Exclusive, Mode::Shared, permits(1, 6), permits(1, 7), permits(4, 10), permits(5, 10)] {
            assert_eq!(sum.has_room_for(request), request.fits(parts), "{request}");
        }
        parts[..2].iter().for_each(|mode| sum.subtract(PackedMode::new(*mode)));
        assert!(sum.has_room_for(permits(1, 2)) && !sum.has_room_for(permits(1, 1)));
        let mut readers = PackedMode::new(Mode::Shared);
        readers.add(readers);
        assert!(readers.has_room_for(Mode::Shared) && !readers.has_room_for(permits(1, 2)));
    }
}
