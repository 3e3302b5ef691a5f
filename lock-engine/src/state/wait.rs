//! The wait of one acquisition: what it does next after each answer, event and timer.
//!
//! ```text
//!             ┌────────────── Attempt ◄────────────┬───────────────┐
//!             ▼                                    │               │
//!   the store answers            timer, nudge, an update that      │
//!     │     │      │             only an answer can settle         │
//!     │     │      └─ not yet ─► Sleep ────────────┘               │
//!     │     └─ the end ────────► Return            │ the store pushed a grant
//!     └─ granted ──────────────► Start ◄───────────┘               │
//!                                  └──────────── too late ─────────┘
//! ```

use std::time::Duration;

use distlock_api::{Busy, Disposition, ErrorKind, LeaseOptions, LeaseTerms, LockError, Phase, Result, Wait as WaitFor};
use tokio::time::Instant;

use crate::simulation::defect;
use crate::state::backoff::{self, Poll};
use crate::state::claim::{Anchor, RefreshAnswer, Updates, tickets_ahead};
use crate::state::lease;
use crate::state::time::Now;
use crate::store::{BusyReply, Grant, QueueStanding, Reply, Standing, Ticket};

/// Until when the caller waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Limit {
    /// One attempt.
    Once {
        /// Whether it may go in a batch, although it may then take a second round trip.
        batched: bool,
    },
    Until(Instant),
    Never,
}

impl Limit {
    /// Returns the limit of a call that begins now. The clock is only read if the limit depends on
    /// it.
    pub(crate) fn new(wait: WaitFor, batched: bool, now: impl FnOnce() -> Instant) -> Self {
        match wait {
            WaitFor::Try | WaitFor::UpTo(Duration::ZERO) => Self::Once { batched },
            WaitFor::UpTo(limit) => now().checked_add(limit).map_or(Self::Never, Self::Until),
            WaitFor::Forever => Self::Never,
        }
    }

    pub(crate) fn instant(self) -> Option<Instant> {
        match self {
            Self::Until(limit) => Some(limit),
            Self::Once { .. } | Self::Never => None,
        }
    }

    pub(crate) fn has_passed(self, now: &Now) -> bool {
        matches!(self, Self::Until(limit) if now.instant() >= limit)
    }
}

/// What the caller does next.
#[derive(Debug)]
pub(crate) enum Next {
    /// Makes an attempt.
    Attempt,
    /// Makes an attempt under a new claim: the lease of this one was granted and lost before the
    /// caller learned of it.
    AttemptUnderNewClaim,
    /// Waits for an update, a nudge, or this instant.
    Sleep(Instant),
    /// Takes the lease.
    Start(Start),
    /// Returns to its caller.
    Return(Result<Busy>),
}

/// A lease to be taken.
#[derive(Debug)]
pub(crate) struct Start {
    pub(crate) grant: Grant,
    /// When the answered request was sent. For a pushed grant: when it arrived.
    pub(crate) sent: Instant,
    pub(crate) deadline: Instant,
    /// Whether it came with an answer. Otherwise the store has pushed it.
    pub(crate) answered: bool,
}

/// What else is known when an attempt is answered.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Circumstances {
    /// The ticket that the attempt requested.
    pub(crate) ticket: Option<Ticket>,
    /// Whether the stream of events is open.
    pub(crate) stream_open: bool,
    /// Whether another attempt would resolve the outcome of this one.
    pub(crate) can_resolve: bool,
    /// Whether the attempt is still under way.
    pub(crate) cut_off: bool,
}

/// What stays the same during the wait.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) limit: Limit,
    pub(crate) terms: LeaseTerms,
    pub(crate) poll: Poll,
    pub(crate) refuses_when_full: bool,
    /// Whether a grant must come with an answer, which then brings more than the lease.
    pub(crate) needs_answer: bool,
}

/// The wait of one acquisition.
#[derive(Debug)]
pub(crate) struct Wait {
    settings: Settings,
    /// The number of answers of "busy".
    busy_answers: u32,
    /// Failures in a row.
    failed: u32,
    /// The last report about the holder.
    busy: Option<Busy>,
    last_error: Option<LockError>,
    /// Whether the event stream is trusted. It no longer is once a queue position was lost without
    /// the event of its grant.
    trusts_stream: bool,
    /// The tickets ahead, by the last answer.
    ahead: Option<u32>,
    position: Option<QueuePosition>,
    /// What the caller gets if its limit passes now.
    so_far: Result<Busy>,
    wake: Instant,
}

/// A position in the store's queue.
#[derive(Clone, Copy, Debug)]
struct QueuePosition {
    anchor: Option<Anchor>,
    ticket: Ticket,
}

impl Wait {
    /// Starts a wait. `busy` is set if the caller was in the local queue, and so knows that the
    /// lock is busy.
    pub(crate) fn new(settings: Settings, busy: Option<Busy>, now: &Now) -> Self {
        Self {
            settings,
            busy_answers: 0,
            failed: 0,
            busy,
            last_error: None,
            trusts_stream: true,
            ahead: None,
            position: None,
            so_far: Ok(Busy::new()),
            wake: now.instant(),
        }
    }

    /// Failures in a row.
    pub(crate) fn failed(&self) -> u32 {
        self.failed
    }

    pub(crate) fn last_error(&self) -> Option<&LockError> {
        self.last_error.as_ref()
    }

    /// Returns whether the next attempt may be refused because the store is overloaded. A caller
    /// that knows that the lock is busy stays in line instead, until it leaves.
    pub(crate) fn admission(&self) -> bool {
        self.busy.is_none() && self.last_error.is_none()
    }

    /// Decides after the answer to an attempt, or after its time-out.
    pub(crate) fn on_answer(
        &mut self,
        now: &Now,
        answer: Result<(Instant, Reply)>,
        circumstances: Circumstances,
        random: f64,
    ) -> Next {
        self.position = None;
        match answer {
            Ok((sent, Reply::Granted(grant))) => {
                let sent = if defect!(DeadlineFromReply) { now.instant() } else { sent };
                let deadline = lease::deadline(sent, grant.remaining, &self.settings.terms);
                Next::Start(Start { grant, sent, deadline, answered: true })
            }
            Ok((sent, Reply::Busy(reply))) => self.on_busy(now, sent, &reply, circumstances, random),
            Err(error) => self.on_error(now, error, circumstances, random),
        }
    }

    fn on_busy(
        &mut self,
        now: &Now,
        sent: Instant,
        reply: &BusyReply,
        Circumstances { ticket, stream_open, .. }: Circumstances,
        random: f64,
    ) -> Next {
        (self.failed, self.last_error) = (0, None);
        self.busy_answers += 1;
        if reply.standing == QueueStanding::Full && self.settings.refuses_when_full {
            let message = "the lock's queue is full; try again later, or raise the queue's capacity";
            return Next::Return(Err(LockError::new(ErrorKind::QueueFull, message)));
        }
        let ahead = tickets_ahead(reply);
        self.position =
            ticket.filter(|_| ahead.is_some()).map(|ticket| QueuePosition { anchor: Anchor::new(sent, reply), ticket });
        self.trusts_stream &= ahead.zip(self.ahead).is_none_or(|(ahead, before)| ahead <= before);
        self.ahead = ahead;
        let pause = self.pause(reply, stream_open, random);
        self.so_far = Ok(*self.busy.insert(to_busy(reply)));
        self.sleep(now, pause)
    }

    fn on_error(&mut self, now: &Now, error: LockError, circumstances: Circumstances, random: f64) -> Next {
        // No wait mends a record that another program has changed, whatever the attempt has done.
        if error.disposition() == Disposition::Permanent || error.kind() == ErrorKind::Corrupt {
            return Next::Return(Err(error));
        }
        // Nothing was sent. If the lock is known to be busy, that says more to the caller.
        if error.kind() == ErrorKind::Overloaded {
            return Next::Return(self.busy.ok_or(error));
        }
        if self.failed == 0 {
            // C10: the second attempt resolves the outcome of the first one.
            if circumstances.can_resolve {
                self.failed = 1;
                return Next::Attempt;
            }
            // Cut off by the caller's own limit after an answer of "busy", which says more.
            if let Some(busy) = self.busy.filter(|_| self.settings.limit.has_passed(now)) {
                return Next::Return(Ok(busy));
            }
        }
        self.failed += 1;
        // An earlier error of the store says more than a time-out of the last attempt.
        let error = match self.last_error.take() {
            Some(earlier) if circumstances.cut_off => earlier.outcome_unknown(),
            _ => error,
        };
        self.last_error = Some(error.clone());
        self.so_far = Err(error);
        self.sleep(now, backoff::after_error(self.failed - 1, random))
    }

    /// Decides after a grant that came too late: its deadline has passed, or the lease is lost
    /// (rule R10 of distlock-mongo's PROTOCOL). A grant that came with an answer is withdrawn.
    pub(crate) fn on_late(&mut self, now: &Now, answered: bool, random: f64) -> Next {
        if !answered {
            return self.attempt_again(now);
        }
        self.failed += 1;
        let error = LockError::timeout(
            Phase::Request,
            "the grant arrived after its own deadline: the store is slow, or the ttl too short; raise the ttl, or look \
             for load on the store",
        );
        let error = error.with_disposition(Disposition::Retryable);
        self.last_error = Some(error.clone());
        self.so_far = Err(error);
        self.sleep(now, backoff::after_error(self.failed, random))
    }

    /// Decides after a nudge, or at the instant until which the caller sleeps.
    pub(crate) fn on_timer(&self, now: &Now) -> Next {
        self.attempt_again(now)
    }

    /// Decides after a notification of updates about the claim.
    pub(crate) fn on_updates(&mut self, now: &Now, updates: Updates, stream_open: bool, random: f64) -> Next {
        let Updates { lost, missed, pushed, refreshed } = updates;
        if lost {
            return match self.attempt_again(now) {
                Next::Attempt => Next::AttemptUnderNewClaim,
                other => other,
            };
        }
        // Without an anchor there is nothing to compare the push with; the next answer brings one
        // (R19).
        let Some(mut position) = self.position else { return self.attempt_again(now) };
        if missed || (self.settings.needs_answer && pushed.is_some()) {
            return self.attempt_again(now);
        }
        let is_waiting = match refreshed {
            Some(RefreshAnswer { sent, standing: Standing::Waiting(reply) }) => {
                position.anchor = Anchor::new(sent, &reply);
                self.position = Some(position);
                self.ahead = tickets_ahead(&reply);
                let wake = now.instant() + self.pause(&reply, stream_open, random);
                // The time of its turn moves with each answer. The time of a poll does not.
                self.wake = if self.sleeps_until_its_turn(&reply, stream_open) { wake } else { wake.min(self.wake) };
                self.so_far = Ok(*self.busy.insert(to_busy(&reply)));
                pushed.is_none() || position.anchor.is_some()
            }
            Some(RefreshAnswer { .. }) => {
                self.trusts_stream &= pushed.is_some();
                false
            }
            None => pushed.is_none(),
        };
        let end = pushed.as_ref().zip(position.anchor).and_then(|(pushed, anchor)| anchor.end_of(pushed, now));
        if let (Some(end), Some(pushed)) = (end, pushed) {
            return self.on_pushed(now, end, pushed.grant, position.ticket);
        }
        if is_waiting { Next::Sleep(self.capped(self.wake)) } else { self.attempt_again(now) }
    }

    /// R18, R19: starts the lease at once, on its short claim; the keeper renews it to the full
    /// ttl.
    fn on_pushed(&self, now: &Now, end: Instant, grant: Grant, ticket: Ticket) -> Next {
        let margin = self.settings.terms.margin;
        let end = if defect!(PushFromArrival) { now.instant() + ticket.claim_ttl } else { end };
        let deadline = end.min(now.instant() + ticket.claim_ttl).checked_sub(margin).unwrap_or(now.instant());
        // Too late to be renewed in time. An attempt brings the lease with its full ttl.
        let left = deadline.saturating_duration_since(now.instant());
        if left < ticket.claim_ttl.saturating_sub(margin) / 2 {
            return self.attempt_again(now);
        }
        Next::Start(Start { grant, sent: now.instant(), deadline, answered: false })
    }

    fn attempt_again(&self, now: &Now) -> Next {
        if self.settings.limit.has_passed(now) { Next::Return(self.so_far.clone()) } else { Next::Attempt }
    }

    fn sleep(&mut self, now: &Now, pause: Duration) -> Next {
        if matches!(self.settings.limit, Limit::Once { .. }) || self.settings.limit.has_passed(now) {
            return Next::Return(self.so_far.clone());
        }
        self.wake = now.instant() + pause;
        Next::Sleep(self.capped(self.wake))
    }

    fn capped(&self, instant: Instant) -> Instant {
        self.settings.limit.instant().map_or(instant, |limit| instant.min(limit))
    }

    /// Returns how long to wait before the next attempt. A caller that is queued and gets events
    /// sleeps until its turn comes without a hand-over, when the holder's lease has expired. Other
    /// callers poll.
    fn pause(&self, reply: &BusyReply, stream_open: bool, random: f64) -> Duration {
        let poll = self.settings.poll;
        match reply.holder_remaining {
            Some(remaining) if self.sleeps_until_its_turn(reply, stream_open) => {
                remaining.min(LeaseOptions::MAX_TTL) + poll.first.mul_f64(0.1 + random / 2.0)
            }
            // When the holder's lease ends, others are before it.
            _ if reply.standing == QueueStanding::Full => {
                poll.outside_the_queue().pause(self.busy_answers - 1, None, random)
            }
            remaining => poll.pause(self.busy_answers - 1, remaining, random),
        }
    }

    /// Returns whether the caller is queued, gets the event of its grant, and knows when its turn
    /// comes without a hand-over.
    fn sleeps_until_its_turn(&self, reply: &BusyReply, stream_open: bool) -> bool {
        let knows = reply.holder_remaining.is_some_and(|remaining| remaining > self.settings.poll.first);
        tickets_ahead(reply).is_some() && self.trusts_stream && stream_open && knows
    }
}

fn to_busy(reply: &BusyReply) -> Busy {
    Busy::new().with_retry_after(reply.holder_remaining).with_ahead(tickets_ahead(reply))
}

#[cfg(test)]
mod tests;
