//! Which modes hold a key together, as a judge knows it.
//!
//! [`Mode::fits`] has a limit of leases besides. Guards of one provider may share a lease, so a
//! history does not show how many there are.

use distlock_api::Mode;

/// The kinds of modes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Exclusive,
    Shared,
    Permits,
}

pub(super) fn kind(mode: Mode) -> Kind {
    match mode {
        Mode::Shared => Kind::Shared,
        Mode::Permits { .. } => Kind::Permits,
        _ => Kind::Exclusive,
    }
}

/// The numbers of a mode: those that it takes, and those that there are.
pub(super) fn numbers(mode: Mode) -> (u64, u64) {
    match mode {
        Mode::Permits { take, of } => (take.into(), of.into()),
        _ => (0, u64::MAX),
    }
}

/// Whether a request of this mode fits beside holders of these modes.
pub(super) fn fits(mode: Mode, held: impl IntoIterator<Item = Mode>) -> bool {
    let (mut taken, of) = numbers(mode);
    for held in held {
        if kind(held) != kind(mode) || mode.is_exclusive() {
            return false;
        }
        taken += numbers(held).0;
    }
    taken <= of
}

/// Whether a request of this mode may have been refused because of acquisitions of these modes,
/// each of which may have held the key, or waited for it.
pub(super) fn may_be_refused(mode: Mode, others: impl IntoIterator<Item = Mode>) -> bool {
    let (mut taken, mut fewest) = numbers(mode);
    for other in others {
        if kind(other) != kind(mode) || mode.is_exclusive() {
            return true;
        }
        let (take, of) = numbers(other);
        (taken, fewest) = (taken + take, fewest.min(of));
    }
    // A waiter that does not fit by its own number keeps back those behind it.
    taken > fewest
}

/// Whether a waiter of the first mode can keep back a request of the second one that fits beside
/// the holders. One that is shared fits as well as another.
pub(super) fn may_keep_back(waiter: Mode, mode: Mode) -> bool {
    !(kind(waiter) == Kind::Shared && kind(mode) == Kind::Shared)
}
