//! Decides which readers of this process share one lease (C26).
//!
//! A reader joins a shared lease without a request to the store, so a writer of another process
//! that waits there is not asked. The bounds are those of [`HandOff`]:
//!
//! | other processes | a reader may join |
//! |---|---|
//! | wait | within both limits, which count from the last time that none waited |
//! | not known to wait | always, but not while a query for waiters is unanswered for longer than the time limit |
//!
//! The queries become rare while no other process waits: the pause doubles, up to [`LONGEST`].

use std::collections::HashSet;
use std::num::NonZeroU32;
use std::time::Duration;

use distlock_api::{FencingToken, LeaseTerms, Mode};
use foldhash::fast::FixedState;
use tokio::time::Instant;

use crate::options::HandOff;
use crate::store::Claim;

/// The longest pause between two queries for waiters, unless the time limit is longer.
const LONGEST: Duration = Duration::from_secs(1);
/// The shortest one, for a time limit of next to nothing.
const SHORTEST: Duration = Duration::from_millis(10);

/// The guards that share one lease, and whether another one may join.
#[derive(Debug)]
pub(crate) struct Sharing {
    /// The tokens of the guards that have the lease, those in transit included.
    open: HashSet<FencingToken, FixedState>,
    /// How many of them have not reached their callers.
    in_transit: usize,
    /// How many of them have given the lease up since it was lost.
    left: usize,
    /// The grant, or the last time at which no other process waited.
    since: Instant,
    /// How many guards have joined since then.
    count: u32,
    /// Whether another process is known to wait.
    others_wait: bool,
    /// When the query for waiters was begun that is under way.
    queried: Option<Instant>,
    /// How long after `since` the next query is due, at least.
    pause: Duration,
}

/// How the queries for waiters of other processes continue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Queries {
    since: Instant,
    pause: Duration,
}

/// Why a reader does not join a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The lease is not held any more, or is due to another process.
    NotNow,
    /// All of its tokens have been used.
    NoTokens,
}

/// What became of a guard that has given a shared lease up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Leaving {
    /// Other guards have the lease.
    Left,
    /// It was the last one: no guard joins from here on, and the lease must be released.
    Last,
    /// The lease is lost.
    Lost,
}

/// Returns whether the guards of a lease may be several: a shared lease that is renewed, without a
/// minimum hold, and with tokens for more than one.
pub(crate) fn may_be_shared(claim: &Claim, tokens: NonZeroU32, terms: &LeaseTerms) -> bool {
    claim.mode() == Mode::Shared && tokens.get() > 1 && terms.renew_every.is_some() && !terms.is_for_one_guard()
}

impl Sharing {
    /// The state of a lease that has just been granted to the guard with this token.
    pub(crate) fn new(now: Instant, token: FencingToken) -> Self {
        Self {
            open: HashSet::from_iter([token]),
            in_transit: 0,
            left: 0,
            since: now,
            count: 0,
            others_wait: false,
            queried: None,
            pause: Duration::ZERO,
        }
    }

    /// Returns how the next lease may continue the queries of this one, of which all tokens have
    /// been used; `None` if another process waits.
    pub(crate) fn queries(&self) -> Option<Queries> {
        (!self.others_wait).then_some(Queries { since: self.since, pause: self.pause })
    }

    /// Continues the queries of the lease before this one. They are rare by now.
    pub(crate) fn continue_queries(&mut self, Queries { since, pause }: Queries) {
        (self.since, self.pause) = (since, pause);
    }

    /// Returns whether a guard with this token has the lease.
    pub(crate) fn is_open(&self, token: FencingToken) -> bool {
        self.open.contains(&token)
    }

    /// Returns whether a guard has the lease that has reached its caller. Without one the lease is
    /// not renewed: a caller that is never polled must not keep the key for ever.
    pub(crate) fn is_in_hand(&self) -> bool {
        self.open.len() > self.in_transit
    }

    /// Returns whether one more guard may join now.
    pub(crate) fn may_join(&self, now: Instant, limits: &HandOff) -> bool {
        if self.others_wait {
            let in_time = now.saturating_duration_since(self.since) < limits.max_time;
            return in_time && self.count < limits.max_count;
        }
        self.queried.is_none_or(|queried| now.saturating_duration_since(queried) < limits.max_time)
    }

    /// Adds a guard.
    pub(crate) fn join(&mut self, token: FencingToken, in_transit: bool) {
        self.open.insert(token);
        self.in_transit += usize::from(in_transit);
        self.count = self.count.saturating_add(1);
    }

    /// Records that a guard in transit has reached its caller.
    pub(crate) fn arrive(&mut self) {
        self.in_transit = self.in_transit.saturating_sub(1);
    }

    /// Removes a guard. Returns whether it was the last one.
    pub(crate) fn leave(&mut self, token: FencingToken, in_transit: bool) -> bool {
        self.open.remove(&token);
        self.in_transit = self.in_transit.saturating_sub(usize::from(in_transit));
        self.open.is_empty()
    }

    /// Records that a guard has given the lost lease up. Returns whether all of them have. The
    /// lease stays lost for each.
    pub(crate) fn leave_lost(&mut self) -> bool {
        self.left += 1;
        self.left >= self.open.len()
    }

    /// Returns whether to query for waiters of other processes now; true once per query.
    pub(crate) fn should_query(&mut self, now: Instant, limits: &HandOff) -> bool {
        let pause = self.pause.max(limits.max_time / 2).max(SHORTEST);
        let due = !self.others_wait && self.queried.is_none() && now.saturating_duration_since(self.since) >= pause;
        if due {
            (self.queried, self.pause) = (Some(now), (2 * pause).min(LONGEST));
        }
        due
    }

    /// Records the answer to a query that was sent at `sent`.
    pub(crate) fn query_answered(&mut self, sent: Instant, others_wait: bool) {
        (self.queried, self.others_wait) = (None, others_wait);
        if !others_wait {
            (self.since, self.count) = (sent, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_kit::{ms, token};

    #[tokio::test(start_paused = true)]
    async fn c28_joins_are_bounded_while_another_process_waits_and_only_then() {
        let limits = HandOff::new().max_count(3).max_time(ms(100));
        let start = Instant::now();
        let mut sharing = Sharing::new(start, token(1));
        (2..200).for_each(|next| sharing.join(token(next), false));
        assert!(sharing.may_join(start + ms(60_000), &limits), "no other process is known to wait");
        assert!(!sharing.should_query(start + ms(49), &limits), "a short lease costs no query");
        assert!(sharing.should_query(start + ms(50), &limits) && !sharing.should_query(start + ms(50), &limits));
        assert!(sharing.may_join(start + ms(149), &limits));
        assert!(!sharing.may_join(start + ms(150), &limits), "the query is not answered");
        sharing.query_answered(start + ms(55), false);
        assert!(sharing.may_join(start + ms(150), &limits), "none waited");
        assert!(sharing.should_query(start + ms(155), &limits));
        sharing.query_answered(start + ms(155), true);
        assert!(!sharing.may_join(start + ms(156), &limits), "by time: the limit counts from 55 ms");
        assert!(!sharing.should_query(start + ms(9000), &limits), "another process is known to wait");

        let mut sharing = Sharing::new(start, token(1));
        sharing.query_answered(start, false);
        assert!(sharing.should_query(start + ms(50), &limits));
        sharing.query_answered(start + ms(60), true);
        (2..5).for_each(|next| {
            assert!(sharing.may_join(start + ms(61), &limits));
            sharing.join(token(next), false);
        });
        assert!(!sharing.may_join(start + ms(61), &limits), "by count");
    }

    #[tokio::test(start_paused = true)]
    async fn c28_queries_become_rare_while_no_process_waits() {
        let limits = HandOff::new();
        let (start, mut queries, mut at) = (Instant::now(), 0, Duration::ZERO);
        let mut sharing = Sharing::new(start, token(1));
        while at < ms(60_000) {
            if sharing.should_query(start + at, &limits) {
                queries += 1;
                sharing.query_answered(start + at, false);
            }
            at += ms(1);
        }
        assert!((60..=66).contains(&queries), "{queries} in a minute");
        for limits in [HandOff::new().max_time(Duration::ZERO), HandOff::new().max_time(Duration::MAX)] {
            let mut sharing = Sharing::new(start, token(1));
            assert!(!sharing.should_query(start + ms(9), &limits) && sharing.may_join(start, &limits));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn c28_the_queries_of_a_lease_continue_with_the_next_one() {
        let (limits, start) = (HandOff::new(), Instant::now());
        let mut sharing = Sharing::new(start, token(1));
        for at in [0, 50, 150, 350, 750] {
            let _ = sharing.should_query(start + ms(at), &limits);
            sharing.query_answered(start + ms(at), false);
        }
        let mut next = Sharing::new(start + ms(800), token(9));
        next.continue_queries(sharing.queries().unwrap());
        assert!(!next.should_query(start + ms(1500), &limits) && next.should_query(start + ms(1750), &limits));
        next.query_answered(start + ms(1750), true);
        assert!(next.queries().is_none(), "another process waits");
    }

    #[tokio::test(start_paused = true)]
    async fn c11_guards_in_transit_count_as_open_and_not_as_in_hand() {
        let mut sharing = Sharing::new(Instant::now(), token(1));
        sharing.join(token(2), true);
        sharing.join(token(3), true);
        assert!(!sharing.leave(token(1), false) && !sharing.is_in_hand());
        sharing.arrive();
        assert!(sharing.is_in_hand() && sharing.is_open(token(3)) && !sharing.is_open(token(1)));
        assert!(!sharing.leave(token(3), true) && sharing.is_in_hand());
        assert!(sharing.leave(token(2), false));
    }
}
