//! The commands of an acquisition and of a release, and in which order they are tried (R8, R12).

use distlock_api::Mode;
use distlock_engine::store::{Attempt, Release};
use mongodb::bson::Document;

/// One command that changes the record of a key.
pub(crate) struct Step {
    pub(crate) filter: Document,
    pub(crate) pipeline: Vec<Document>,
    pub(crate) projection: Document,
    /// Whether it inserts the record if it is missing. If there is one that the filter does not
    /// match, the insertion collides with it.
    pub(crate) upsert: bool,
    pub(crate) confirmed_by: ConfirmedBy,
}

/// The members of the replica set that must have a write before it is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConfirmedBy {
    /// R17: nothing else counts for a grant.
    Majority,
    /// R23: enough for a release that grants to no waiter and has no minimum hold.
    Primary,
}

/// The paths to try, one after the other. All but the last one decide by their filters, for the
/// state in which the record probably is; in any other state they do nothing.
pub(crate) type Plan<P> = &'static [P];

/// A path of an acquisition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AcquirePath {
    /// Of a key without holder, ticket and minimum hold.
    IfUnused,
    Full,
}

/// A path of a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReleasePath {
    /// Of a lease without a waiter and another holder.
    WithoutWaiter,
    /// Of an exclusive lease, to waiters that are all exclusive.
    HandOver,
    /// Of an exclusive lease, to waiters of any mode.
    HandOverToAny,
    /// Of a shared lease beside others.
    Leave,
    Full,
}

/// What is known of a claim's lease, by the answers to its requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Known {
    /// Whether it had neither a waiter nor another holder when it was granted.
    pub(crate) was_alone: bool,
    /// Whether a holder or a waiter of its key was not exclusive.
    pub(crate) met_modes: bool,
}

/// Plans the first attempt of a claim; later ones are [`AcquirePath::Full`]. `was_free` is whether
/// the key was free when it was last seen.
pub(crate) fn acquire(attempt: &Attempt, was_free: bool) -> Plan<AcquirePath> {
    // A caller that does not wait has one round trip, even if the lease has a holder (C18).
    if was_free && attempt.ticket.is_some() {
        return &[AcquirePath::IfUnused, AcquirePath::Full];
    }
    &[AcquirePath::Full]
}

/// Plans the first release of a claim; later ones are [`ReleasePath::Full`].
pub(crate) fn release(release: &Release, known: Known) -> Plan<ReleasePath> {
    // R23: a roll-back would open the key before the end of a minimum hold (R13).
    let is_plain = release.hold_at_least.is_none();
    match release.claim.mode() {
        _ if known.was_alone && is_plain => &[ReleasePath::WithoutWaiter, ReleasePath::Full],
        Mode::Exclusive if known.met_modes => &[ReleasePath::HandOverToAny, ReleasePath::Full],
        Mode::Exclusive => &[ReleasePath::HandOver, ReleasePath::Full],
        Mode::Shared if is_plain => &[ReleasePath::Leave, ReleasePath::Full],
        // Behind a holder of permits there are usually waiters for permits.
        _ => &[ReleasePath::Full],
    }
}

impl Step {
    /// Makes a step that only changes a record, with the word of the majority.
    pub(crate) fn new(filter: Document, pipeline: Vec<Document>, projection: Document) -> Self {
        Self { filter, pipeline, projection, upsert: false, confirmed_by: ConfirmedBy::Majority }
    }
}

#[cfg(test)]
mod tests {
    use distlock_api::{AcquisitionId, LockKey};
    use distlock_engine::store::{Claim, Ticket};
    use std::time::Duration;

    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    fn claim(mode: Mode) -> Claim {
        Claim::new(LockKey::new("k").unwrap(), AcquisitionId::new("a")).with_mode(mode)
    }

    #[test]
    fn only_a_caller_that_waits_may_need_two_commands() {
        let attempt = Attempt::new(claim(Mode::Exclusive), HOUR);
        assert_eq!(acquire(&attempt, true), [AcquirePath::Full]);
        let attempt = attempt.with_ticket(Ticket::new(HOUR, HOUR, 8));
        assert_eq!(acquire(&attempt, true), [AcquirePath::IfUnused, AcquirePath::Full]);
        assert_eq!(acquire(&attempt, false), [AcquirePath::Full]);
    }

    #[test]
    fn a_release_tries_what_suits_its_lease() {
        use ReleasePath::{Full, HandOver, HandOverToAny, Leave, WithoutWaiter};
        let plan = |mode, was_alone, met_modes| release(&Release::new(claim(mode)), Known { was_alone, met_modes });
        let permits = Mode::Permits { take: 1, of: 2 };
        for mode in [Mode::Exclusive, Mode::Shared, permits] {
            assert_eq!(plan(mode, true, false), [WithoutWaiter, Full]);
        }
        assert_eq!(plan(Mode::Exclusive, false, false), [HandOver, Full]);
        assert_eq!(plan(Mode::Exclusive, false, true), [HandOverToAny, Full]);
        assert_eq!(plan(Mode::Shared, false, false), [Leave, Full]);
        assert_eq!(plan(permits, false, false), [Full]);
    }

    #[test]
    fn a_minimum_hold_waits_for_the_majority() {
        use ReleasePath::{Full, HandOver};
        let plan = |mode| {
            let release = Release::new(claim(mode)).with_hold_at_least(HOUR);
            super::release(&release, Known { was_alone: true, met_modes: false })
        };
        assert_eq!(plan(Mode::Exclusive), [HandOver, Full]);
        assert_eq!(plan(Mode::Shared), [Full]);
    }
}
