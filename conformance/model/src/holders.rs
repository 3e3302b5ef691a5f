//! The holders of a record whose key has several (R25–R30).

use crate::config::Config;
use crate::ids::{CLIENTS, Id, Time, Token};
use crate::list::List;
use crate::modes::{Lease, Leases, Mode, Role};
use crate::rules::Guard;
use crate::server::{Clocks, Outcome};
use crate::state::{Answer, Event, EventKind, Record};

impl Record {
    /// Returns the live leases: the exclusive one, or those of all holders.
    #[must_use]
    pub fn leases(&self, now: Time) -> Leases {
        let mut leases = Leases::default();
        if self.holder == Id::SHARED {
            leases = self.holders;
            leases.retain(|holder| holder.expires > now);
        } else if self.is_held(now) {
            let Self { holder: id, token, tokens, expires, .. } = *self;
            leases.push(Lease { id, mode: Mode::Exclusive, token, tokens, expires });
        }
        leases
    }

    /// R25: returns the holders, which count only beside the marker.
    pub(crate) fn counted(&self, config: &Config) -> Leases {
        let rules = config.rules;
        let count = self.holder == Id::SHARED || !rules.keep(Guard::Leftover) || !rules.keep(Guard::SharedMarker);
        if count { self.holders } else { Leases::default() }
    }

    /// R25: returns those of them that are live.
    pub(crate) fn beside(&self, now: Time, config: &Config) -> Leases {
        let mut live = self.counted(config);
        live.retain(|holder| holder.expires > now);
        live
    }

    /// R25, R26: stores the holders, of which `latest` is the one that this operation has changed.
    fn store_holders(&mut self, holders: Leases, latest: Time, config: &Config) {
        let rules = config.rules;
        self.holder = if rules.keep(Guard::SharedMarker) { Id::SHARED } else { Id::NONE };
        self.holders = holders;
        let all = holders.as_slice().iter().map(|holder| holder.expires);
        self.expires = if rules.keep(Guard::LatestExpiry) { all.max().unwrap_or(latest) } else { latest };
    }

    /// Adds a holder. The record's token is the last one of its block.
    pub(crate) fn add_holder(&mut self, (id, mode): (Id, Mode), mut beside: Leases, expires: Time, config: &Config) {
        let Self { token, tokens, .. } = *self;
        beside.push(Lease { id, mode, token, tokens, expires });
        self.exists = true;
        self.closed = 0;
        self.store_holders(beside, expires, config);
    }

    /// R29: extends the lease of one of several holders, and leaves dead ones as they are. Returns
    /// whether it was there. Without a token it is the holder's own attempt (R8).
    pub(crate) fn renew_holder(&mut self, id: Id, token: Option<Token>, now: Time, config: &Config) -> bool {
        let rules = config.rules;
        let token = token.filter(|_| rules.keep(Guard::HolderToken));
        let matches = |holder: &Lease| holder.id == id && token.is_none_or(|token| holder.token == token);
        if !self.beside(now, config).as_slice().iter().any(matches) {
            return false;
        }
        let until = now + config.ttl;
        let mut holders = self.holders;
        for holder in holders.iter_mut().filter(|holder| holder.expires > now) {
            if matches(holder) || !rules.keep(Guard::HolderOnly) {
                holder.expires = holder.expires.max(until);
            }
        }
        self.store_holders(holders, until, config);
        true
    }

    /// R12: releases the lease of one of several holders.
    pub(crate) fn release_holder(&mut self, own: Lease, used: Token, clocks: Clocks, config: &Config) -> Outcome {
        let now = clocks.now;
        let in_time = own.expires > now;
        if in_time {
            self.released.add(own.id);
            if self.token == own.token || !config.rules.keep(Guard::LatestBlock) {
                self.give_back(own.first(), used, config);
            }
        }
        let mut rest = self.beside(now, config);
        rest.retain(|holder| holder.id != own.id);
        if rest.is_empty() {
            self.open(0, now, config);
        } else {
            self.store_holders(rest, now, config);
        }
        let events = self.grant_run(rest, clocks, config);
        let answer = if in_time { Answer::Released } else { Answer::Gone };
        Outcome { answer, events, ..Outcome::default() }
    }

    /// R28: grants the key to all tickets at the head that fit together, beside those that hold it.
    /// The queue has only live tickets.
    pub(crate) fn grant_run(&mut self, mut beside: Leases, clocks: Clocks, config: &Config) -> List<Event, CLIENTS> {
        let rules = config.rules;
        let mut events = List::default();
        while let Some(head) = self.queue.as_slice().first().copied() {
            if !beside.admit(head.mode) && rules.keep(Guard::RunFits) {
                break;
            }
            self.queue.remove(0);
            self.number(head.tokens, clocks, config);
            self.acquired = clocks.now;
            let expires = clocks.now + head.claim;
            if head.mode == Mode::Exclusive && beside.is_empty() {
                self.give_to(head.id, expires, Role::EXCLUSIVE);
            } else {
                self.add_holder((head.id, head.mode), beside, expires, config);
                beside = self.holders;
            }
            // What the record says is the latest expiry of all.
            let told = if rules.keep(Guard::ToldExpiry) { expires } else { self.expires };
            events.push(self.grant_event(head.id, told));
            if head.mode == Mode::Exclusive || !rules.keep(Guard::WholeRun) {
                break;
            }
        }
        events
    }

    /// R16: ends the lease of one of several holders by force.
    pub(crate) fn force_holder(&mut self, id: Id, now: Time, config: &Config) -> Outcome {
        let mut holders = self.leases(now);
        holders.retain(|holder| holder.id != id);
        self.token += 1;
        self.tokens = 1;
        if holders.is_empty() {
            self.end_holders(now);
        } else {
            self.store_holders(holders, now, config);
        }
        let mut outcome = Outcome { freed: true, ..Outcome::default() };
        if config.rules.keep(Guard::Revoked) {
            outcome.events.push(Event { kind: EventKind::Gone, id, token: self.token, ..Event::default() });
        }
        outcome
    }

    /// Makes the record one without a holder.
    pub(crate) fn end_holders(&mut self, expires: Time) {
        self.holder = Id::NONE;
        self.holders = Leases::default();
        self.expires = expires;
    }
}
