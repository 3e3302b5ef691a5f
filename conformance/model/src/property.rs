//! The properties of single states.

use crate::config::Config;
use crate::ids::{Id, Token};
use crate::modes::{Lease, Leases};
use crate::rules::Property;
use crate::state::{Client, Phase, Server, Stage, State};

impl Server {
    /// Whether the guard with this token was force-released, whose lease has this last one.
    #[must_use]
    pub fn is_forced(&self, token: Token, last: Token) -> bool {
        token <= self.forced || self.forced_alone.as_slice().contains(&last)
    }
}

impl State {
    /// Returns the property that this state violates, if any.
    #[must_use]
    pub fn violation(&self, config: &Config) -> Option<Property> {
        let leases = self.server.record.leases(self.now());
        if !self.certain_holders().are_compatible() || !leases.are_compatible() {
            return Some(Property::Exclusion);
        }
        if self.has_orphan(config) {
            return Some(Property::Orphan);
        }
        self.has_unheard_force(config).then_some(Property::Forced)
    }

    /// Returns the leases that processes are certain of, in the order of their tokens. The victim
    /// of a force-release stays certain until its event arrives, which is another clause. It does
    /// not count, unless a busy answer has given it a later token.
    fn certain_holders(&self) -> Leases {
        let counts = |client: &&Client| {
            !self.server.is_forced(client.token, client.last_token) || client.token <= client.busy_token
        };
        let mut leases = Leases::default();
        for client in self.clients.iter().filter(|client| client.is_certain(self.time)).filter(counts) {
            leases.push(Lease { mode: client.role.mode, token: client.token, ..Lease::default() });
        }
        leases.iter_mut().into_slice().sort_unstable_by_key(|lease| lease.token);
        leases
    }

    /// Whether the record has a lease or ticket of an acquisition that its living process has
    /// ended.
    fn has_orphan(&self, config: &Config) -> bool {
        let (record, now) = (&self.server.record, self.now());
        let leases = record.leases(now);
        let holders = leases.as_slice().iter().map(|lease| lease.id);
        let waiters = record.queue.as_slice().iter().filter(|ticket| ticket.refreshed + config.ticket_ttl > now);
        holders.chain(waiters.map(|ticket| ticket.id)).any(|id| self.is_orphan(id, config))
    }

    fn is_orphan(&self, id: Id, config: &Config) -> bool {
        let client = &self.clients[id.client()];
        let at_work = client.phase != Phase::Idle && self.id_of(id.client(), config) == id;
        let under_way = || {
            let messages = self.messages.as_slice().iter();
            messages.filter(|message| message.id == id).any(|message| message.stage != Stage::Answer)
        };
        !client.dead && !at_work && !self.abandoned.has(id) && !under_way()
    }

    /// Whether the victim of a force-release continues although all events have arrived.
    fn has_unheard_force(&self, config: &Config) -> bool {
        let clients = &self.clients[..usize::from(config.clients)];
        // An older program names no victim beside the marker (R25): it learns of its loss when it
        // renews. Events wait for the majority.
        !config.has_old()
            && self.unconfirmed.is_empty()
            && clients.iter().any(|client| {
                let has_more_to_hear = client.stream_ended || client.must_renew || !client.events.is_empty();
                let forced = self.server.is_forced(client.token, client.last_token);
                client.is_certain(self.time) && forced && !has_more_to_hear
            })
    }
}
