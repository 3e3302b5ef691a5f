//! When a command gets SIGTERM and SIGKILL. No I/O, and the time is an argument.
//!
//! The command must be gone before the lease's deadline, at which the guard counts as lost. So it
//! gets SIGTERM a *grace* before the deadline, when the renewals of most of a ttl have failed, and
//! SIGKILL a little before it. The deadline is still earlier than the end of the lease, by the
//! safety margin, because the margin is for clocks.
//!
//! A lock that is gone already, by a forced release, leaves no time: the grace is short then.

use std::time::Duration;

use distlock::{LeaseTerms, LockError};
use tokio::time::Instant;

/// The longest default grace.
const MAX_DEFAULT_GRACE: Duration = Duration::from_secs(10);
/// The longest grace after the lock is gone.
const GRACE_AFTER_LOSS: Duration = Duration::from_secs(1);
/// The shortest time by which SIGKILL precedes the deadline, unless the ttl is very short.
const MIN_LEAD: Duration = Duration::from_millis(20);
/// The longest one.
const MAX_LEAD: Duration = Duration::from_millis(250);

/// The times of an ending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    /// How long before the deadline the command gets SIGTERM. Without a grace, it gets SIGKILL
    /// alone.
    pub(crate) grace: Duration,
    /// How long before the deadline it gets SIGKILL.
    pub(crate) lead: Duration,
    /// How much of the lease must be left when the command starts.
    pub(crate) at_start: Duration,
    /// How long after the grant the guard is lost, whatever its renewals say.
    pub(crate) max_hold: Option<Duration>,
}

impl Limits {
    /// Derives the times from the terms of the lease. The grace defaults to a sixth of the ttl, at
    /// most 10 s. The renewal a third of the ttl after the last one, and its repetitions, have
    /// failed by then. It is a quarter of the maximum hold at most.
    ///
    /// # Errors
    /// A grace above a third of the ttl: a single renewal that is late would end the command. One
    /// that leaves nothing of the maximum hold.
    pub(crate) fn new(terms: &LeaseTerms, grace: Option<Duration>) -> Result<Self, LockError> {
        let max_hold = terms.max_hold;
        let default = (terms.ttl / 6).min(MAX_DEFAULT_GRACE);
        let grace = grace.unwrap_or_else(|| max_hold.map_or(default, |hold| default.min(hold / 4)));
        if grace > terms.ttl / 3 {
            return Err(LockError::invalid_options(format!(
                "--grace is {grace:?}, and must be at most a third of the ttl ({:?}): otherwise one late renewal \
                 would end the command. Lower it, or raise --ttl",
                terms.ttl
            )));
        }
        if let Some(hold) = max_hold.filter(|hold| grace >= *hold) {
            return Err(LockError::invalid_options(format!(
                "--max-hold is {hold:?}, and must be longer than the grace ({grace:?}): otherwise the command would be \
                 ended at once. Raise it, or lower --grace"
            )));
        }
        let at_start = terms.ttl.saturating_sub(terms.margin) / 2;
        let at_start = max_hold.map_or(at_start, |hold| at_start.min((hold - grace) / 2));
        let lead = (grace / 4).clamp(MIN_LEAD.min(terms.ttl / 50), MAX_LEAD);
        Ok(Self { grace: grace.max(lead), lead, at_start, max_hold })
    }

    /// Returns whether a command that has run for this long is ended because its maximum hold is
    /// over, and not because the lock could not be renewed. The maximum counts from the request
    /// that was granted, which may be older than the command.
    pub(crate) fn is_over(&self, running: Duration) -> bool {
        const OLDEST_REQUEST: Duration = Duration::from_secs(5);
        self.max_hold.is_some_and(|hold| running + self.grace + OLDEST_REQUEST >= hold)
    }
}

/// What is to be done about the command now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Nothing, until this instant.
    Wait(Instant),
    /// Nothing at all: the lock never expires.
    Leave,
    /// Send SIGTERM now, and look again at this instant.
    Terminate(Instant),
    /// Send SIGKILL now.
    Kill,
}

/// Decides about one command. Once it has said [`Terminate`](Action::Terminate), the end is final:
/// a renewal that succeeds afterwards changes nothing.
#[derive(Debug)]
pub(crate) struct Ending {
    limits: Limits,
    kill_at: Option<Instant>,
}

impl Ending {
    pub(crate) fn new(limits: Limits) -> Self {
        Self { limits, kill_at: None }
    }

    /// Decides what to do at `now`, when the lock is held until `valid_until`; `None` if it never
    /// expires. With `is_lost` the lock is gone already, and `valid_until` is the last deadline.
    pub(crate) fn look(&mut self, now: Instant, valid_until: Option<Instant>, is_lost: bool) -> Action {
        if let Some(kill_at) = self.kill_at {
            return if now < kill_at { Action::Wait(kill_at) } else { Action::Kill };
        }
        let before = |time: Duration| valid_until.map(|until| until.checked_sub(time).unwrap_or(now));
        let deadline = before(self.limits.lead);
        let kill_at = if is_lost {
            let soon = now + self.limits.grace.min(GRACE_AFTER_LOSS);
            deadline.map_or(soon, |deadline| deadline.min(soon))
        } else {
            let (Some(deadline), Some(terminate_at)) = (deadline, before(self.limits.grace)) else {
                return Action::Leave;
            };
            if now < terminate_at {
                return Action::Wait(terminate_at);
            }
            deadline
        };
        self.kill_at = Some(kill_at);
        if now < kill_at { Action::Terminate(kill_at) } else { Action::Kill }
    }
}

#[cfg(test)]
mod tests {
    use distlock::LeaseOptions;

    use super::*;

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn the_grace_leaves_some_of_a_maximum_hold() {
        // ttl, maximum hold, grace; the grace, and what must be left at the start
        for (ttl, hold, grace, expected) in [
            (30_000, 60_000, None, Some((5_000, 14_500))),
            (30_000, 4_000, None, Some((1_000, 1_500))),
            (30_000, 4_000, Some(3_000), Some((3_000, 500))),
            (30_000, 4_000, Some(4_000), None),
        ] {
            let terms = LeaseOptions::new().ttl(ms(ttl)).max_hold(ms(hold)).terms().unwrap();
            let limits = Limits::new(&terms, grace.map(ms));
            let limits = limits.ok().map(|limits| (limits.grace, limits.at_start));
            assert_eq!(limits, expected.map(|(grace, left)| (ms(grace), ms(left))), "{ttl} {hold} {grace:?}");
        }
    }

    fn limits(ttl: u64, grace: Option<u64>) -> Result<Limits, LockError> {
        Limits::new(&LeaseOptions::new().ttl(ms(ttl)).terms().unwrap(), grace.map(ms))
    }

    #[test]
    fn the_grace_fits_between_failed_renewals_and_the_deadline() {
        for (ttl, grace, expected) in [
            (30_000, None, Some((5_000, 250))),
            (3_000, None, Some((500, 125))),
            (600_000, None, Some((10_000, 250))),
            (30_000, Some(10_000), Some((10_000, 250))),
            (30_000, Some(0), Some((20, 20))),
            (30_000, Some(10_001), None),
        ] {
            let limits = limits(ttl, grace).ok().map(|limits| (limits.grace, limits.lead));
            assert_eq!(limits, expected.map(|(grace, lead)| (ms(grace), ms(lead))), "{ttl} {grace:?}");
        }
    }

    #[test]
    fn the_command_is_ended_before_the_deadline() {
        let start = Instant::now();
        let at = |millis| start + ms(millis);
        let limits = limits(30_000, None).unwrap();
        let deadline = Some(at(29_000));
        let until_kill = at(28_750);
        // now, lost, the action
        for (now, lost, action) in [
            (0, false, Action::Wait(at(24_000))),
            (23_999, false, Action::Wait(at(24_000))),
            (24_000, false, Action::Terminate(until_kill)),
            (28_749, false, Action::Terminate(until_kill)),
            (28_750, false, Action::Kill),
            (40_000, false, Action::Kill),
            // By force, long before the deadline.
            (5_000, true, Action::Terminate(at(6_000))),
            (28_500, true, Action::Terminate(until_kill)),
            (29_000, true, Action::Kill),
        ] {
            assert_eq!(Ending::new(limits).look(at(now), deadline, lost), action, "{now} {lost}");
        }
    }

    #[test]
    fn an_ending_that_has_begun_is_final() {
        let start = Instant::now();
        let at = |millis| start + ms(millis);
        let mut ending = Ending::new(limits(30_000, None).unwrap());
        assert_eq!(ending.look(at(24_500), Some(at(29_000)), false), Action::Terminate(at(28_750)));
        // A renewal has succeeded meanwhile, or the lock is gone: neither changes the end.
        assert_eq!(ending.look(at(24_600), Some(at(53_000)), false), Action::Wait(at(28_750)));
        assert_eq!(ending.look(at(24_700), Some(at(53_000)), true), Action::Wait(at(28_750)));
        assert_eq!(ending.look(at(28_750), Some(at(53_000)), false), Action::Kill);
    }

    #[test]
    fn a_lock_that_never_expires_ends_nothing_unless_it_is_lost() {
        let (now, limits) = (Instant::now(), limits(30_000, None).unwrap());
        assert_eq!(Ending::new(limits).look(now, None, false), Action::Leave);
        assert_eq!(Ending::new(limits).look(now, None, true), Action::Terminate(now + ms(1_000)));
    }
}
