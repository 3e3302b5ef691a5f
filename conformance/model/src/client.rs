//! What a process makes of answers and events (R1, R9, R10, R15–R20).

use crate::config::Config;
use crate::rules::{Guard, Property};
use crate::state::{Anchor, Answer, Client, Event, Message, Op, Phase, Time, Token, Told};

/// What is found wrong on the way, if anything.
pub type Verdict = Option<Property>;

impl Client {
    /// Whether it is certain to hold the lease.
    #[must_use]
    pub fn is_certain(&self, time: Time) -> bool {
        !self.dead && self.phase == Phase::Held && time < self.deadline
    }

    /// Whether somebody waits here.
    #[must_use]
    pub fn wants(&self) -> bool {
        !self.dead && matches!(self.phase, Phase::Asking | Phase::Waiting)
    }

    /// The acquisition is over.
    pub fn finish(&mut self) {
        let Self { dead, number, deaf, at_stale, .. } = *self;
        *self = Self { dead, number, deaf, at_stale, ..Self::default() };
    }

    /// The acquisition is given up, and withdrawn.
    pub fn leave(&mut self) {
        let Self { dead, number, deaf, at_stale, last_call, call, events, used, .. } = *self;
        let phase = Phase::Leaving;
        *self = Self { dead, number, deaf, at_stale, last_call, call, events, used, phase, ..Self::default() };
    }

    /// The lease is gone; the loser releases it once, just in case (R16).
    pub fn lose(&mut self, config: &Config) {
        let (local, token, last_token) = (self.local, self.token, self.last_token);
        // What it has under way counts no more; the session keeps it from acting later.
        self.call = 0;
        if config.rules.keep(Guard::Farewell) {
            self.leave();
            self.farewell = true;
        } else {
            self.finish();
        }
        if !config.rules.keep(Guard::NotWhenLost) && self.phase == Phase::Leaving && local > 0 {
            (self.local, self.token, self.last_token, self.lost) = (local, token, last_token, true);
        }
    }

    fn hold(&mut self, deadline: Time, token: Token, tokens: u8) {
        let Self { dead, number, deaf, at_stale, last_call, call, events, told, doubts, .. } = *self;
        let phase = Phase::Held;
        let kept = Self { dead, number, deaf, at_stale, last_call, call, events, told, doubts, ..Self::default() };
        *self = Self { phase, deadline, ..kept };
        (self.token, self.last_token, self.local) = (token + 1 - Token::from(tokens), token, tokens - 1);
        self.used = self.token;
    }

    /// What an answer means. It is one that the client waits for.
    pub fn hear_answer(&mut self, answer: &Message, time: Time, config: &Config) -> Verdict {
        match answer.op {
            Op::Acquire => {
                self.call = 0;
                if self.phase == Phase::Asking {
                    return self.asked(answer, time, config);
                }
            }
            Op::Release => {
                self.call = 0;
                if answer.answer != Answer::Replay {
                    self.finish();
                }
            }
            Op::Renew if time >= self.deadline => {}
            Op::Renew if answer.answer == Answer::Granted => {
                self.doubts &= answer.number == 0;
                self.deadline = self.deadline.max(until(answer.sent, answer.left, time, config));
            }
            Op::Renew => self.lose(config),
            Op::Refresh => match answer.answer {
                Answer::Busy => {
                    self.told = self.told.max(answer.token);
                    let newer = self.anchor.is_none_or(|anchor| anchor.sent <= answer.sent);
                    if newer {
                        self.anchor = Some(anchor(answer));
                        // What is due stays due: the answer may be older than what has woken the waiter.
                        self.wake = if self.wake <= time { self.wake } else { time + answer.left };
                    }
                }
                // Granted unheard, or without a ticket: R8 tells.
                _ => self.wake = time,
            },
        }
        None
    }

    fn asked(&mut self, answer: &Message, time: Time, config: &Config) -> Verdict {
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
            // R9: unknown; it asks again.
            Answer::Replay if rules.keep(Guard::Marker) => None,
            _ => {
                self.phase = Phase::Waiting;
                self.wake = time + answer.left;
                self.refreshed = answer.sent;
                if answer.answer == Answer::Busy {
                    self.anchor = Some(anchor(answer));
                    self.told = self.told.max(answer.token);
                }
                let verdict = answer.mine.then_some(Property::Truth);
                match self.kept.take() {
                    Some(event) if event.told == Told::Granted => self.take(&event, time, config),
                    Some(_) => self.wake = time,
                    None => {}
                }
                if self.phase == Phase::Waiting && std::mem::take(&mut self.doubts) {
                    self.wake = time;
                }
                verdict
            }
        }
    }

    /// What an event means to the acquisition that it names.
    pub fn hear_event(&mut self, event: &Event, time: Time, config: &Config) {
        match (event.told, self.phase) {
            (Told::Freed, Phase::Waiting) => self.wake = time,
            (Told::Freed, Phase::Asking) => {
                self.kept.get_or_insert(*event);
            }
            (Told::Granted, Phase::Waiting) => self.take(event, time, config),
            (Told::Granted, Phase::Asking) => {
                self.take(event, time, config);
                if self.phase == Phase::Asking && config.rules.keep(Guard::KeepEvent) {
                    self.kept = Some(*event);
                }
            }
            (Told::Gone, Phase::Held) if event.token > self.last_token || !config.rules.keep(Guard::LossToken) => {
                self.lose(config);
            }
            // It was granted and taken away before anybody heard of it: it starts afresh.
            (Told::Gone, Phase::Waiting | Phase::Asking) => self.leave(),
            _ => {}
        }
    }

    /// R18, R19: takes up what was passed on.
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

    /// The stream is open again; what it would have told is lost (R20).
    pub fn hear_gap(&mut self, time: Time, config: &Config) {
        self.deaf = false;
        let rules = config.rules;
        match self.phase {
            Phase::Waiting if rules.keep(Guard::GapAsks) => self.wake = time,
            Phase::Held if !rules.keep(Guard::GapIsNoLoss) => self.lose(config),
            // An answer that is on its way may be too old.
            Phase::Held | Phase::Asking => self.doubts = rules.keep(Guard::GapAsks),
            _ => {}
        }
    }
}

fn anchor(answer: &Message) -> Anchor {
    Anchor { sent: answer.sent, now: answer.now, token: answer.token }
}

/// R1: the end of what is certain.
fn until(sent: Time, left: Time, time: Time, config: &Config) -> Time {
    let from = if config.rules.keep(Guard::SentInstant) { sent } else { time };
    (from + left).saturating_sub(config.margin())
}
