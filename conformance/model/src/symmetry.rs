//! Interchangeable processes: states that differ only by their names are one state.

use crate::ids::{CLIENTS, Id, Ids};
use crate::state::State;

impl Id {
    fn renamed(self, names: &[u8; CLIENTS]) -> Self {
        if self.is_some() && self != Self::SHARED {
            Self::new(usize::from(names[self.client()]), self.number())
        } else {
            self
        }
    }
}

impl Ids {
    fn renamed(self, names: &[u8; CLIENTS]) -> Self {
        let mask = (1 << Self::PER_CLIENT) - 1;
        let part = |(old, new): (usize, &u8)| {
            ((self.0 >> (old as u32 * Self::PER_CLIENT)) & mask) << (u32::from(*new) * Self::PER_CLIENT)
        };
        Self(names.iter().enumerate().map(part).sum())
    }
}

impl State {
    /// Returns the state with its processes in an order that does not depend on their names.
    #[must_use]
    pub(crate) fn canonical(&self, clients: u8) -> Self {
        let mut order: [u8; CLIENTS] = [0, 1, 2];
        let used = &mut order[..usize::from(clients)];
        used.sort_by_key(|at| self.clients[usize::from(*at)]);
        let mut names = [0; CLIENTS];
        for (name, old) in (0_u8..).zip(order) {
            names[usize::from(old)] = name;
        }
        if names == [0, 1, 2] { *self } else { self.renamed(&names) }
    }

    /// Returns the state with other names for the processes.
    fn renamed(&self, names: &[u8; CLIENTS]) -> Self {
        let mut new = *self;
        for (old, name) in names.iter().enumerate() {
            let client = &mut new.clients[usize::from(*name)];
            *client = self.clients[old];
            for event in client.events.iter_mut() {
                event.id = event.id.renamed(names);
            }
            if let Some(kept) = &mut client.early_event {
                kept.id = kept.id.renamed(names);
            }
        }
        for server in
            [&mut new.server, &mut new.majority].into_iter().chain(new.stale.as_mut().map(|stale| &mut stale.0))
        {
            let old = *server;
            for (at, name) in names.iter().enumerate() {
                server.sessions[usize::from(*name)] = old.sessions[at];
            }
            let record = &mut server.record;
            record.holder = record.holder.renamed(names);
            record.revoked = record.revoked.renamed(names);
            for holder in record.holders.iter_mut() {
                holder.id = holder.id.renamed(names);
            }
            record.released = record.released.renamed(names);
            for ticket in record.queue.iter_mut() {
                ticket.id = ticket.id.renamed(names);
            }
        }
        for (client, event) in new.unconfirmed.iter_mut() {
            *client = names[usize::from(*client)];
            event.id = event.id.renamed(names);
        }
        for message in new.messages.iter_mut() {
            message.id = message.id.renamed(names);
        }
        new.messages.sort();
        new.abandoned = new.abandoned.renamed(names);
        new
    }
}
