//! The server's operations: pure functions of the record, the operation's clocks and the rules (R3,
//! R5–R8, R12–R16, R25–R30).

use crate::config::Config;
use crate::ids::{CLIENTS, Id, Time, Token};
use crate::list::List;
use crate::modes::{Lease, Leases, Mode, Role, first_of};
use crate::rules::Guard;
use crate::state::{Answer, Event, EventKind, Record, Ticket};

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
    /// Events, each for the process of its id.
    pub events: List<Event, CLIENTS>,
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
        self.leases(now).of(id).is_some()
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
        first_of(self.token, self.tokens)
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
    pub(crate) fn number(&mut self, tokens: u8, clocks: Clocks, config: &Config) {
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
    pub fn acquire(&mut self, id: Id, role: Role, clocks: Clocks, config: &Config) -> Outcome {
        let Clocks { now, .. } = clocks;
        let rules = config.rules;
        let mine = rules.keep(Guard::AlreadyHeld)
            && self.holder == id
            && (self.expires > now || !rules.keep(Guard::HeldUnexpired));
        if mine {
            self.extend(now + config.ttl, config);
            return self.granted(id, now);
        }
        if rules.keep(Guard::AlreadyHeld) && self.renew_holder(id, None, now, config) {
            return self.granted(id, now);
        }
        let beside = self.beside_request(role.mode, now, config);
        if self.is_mine_to_take(id, role.mode, &beside, now, config) {
            let expired = Some(self.holder).filter(|holder| holder.is_some() && *holder != Id::SHARED);
            self.number(config.block_of(role), clocks, config);
            self.queue.retain(|ticket| ticket.id != id && Self::is_live(ticket, now, config));
            self.acquired = now;
            let until = now + config.ttl;
            if role.mode == Mode::Exclusive {
                self.give_to(id, until, role);
            } else {
                self.add_holder((id, role.mode), beside, until, config);
            }
            let mut outcome = self.granted(id, now);
            if let Some(id) = expired {
                outcome.events.push(Event { kind: EventKind::Gone, id, token: self.token, ..Event::default() });
            }
            return outcome;
        }
        self.queue.retain(|ticket| Self::is_live(ticket, now, config));
        match self.queue.iter_mut().find(|ticket| ticket.id == id) {
            Some(ticket) => ticket.refreshed = now,
            None => self.queue.push(Ticket::new(id, role, now, config)),
        }
        self.busy(id, role.mode, now, config)
    }

    /// Returns the holders beside which a request may be granted. An exclusive one reads only
    /// `lockId` and `expiresAt`.
    fn beside_request(&self, mode: Mode, now: Time, config: &Config) -> Leases {
        if mode == Mode::Exclusive { Leases::default() } else { self.beside(now, config) }
    }

    /// R8, R27.
    fn is_mine_to_take(&self, id: Id, mode: Mode, beside: &Leases, now: Time, config: &Config) -> bool {
        let rules = config.rules;
        let place = self.place(id, now, config);
        if beside.is_empty() {
            let turn = place == 0 || self.opened() + place * config.window <= now || !rules.keep(Guard::Turns);
            return self.is_free(now, config) && turn;
        }
        let first = place == 0 || !rules.keep(Guard::NoOvertaking);
        first && (beside.admit(mode) || !rules.keep(Guard::Fits))
    }

    /// Makes an acquisition the exclusive holder. An older process leaves the holders behind.
    pub(crate) fn give_to(&mut self, id: Id, expires: Time, by: Role) {
        self.exists = true;
        self.holder = id;
        self.expires = expires;
        self.closed = 0;
        if !by.old {
            self.holders = Leases::default();
        }
    }

    /// R24: the fast path of R8, in a batch. If it does not grant the lease, it does nothing. The
    /// process has chosen the first token.
    pub fn acquire_in_batch(
        &mut self,
        id: Id,
        role: Role,
        (bound, first): (Time, Token),
        clocks: Clocks,
        config: &Config,
    ) -> Outcome {
        let is_in_time = clocks.now < bound || !config.rules.keep(Guard::BatchBound);
        let is_greater = self.token < first || !config.rules.keep(Guard::BatchToken);
        if is_in_time && is_greater && !self.holder.is_some() && self.closed == 0 && self.queue.is_empty() {
            let mut outcome = self.acquire(id, role, clocks, config);
            self.token = first + Token::from(self.tokens) - 1;
            for holder in self.holders.iter_mut() {
                holder.token = self.token;
            }
            outcome.token = self.token;
            return outcome;
        }
        Outcome { answer: Answer::Gone, ..Outcome::default() }
    }

    /// The answer to an acquisition that holds the lease: with its own expiry (R26).
    fn granted(&self, id: Id, now: Time) -> Outcome {
        let own = if self.holder == id { None } else { self.holders.of(id) };
        let (token, tokens, expires) = match own {
            Some(Lease { token, tokens, expires, .. }) => (token, tokens, expires),
            None => (self.token, self.tokens, self.expires),
        };
        let left = expires.saturating_sub(now);
        Outcome { answer: Answer::Granted, token, tokens, left, ..Outcome::default() }
    }

    fn busy(&self, id: Id, mode: Mode, now: Time, config: &Config) -> Outcome {
        let beside = self.beside_request(mode, now, config);
        let expiries = beside.as_slice().iter().map(|holder| holder.expires);
        let held = match mode {
            // Only tickets are ahead.
            _ if !beside.is_empty() && beside.admit(mode) => 0,
            // Some permits may be enough.
            Mode::Permits { .. } if !beside.is_empty() => expiries.min().unwrap_or(0),
            _ if self.is_held(now) => self.expires,
            _ => 0,
        };
        let turn = held.max(self.closed).max(now) + self.place(id, now, config) * config.window;
        Outcome { answer: Answer::Busy, token: self.first_of_block(), left: turn - now, ..Outcome::default() }
    }

    /// R12 and R13: releases or leaves. `used` is the last token that a guard has had (R21), or 0.
    pub fn release(
        &mut self,
        id: Id,
        role: Role,
        (hold, used): (Time, Token),
        clocks: Clocks,
        config: &Config,
    ) -> Outcome {
        let Clocks { now, .. } = clocks;
        let rules = config.rules;
        let held = if rules.keep(Guard::ReleaseById) { self.holder == id } else { self.holder.is_some() };
        let in_time = self.expires > now;
        // Also releases an expired lease, because a stalled extension could still revive it.
        let held = held && (in_time || rules.keep(Guard::ReleaseExpired));
        let own = if role.old { None } else { self.counted(config).of(id) };
        let waits = self.queue.as_slice().iter().any(|ticket| ticket.id == id);
        if held || own.is_some() || waits {
            let leaves = rules.keep(Guard::LeaveQueue);
            self.queue.retain(|ticket| Self::is_live(ticket, now, config) && (ticket.id != id || !leaves));
        }
        if let Some(own) = own {
            return self.release_holder(own, used, clocks, config);
        }
        if !held {
            let repeated = rules.keep(Guard::Released) && self.released.has(id);
            let answer = if repeated { Answer::Released } else { Answer::Gone };
            let beside = self.beside(now, config);
            let makes_room = waits && !beside.is_empty() && !role.old;
            let events = if makes_room { self.grant_run(beside, clocks, config) } else { List::default() };
            return Outcome { answer, events, ..Outcome::default() };
        }
        let answer = if in_time { Answer::Released } else { Answer::Gone };
        let released = Outcome { answer, ..Outcome::default() };
        if in_time {
            self.released.add(id);
            self.give_back(self.first_of_block(), used, config);
        }
        let until = if hold > 0 { self.acquired + hold } else { 0 };
        let closes = until > now;
        if !self.queue.is_empty() && (!closes || !rules.keep(Guard::Closed)) {
            let events = if role.old {
                self.grant_head(clocks, config)
            } else {
                self.grant_run(Leases::default(), clocks, config)
            };
            return Outcome { events, ..released };
        }
        let left_behind = self.holders;
        self.open(if closes { until } else { 0 }, now, config);
        if role.old {
            self.holders = left_behind;
        }
        Outcome { freed: closes, ..released }
    }

    /// R21: returns the unused tokens of the latest block.
    pub(crate) fn give_back(&mut self, first: Token, used: Token, config: &Config) {
        // The first token always counts as used, because busy answers contain it (R18).
        let used = if config.rules.keep(Guard::LastUsed) { used } else { 0 };
        (self.token, self.tokens) = (used.max(first), 1);
    }

    /// Makes the key free, from `closed` on.
    pub(crate) fn open(&mut self, closed: Time, now: Time, config: &Config) {
        self.end_holders(now.max(closed));
        self.closed = closed;
        if config.rules.keep(Guard::TokenTime) {
            let reached = self.token / Token::from(config.tokens_per_tick);
            self.expires = self.expires.max(Time::try_from(reached).unwrap_or(Time::MAX));
        }
    }

    /// R12 in an older process: grants the key to the first ticket, whatever its mode.
    fn grant_head(&mut self, clocks: Clocks, config: &Config) -> List<Event, CLIENTS> {
        let head = self.queue.remove(0);
        self.number(head.tokens, clocks, config);
        self.acquired = clocks.now;
        let expires = clocks.now + head.claim;
        self.give_to(head.id, expires, Role::OLD);
        let mut events = List::default();
        events.push(self.grant_event(head.id, expires));
        events
    }

    pub(crate) fn grant_event(&self, id: Id, expires: Time) -> Event {
        let Self { token, tokens, .. } = *self;
        Event { kind: EventKind::Granted, id, token, tokens, expires, ..Event::default() }
    }

    /// R14, R29.
    pub fn renew(&mut self, id: Id, token: Token, now: Time, config: &Config) -> Outcome {
        let rules = config.rules;
        let renewed = Outcome { answer: Answer::Granted, token, left: config.ttl, ..Outcome::default() };
        if self.renew_holder(id, Some(token), now, config) {
            return renewed;
        }
        let same = self.holder == id && (self.token == token || !rules.keep(Guard::RenewToken));
        let matches = same || (self.holder.is_some() && !rules.keep(Guard::RenewById));
        if !matches || (self.expires <= now && rules.keep(Guard::RenewUnexpired)) {
            return Outcome { answer: Answer::Gone, token, ..Outcome::default() };
        }
        self.extend(now + config.ttl, config);
        renewed
    }

    /// R15.
    pub fn refresh(&mut self, id: Id, role: Role, now: Time, config: &Config) -> Outcome {
        if let Some(ticket) = self.queue.iter_mut().find(|ticket| ticket.id == id) {
            ticket.refreshed = now;
        } else if self.is_held_by(id, now) {
            return self.granted(id, now);
        } else if config.rules.keep(Guard::RefreshOnly) {
            return Outcome { answer: Answer::Gone, ..Outcome::default() };
        } else {
            self.exists = true;
            self.queue.push(Ticket::new(id, role, now, config));
        }
        self.busy(id, role.mode, now, config)
    }

    /// R16; `None` if the lease is not held. An older program leaves the holders behind, and names
    /// none of them.
    pub fn force(&mut self, now: Time, by: Role, config: &Config) -> Option<Outcome> {
        if !self.is_held(now) {
            return None;
        }
        let victims = self.leases(now);
        self.revoked = std::mem::take(&mut self.holder);
        self.token += 1;
        self.tokens = 1;
        self.expires = now;
        if !by.old {
            self.holders = Leases::default();
        }
        let mut outcome = Outcome { freed: true, ..Outcome::default() };
        let named = config.rules.keep(Guard::Revoked) && (!by.old || self.revoked != Id::SHARED);
        for victim in victims.as_slice().iter().filter(|_| named) {
            let gone = Event { kind: EventKind::Gone, id: victim.id, token: self.token, ..Event::default() };
            outcome.events.push(gone);
        }
        Some(outcome)
    }

    /// R6: whether the TTL monitor may remove the record.
    #[must_use]
    pub fn is_old(&self, now: Time, config: &Config) -> bool {
        let grace = if config.rules.keep(Guard::PurgeGrace) { config.grace } else { 0 };
        self.exists && self.expires + grace <= now
    }
}
