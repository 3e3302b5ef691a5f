//! The properties of single states.

use crate::config::Config;
use crate::rules::Property;
use crate::state::{Client, Id, Phase, Stage, State};

impl State {
    /// Returns the property that this state violates, if any.
    #[must_use]
    pub fn violation(&self, config: &Config) -> Option<Property> {
        if self.certain_holders() > 1 {
            return Some(Property::Exclusion);
        }
        if self.has_orphan(config) {
            return Some(Property::Orphan);
        }
        self.has_unheard_force(config).then_some(Property::Forced)
    }

    /// Counts the processes that are certain of the key. The victim of a force-release stays
    /// certain until its event arrives, which is another clause. It does not count, unless a busy
    /// answer has given it a later token.
    fn certain_holders(&self) -> usize {
        let counts = |client: &&Client| client.token > self.server.forced || client.token <= client.busy_token;
        self.clients.iter().filter(|client| client.is_certain(self.time)).filter(counts).count()
    }

    /// Whether the record has a lease or ticket of an acquisition that its living process has
    /// ended.
    fn has_orphan(&self, config: &Config) -> bool {
        let (record, now) = (&self.server.record, self.now());
        let holder = Some(record.holder).filter(|_| record.is_held(now));
        let waiters = record.queue.as_slice().iter().filter(|ticket| ticket.refreshed + config.ticket_ttl > now);
        holder.into_iter().chain(waiters.map(|ticket| ticket.id)).any(|id| self.is_orphan(id, config))
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
        // Events wait for the majority.
        self.unconfirmed.is_empty()
            && clients.iter().any(|client| {
                let has_more_to_hear = client.stream_ended || client.must_renew || !client.events.is_empty();
                client.is_certain(self.time) && client.token <= self.server.forced && !has_more_to_hear
            })
    }
}
