//! The server's operations: pure functions of the record, the operation's clocks and the rules (R3,
//! R5–R8, R12–R16).

use crate::config::Config;
use crate::rules::Guard;
use crate::state::{Answer, Event, EventKind, Id, Record, Ticket, Time, Token};

/// The readings of `$$NOW` and `$$CLUSTER_TIME` at the beginning of an operation (R2).
#[derive(Clone, Copy, Debug)]
pub struct Clocks {
    /// The wall clock.
    pub now: Time,
    /// The logical clock, in units of tokens.
    pub logical: Token,
}

/// The answer and the events of an operation.
#[derive(Clone, Copy, Debug, Default)]
pub struct Outcome {
    /// The answer.
    pub answer: Answer,
    /// The token of the answer.
    pub token: Token,
    /// The length of the block in the answer.
    pub tokens: u8,
    /// The ticks in the answer.
    pub left: Time,
    /// An event for the process of its id.
    pub event: Option<Event>,
    /// Whether all waiters get the event that the key may be free.
    pub freed: bool,
}

impl Record {
    /// Whether a ticket is live.
    #[must_use]
    pub fn is_live(ticket: &Ticket, now: Time, config: &Config) -> bool {
        ticket.refreshed + config.ticket_ttl > now
    }

    /// Whether the lease is held.
    #[must_use]
    pub fn is_held(&self, now: Time) -> bool {
        self.holder.is_some() && self.expires > now
    }

    /// Whether this acquisition holds the lease.
    #[must_use]
    pub fn is_held_by(&self, id: Id, now: Time) -> bool {
        self.holder == id && self.expires > now
    }

    /// Returns the number of live tickets before that of `id`, or of all if it has none.
    #[must_use]
    pub fn place(&self, id: Id, now: Time, config: &Config) -> u8 {
        let live = self.queue.as_slice().iter().filter(|ticket| Self::is_live(ticket, now, config));
        live.take_while(|ticket| ticket.id != id).count() as u8
    }

    /// Whether the acquisition has a live ticket.
    #[must_use]
    pub fn waits(&self, id: Id, now: Time, config: &Config) -> bool {
        self.queue.as_slice().iter().any(|ticket| ticket.id == id && Self::is_live(ticket, now, config))
    }

    /// Returns the first token of the present block, or the last one used of a released lease.
    #[must_use]
    pub fn first_of_block(&self) -> Token {
        self.token + 1 - Token::from(self.tokens.max(1)).min(self.token + 1)
    }

    /// Returns when a free lease became free.
    #[must_use]
    pub fn opened(&self) -> Time {
        self.expires.max(self.closed)
    }

    /// R7.
    fn is_free(&self, now: Time, config: &Config) -> bool {
        let rules = config.rules;
        let absent = rules.keep(Guard::FreeIfAbsent) && !self.holder.is_some();
        let expired = rules.keep(Guard::FreeIfExpired) && self.expires <= now;
        (absent || expired) && (!rules.keep(Guard::Closed) || self.closed <= now)
    }

    /// R5: grants the next block.
    fn number(&mut self, tokens: u8, clocks: Clocks, config: &Config) {
        let next = if config.rules.keep(Guard::TokenStrict) { self.token + 1 } else { 1 };
        let logical = if config.rules.keep(Guard::TokenClock) { clocks.logical } else { 1 };
        self.token = next.max(logical) + Token::from(tokens) - 1;
        self.tokens = tokens;
    }

    /// R3.
    fn extend(&mut self, until: Time, config: &Config) {
        self.expires = if config.rules.keep(Guard::ExtendMax) { self.expires.max(until) } else { until };
    }

    /// R8, for a caller that waits.
    pub fn acquire(&mut self, id: Id, clocks: Clocks, config: &Config) -> Outcome {
        let Clocks { now, .. } = clocks;
        let rules = config.rules;
        let mine = rules.keep(Guard::AlreadyHeld)
            && self.holder == id
            && (self.expires > now || !rules.keep(Guard::HeldUnexpired));
        if mine {
            self.extend(now + config.ttl, config);
            return self.granted(now);
        }
        let place = self.place(id, now, config);
        let turn = place == 0 || self.opened() + place * config.window <= now || !rules.keep(Guard::Turns);
        if self.is_free(now, config) && turn {
            let expired = Some(self.holder).filter(|holder| holder.is_some());
            self.number(config.block, clocks, config);
            self.exists = true;
            self.holder = id;
            self.acquired = now;
            self.expires = now + config.ttl;
            self.closed = 0;
            self.queue.retain(|ticket| ticket.id != id && Self::is_live(ticket, now, config));
            let event = expired.map(|id| Event { kind: EventKind::Gone, id, token: self.token, ..Event::default() });
            return Outcome { event, ..self.granted(now) };
        }
        self.queue.retain(|ticket| Self::is_live(ticket, now, config));
        match self.queue.iter_mut().find(|ticket| ticket.id == id) {
            Some(ticket) => ticket.refreshed = now,
            None => self.queue.push(Ticket { id, refreshed: now, claim: config.claim, tokens: config.block }),
        }
        self.busy(id, now, config)
    }

    /// R24: the short way of R8, in a batch. If it does not grant the lease, it does nothing.
    pub fn acquire_in_batch(&mut self, id: Id, bound: Time, clocks: Clocks, config: &Config) -> Outcome {
        let is_in_time = clocks.now < bound || !config.rules.keep(Guard::BatchBound);
        if is_in_time && !self.holder.is_some() && self.closed == 0 && self.queue.is_empty() {
            return self.acquire(id, clocks, config);
        }
        Outcome { answer: Answer::Gone, ..Outcome::default() }
    }

    fn granted(&self, now: Time) -> Outcome {
        let left = self.expires.saturating_sub(now);
        Outcome { answer: Answer::Granted, token: self.token, tokens: self.tokens, left, ..Outcome::default() }
    }

    fn busy(&self, id: Id, now: Time, config: &Config) -> Outcome {
        let held = if self.is_held(now) { self.expires } else { 0 };
        let turn = held.max(self.closed).max(now) + self.place(id, now, config) * config.window;
        Outcome { answer: Answer::Busy, token: self.first_of_block(), left: turn - now, ..Outcome::default() }
    }

    /// R12 and R13: releases or leaves. `used` is the last token that a guard has had (R21), or 0.
    pub fn release(&mut self, id: Id, hold: Time, used: Token, clocks: Clocks, config: &Config) -> Outcome {
        let Clocks { now, .. } = clocks;
        let rules = config.rules;
        let held = if rules.keep(Guard::ReleaseById) { self.holder == id } else { self.holder.is_some() };
        let in_time = self.expires > now;
        // Also releases an expired lease, because a stalled extension could still revive it.
        let held = held && (in_time || rules.keep(Guard::ReleaseExpired));
        if held || self.queue.as_slice().iter().any(|ticket| ticket.id == id) {
            let leaves = rules.keep(Guard::LeaveQueue);
            self.queue.retain(|ticket| Self::is_live(ticket, now, config) && (ticket.id != id || !leaves));
        }
        if !held {
            let repeated = rules.keep(Guard::Released) && self.released.has(id);
            let answer = if repeated { Answer::Released } else { Answer::Gone };
            return Outcome { answer, ..Outcome::default() };
        }
        let answer = if in_time { Answer::Released } else { Answer::Gone };
        let released = Outcome { answer, ..Outcome::default() };
        if in_time {
            self.released.add(id);
            // The first token always counts as used, because busy answers contain it (R18).
            let used = if rules.keep(Guard::LastUsed) { used } else { 0 };
            (self.token, self.tokens) = (used.max(self.first_of_block()), 1);
        }
        let until = if hold > 0 { self.acquired + hold } else { 0 };
        let closes = until > now;
        if !self.queue.is_empty() && (!closes || !rules.keep(Guard::Closed)) {
            let head = self.queue.remove(0);
            self.number(head.tokens, clocks, config);
            self.holder = head.id;
            self.acquired = now;
            self.expires = now + head.claim;
            self.closed = 0;
            let (id, token, tokens, expires) = (head.id, self.token, self.tokens, self.expires);
            let event = Event { kind: EventKind::Granted, id, token, tokens, expires, ..Event::default() };
            return Outcome { event: Some(event), ..released };
        }
        self.holder = Id::NONE;
        self.closed = if closes { until } else { 0 };
        self.expires = now.max(self.closed);
        if rules.keep(Guard::TokenTime) {
            let reached = self.token / Token::from(config.tokens_per_tick);
            self.expires = self.expires.max(Time::try_from(reached).unwrap_or(Time::MAX));
        }
        Outcome { freed: closes, ..released }
    }

    /// R14.
    pub fn renew(&mut self, id: Id, token: Token, now: Time, config: &Config) -> Outcome {
        let rules = config.rules;
        let same = self.holder == id && (self.token == token || !rules.keep(Guard::RenewToken));
        let matches = same || (self.holder.is_some() && !rules.keep(Guard::RenewById));
        if !matches || (self.expires <= now && rules.keep(Guard::RenewUnexpired)) {
            return Outcome { answer: Answer::Gone, token, ..Outcome::default() };
        }
        self.extend(now + config.ttl, config);
        Outcome { answer: Answer::Granted, token, left: config.ttl, ..Outcome::default() }
    }

    /// R15.
    pub fn refresh(&mut self, id: Id, now: Time, config: &Config) -> Outcome {
        if let Some(ticket) = self.queue.iter_mut().find(|ticket| ticket.id == id) {
            ticket.refreshed = now;
        } else if self.is_held_by(id, now) {
            return self.granted(now);
        } else if config.rules.keep(Guard::RefreshOnly) {
            return Outcome { answer: Answer::Gone, ..Outcome::default() };
        } else {
            self.exists = true;
            self.queue.push(Ticket { id, refreshed: now, claim: config.claim, tokens: config.block });
        }
        self.busy(id, now, config)
    }

    /// R16; `None` if the lease is not held.
    pub fn force(&mut self, now: Time, config: &Config) -> Option<Outcome> {
        if !self.is_held(now) {
            return None;
        }
        self.revoked = std::mem::take(&mut self.holder);
        self.token += 1;
        self.tokens = 1;
        self.expires = now;
        let event = Event { kind: EventKind::Gone, id: self.revoked, token: self.token, ..Event::default() };
        let event = config.rules.keep(Guard::Revoked).then_some(event);
        Some(Outcome { event, freed: true, ..Outcome::default() })
    }

    /// R6: whether the TTL monitor may remove the record.
    #[must_use]
    pub fn is_old(&self, now: Time, config: &Config) -> bool {
        let grace = if config.rules.keep(Guard::PurgeGrace) { config.grace } else { 0 };
        self.exists && self.expires + grace <= now
    }
}
