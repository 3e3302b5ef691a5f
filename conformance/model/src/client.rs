//! How a process handles answers and events (R1, R9, R10, R15–R20).

use crate::config::Config;
use crate::ids::{Time, Token};
use crate::rules::{Guard, Property};
use crate::state::{Anchor, Answer, Client, Event, EventKind, Message, Op, Phase};

/// The property that a step violates, if any.
pub type Verdict = Option<Property>;

impl Client {
    /// Whether the process is certain to hold the lease.
    #[must_use]
    pub fn is_certain(&self, time: Time) -> bool {
        // Guards that remain after the release (only with R21 switched off).
        !self.dead && (self.phase == Phase::Held || self.others > 0) && time < self.deadline
    }

    /// Whether the process waits for the lease.
    #[must_use]
    pub fn wants(&self) -> bool {
        !self.dead && matches!(self.phase, Phase::Attempting | Phase::Waiting)
    }

    /// Ends the acquisition.
    pub fn finish(&mut self) {
        let Self { role, dead, number, stream_ended, at_stale, others, token, deadline, .. } = *self;
        *self = Self { role, dead, number, stream_ended, at_stale, ..Self::default() };
        if others > 0 {
            (self.others, self.token, self.deadline) = (others, token, deadline);
        }
    }

    /// Gives the acquisition up, to withdraw it.
    pub fn leave(&mut self) {
        let Self { role, dead, number, stream_ended, at_stale, last_call, call, batch, bound, events, used, .. } =
            *self;
        let phase = Phase::Leaving;
        let rest = Self { role, dead, number, stream_ended, at_stale, last_call, call, ..Self::default() };
        *self = Self { batch, bound, events, used, phase, ..rest };
    }

    /// Stops waiting for the answer to a batch, which may still act (R24).
    pub fn leave_batch(&mut self, config: &Config) {
        let bound = std::mem::take(&mut self.batch);
        if bound > 0 && config.rules.keep(Guard::BatchGivenUp) {
            self.leave();
            self.fence = bound + config.longest_stall + config.margin();
        }
    }

    /// Ends a lost lease. The process releases it once, as a precaution (R16).
    pub fn lose(&mut self, config: &Config) {
        let (local, token, last_token) = (self.local, self.token, self.last_token);
        // Pending messages no longer count; the session prevents a late effect.
        (self.call, self.others) = (0, 0);
        if config.rules.keep(Guard::ReleaseAfterLoss) {
            self.leave();
            self.after_loss = true;
        } else {
            self.finish();
        }
        if !config.rules.keep(Guard::NotWhenLost) && self.phase == Phase::Leaving && local > 0 {
            (self.local, self.token, self.last_token, self.lost) = (local, token, last_token, true);
        }
    }

    fn hold(&mut self, deadline: Time, token: Token, tokens: u8) {
        let Self { role, dead, number, stream_ended, at_stale, last_call, call, events, .. } = *self;
        let Self { busy_token, must_renew, bound, .. } = *self;
        let phase = Phase::Held;
        let rest = Self {
            role,
            dead,
            number,
            stream_ended,
            at_stale,
            last_call,
            call,
            events,
            busy_token,
            must_renew,
            bound,
            ..Self::default()
        };
        *self = Self { phase, deadline, ..rest };
        (self.token, self.last_token, self.local) = (token + 1 - Token::from(tokens), token, tokens - 1);
        self.used = self.token;
    }

    /// R21: gives the next guard of the process its token. Returns whether it has one.
    pub fn next_token(&mut self, config: &Config) -> bool {
        let before = self.token;
        self.local -= 1;
        if config.rules.keep(Guard::NextToken) {
            self.token += 1;
        }
        self.used = self.used.max(self.token);
        self.token > before && self.token <= self.last_token
    }

    /// Handles an answer that the process waits for.
    pub fn receive_answer(&mut self, answer: &Message, time: Time, config: &Config) -> Verdict {
        match answer.op {
            Op::Acquire => {
                self.call = 0;
                if self.phase == Phase::Attempting {
                    return self.acquire_answered(answer, time, config);
                }
            }
            Op::Batch => {
                (self.call, self.batch) = (0, 0);
                // If nothing was granted, nothing was done, and R8 follows.
                if self.phase == Phase::Attempting && answer.answer == Answer::Granted {
                    return self.acquire_answered(answer, time, config);
                }
            }
            Op::Release => {
                self.call = 0;
                if answer.now < self.fence && config.rules.keep(Guard::BatchSettled) {
                    self.withdrawn = true;
                } else if answer.answer != Answer::Replay {
                    self.finish();
                }
            }
            Op::Renew if time >= self.deadline => {}
            Op::Renew if answer.answer == Answer::Granted => {
                self.must_renew &= answer.number == 0;
                self.deadline = self.deadline.max(until(answer.sent, answer.left, time, config));
            }
            Op::Renew => self.lose(config),
            Op::Refresh => match answer.answer {
                Answer::Busy => {
                    self.busy_token = self.busy_token.max(answer.token);
                    let newer = self.anchor.is_none_or(|anchor| anchor.sent <= answer.sent);
                    if newer {
                        self.anchor = Some(anchor(answer));
                        // If an attempt is due, it stays due: the answer may be older than the
                        // event that woke the waiter.
                        self.wake = if self.wake <= time { self.wake } else { time + answer.left };
                    }
                }
                // Granted without an event, or without a ticket: the next attempt (R8) shows which.
                _ => self.wake = time,
            },
        }
        None
    }

    fn acquire_answered(&mut self, answer: &Message, time: Time, config: &Config) -> Verdict {
        let rules = config.rules;
        match answer.answer {
            Answer::Granted => {
                let deadline = until(answer.sent, answer.left.min(config.ttl), time, config);
                if time < deadline {
                    self.hold(deadline, answer.token, answer.tokens);
                } else if rules.keep(Guard::LateGrant) {
                    self.leave();
                } else {
                    self.hold(time + 1, answer.token, answer.tokens);
                }
                None
            }
            // R9: the outcome is unknown, so it sends another attempt.
            Answer::Replay if rules.keep(Guard::Marker) => None,
            _ => {
                self.phase = Phase::Waiting;
                self.wake = time + answer.left;
                self.refreshed = answer.sent;
                if answer.answer == Answer::Busy {
                    self.anchor = Some(anchor(answer));
                    self.busy_token = self.busy_token.max(answer.token);
                }
                let verdict = answer.mine.then_some(Property::Truth);
                match self.early_event.take() {
                    Some(event) if event.kind == EventKind::Granted => self.take(&event, time, config),
                    Some(_) => self.wake = time,
                    None => {}
                }
                if self.phase == Phase::Waiting && std::mem::take(&mut self.must_renew) {
                    self.wake = time;
                }
                verdict
            }
        }
    }

    /// Handles an event for the acquisition that it names.
    pub fn receive_event(&mut self, event: &Event, time: Time, config: &Config) {
        match (event.kind, self.phase) {
            (EventKind::Opened, Phase::Waiting) => self.wake = time,
            (EventKind::Opened, Phase::Attempting) => {
                self.early_event.get_or_insert(*event);
            }
            (EventKind::Granted, Phase::Waiting) => self.take(event, time, config),
            (EventKind::Granted, Phase::Attempting) => {
                self.take(event, time, config);
                if self.phase == Phase::Attempting && config.rules.keep(Guard::KeepEvent) {
                    self.early_event = Some(*event);
                }
            }
            (EventKind::Gone, Phase::Held) if event.token > self.last_token || !config.rules.keep(Guard::LossToken) => {
                self.lose(config);
            }
            // It was granted and force-released before the process received any event: it starts
            // again.
            (EventKind::Gone, Phase::Waiting | Phase::Attempting) => self.leave(),
            _ => {}
        }
    }

    /// R18, R19: accepts a lease that a release granted.
    fn take(&mut self, event: &Event, time: Time, config: &Config) {
        let rules = config.rules;
        let first = event.token + 1 - Token::from(event.tokens);
        let deadline = match self.anchor {
            Some(anchor) if first > anchor.token || !rules.keep(Guard::AnchorToken) => {
                if !rules.keep(Guard::SentInstant) {
                    time + config.claim
                } else if rules.keep(Guard::Anchor) {
                    anchor.sent + event.expires.saturating_sub(anchor.now)
                } else {
                    anchor.sent + config.claim
                }
            }
            _ => 0,
        }
        .saturating_sub(config.margin());
        if time < deadline {
            self.hold(deadline, event.token, event.tokens);
        } else if self.phase == Phase::Waiting {
            self.wake = time;
        }
    }

    /// Handles a gap: the stream is open again, and events were lost (R20).
    pub fn receive_gap(&mut self, time: Time, config: &Config) {
        self.stream_ended = false;
        let rules = config.rules;
        match self.phase {
            Phase::Waiting if rules.keep(Guard::QueryAfterGap) => self.wake = time,
            Phase::Held if !rules.keep(Guard::GapIsNotLoss) => self.lose(config),
            // A pending answer may be too old.
            Phase::Held | Phase::Attempting => self.must_renew = rules.keep(Guard::QueryAfterGap),
            _ => {}
        }
    }
}

fn anchor(answer: &Message) -> Anchor {
    Anchor { sent: answer.sent, now: answer.now, token: answer.token }
}

/// R1: returns the end of the certain hold.
fn until(sent: Time, left: Time, time: Time, config: &Config) -> Time {
    let from = if config.rules.keep(Guard::SentInstant) { sent } else { time };
    (from + left).saturating_sub(config.margin())
}
