//! Decides how long a lease is handed on within the process (rule R21 of distlock-mongo's
//! PROTOCOL).

use tokio::time::Instant;

use crate::options::HandOff;

/// How long a lease has been handed on within the process, and whether other processes are known to
/// wait for it (R21).
#[derive(Clone, Copy, Debug)]
pub(crate) struct HandOffState {
    /// The grant, or the last time at which no other process waited.
    since: Instant,
    /// How often it has been handed on since then.
    count: u32,
    others: Others,
    /// Whether a query for waiters is under way.
    query_under_way: bool,
    /// Whether the last answer is newer than the present guard.
    fresh: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Others {
    Unknown,
    /// No other process waited at `since`.
    None,
    Waiting,
}

/// What a lease that its guard has given up may be used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NextUse {
    /// For the next caller of this process, whether it waits or comes.
    Guard,
    /// For one that comes, if none waits.
    Linger,
}

impl HandOffState {
    pub(crate) fn new(now: Instant) -> Self {
        Self { since: now, count: 0, others: Others::Unknown, query_under_way: false, fresh: false }
    }

    /// Returns whether the lease may be handed on once more:
    ///
    /// * If another process waits: within both limits.
    /// * If that is not known yet: within the time limit, and once in any case, however long the
    ///   first guard has worked.
    /// * If no other process waited: within the time limit, or if the query ran under the present
    ///   guard.
    pub(crate) fn may_hand_on(&self, now: Instant, limits: &HandOff) -> bool {
        let in_time = now.saturating_duration_since(self.since) < limits.max_time;
        match self.others {
            Others::Waiting => in_time && self.count < limits.max_count,
            Others::Unknown => in_time || self.count == 0,
            Others::None => in_time || self.fresh,
        }
    }

    /// Returns whether the lease may be kept though no caller of this process waits: not if another
    /// process does.
    pub(crate) fn may_linger(&self) -> bool {
        self.others != Others::Waiting
    }

    /// Returns what the lease may be used for when its guard gives it up; `None` if it must be
    /// released. A lease that `lingers` may do so while waiters are queried: the answer says
    /// whether it may linger on.
    pub(crate) fn next_use(&self, now: Instant, limits: &HandOff, lingers: bool) -> Option<NextUse> {
        if self.may_hand_on(now, limits) {
            Some(NextUse::Guard)
        } else {
            (lingers && self.query_under_way && self.may_linger()).then_some(NextUse::Linger)
        }
    }

    pub(crate) fn handed_on(&mut self) {
        self.count = self.count.saturating_add(1);
        self.fresh = false;
    }

    /// Returns whether to query for waiters of other processes now; true once per query.
    pub(crate) fn should_query(&mut self, now: Instant, limits: &HandOff) -> bool {
        let due = match self.others {
            Others::Unknown => true,
            Others::None => now.saturating_duration_since(self.since) >= limits.max_time / 2,
            Others::Waiting => false,
        };
        due && !std::mem::replace(&mut self.query_under_way, true)
    }

    /// Records the answer to a query that was sent at `sent`.
    pub(crate) fn query_answered(&mut self, sent: Instant, others: bool) {
        if others {
            (self.others, self.query_under_way) = (Others::Waiting, false);
        } else {
            *self = Self { others: Others::None, fresh: true, ..Self::new(sent) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_kit::ms;

    #[tokio::test(start_paused = true)]
    async fn r21_handing_on_is_bounded_while_others_wait_and_only_then() {
        let limits = HandOff::new().max_count(3).max_time(ms(100));
        let start = Instant::now();
        let mut state = HandOffState::new(start);
        assert!(state.may_hand_on(start + ms(5000), &limits), "the first guard's own work does not count");
        assert!(state.should_query(start, &limits) && !state.should_query(start, &limits), "one query at a time");
        (0..50).for_each(|_| state.handed_on());
        assert!(state.may_hand_on(start + ms(99), &limits), "no other process is known to wait");
        assert!(!state.may_hand_on(start + ms(100), &limits), "but one may");
        state.query_answered(start + ms(90), false);
        assert!(state.may_hand_on(start + ms(900), &limits), "none did when this guard worked");
        state.handed_on();
        assert!(state.may_hand_on(start + ms(189), &limits) && !state.may_hand_on(start + ms(190), &limits));
        assert!(!state.should_query(start + ms(139), &limits) && state.should_query(start + ms(140), &limits));
        state.query_answered(start + ms(140), true);
        assert!(state.may_hand_on(start + ms(141), &limits));
        (0..3).for_each(|_| state.handed_on());
        assert!(!state.may_hand_on(start + ms(141), &limits), "by count");
        assert!(!state.should_query(start + ms(185), &limits), "another process is known to wait");
    }
}
