//! Liveness: a continuation without faults. All messages arrive, every process does what is due,
//! holders release at once, and time passes only when there is nothing else to do. Then every
//! waiter must be granted the key.

use crate::action::Action;
use crate::config::Config;
use crate::ids::{CLIENTS, Time};
use crate::rules::Property;
use crate::state::{Phase, Stage, State};

/// A waiter refreshes its ticket after this fraction of its life.
const CADENCE: (Time, Time) = (2, 3);

/// More steps than a tick without faults has.
const MOST_STEPS: u32 = 100;

impl Config {
    /// Returns the number of ticks without faults within which every waiter is granted the key: a
    /// holder's ttl, and for each process a dead head's claim and the windows.
    #[must_use]
    pub const fn patience(&self) -> Time {
        self.ttl + self.hold + self.clients * (self.claim + self.window) + self.ticket_ttl
    }
}

impl State {
    /// Returns the property that is violated without further faults; with `wanted`, only that one.
    /// Calls `seen` with each step.
    pub fn calm(
        &self,
        config: &Config,
        wanted: Option<Property>,
        mut seen: impl FnMut(&Self, Action, &Self),
    ) -> Option<Property> {
        let mut waits = self.waits();
        if waits == [false; CLIENTS] {
            return None;
        }
        // When the lease expires that a waiter was granted, and has not received the event of yet.
        let leases = self.server.record.leases(self.now());
        let mut unheard: [Option<Time>; CLIENTS] = std::array::from_fn(|at| {
            leases.of(self.id_of(at, config)).filter(|_| waits[at]).map(|lease| lease.expires)
        });
        let mut state = *self;
        // No acquisition is added, and nothing is rolled back.
        let end = self.time + config.patience();
        let (mut steps, mut since) = (0, state.time);
        while state.time < end {
            // A process that sends attempts for ever within one tick waits for ever.
            steps = if state.time > since { 0 } else { steps + 1 };
            since = state.time;
            if steps > MOST_STEPS {
                return Some(Property::LostWaiter);
            }
            let action = state.calm_step(&waits, config);
            let (next, found) = state.after(action, config);
            seen(&state, action, &next);
            let found = found.or_else(|| next.violation(config));
            if found.is_some_and(|found| wanted.is_none_or(|wanted| wanted == found)) {
                return found;
            }
            for (at, wait) in waits.iter_mut().enumerate() {
                if next.clients[at].is_certain(next.time) {
                    *wait = false;
                    unheard[at] = None;
                }
                // A process that received the event too late has released the lease, and starts
                // again.
                unheard[at] = unheard[at].filter(|_| next.clients[at].wants());
            }
            if unheard.into_iter().flatten().any(|expires| next.now() >= expires) {
                return Some(Property::LostGrant);
            }
            if waits == [false; CLIENTS] {
                return None;
            }
            state = next;
        }
        Some(Property::LostWaiter)
    }

    fn waits(&self) -> [bool; CLIENTS] {
        std::array::from_fn(|at| self.clients[at].wants())
    }

    /// Returns the first calm step, if a process waits.
    pub(crate) fn first_calm_step(&self, config: &Config) -> Option<Action> {
        let waits = self.waits();
        (waits != [false; CLIENTS]).then(|| self.calm_step(&waits, config))
    }

    /// Whether the check of the state after the first calm step, which is also explored, covers
    /// this one: every waiter still waits, or has been granted the key.
    pub(crate) fn is_covered_by(&self, next: &Self) -> bool {
        let (waits, still) = (self.waits(), next.waits());
        (0..CLIENTS).all(|at| !waits[at] || still[at] || next.clients[at].is_certain(next.time))
    }

    /// Returns the next step without faults.
    fn calm_step(&self, waits: &[bool; CLIENTS], config: &Config) -> Action {
        let messages = self.messages.as_slice();
        if let Some(at) = messages.iter().position(|message| message.stage == Stage::Stalled) {
            return Action::Execute(at as u8);
        }
        if self.tracks_majority() && self.server != self.majority {
            return Action::Replicate;
        }
        for (at, message) in messages.iter().enumerate() {
            match message.stage {
                Stage::Answer => return Action::DeliverAnswer(at as u8),
                Stage::Sent if self.reaches_primary(message) => return Action::Execute(at as u8),
                Stage::Sent | Stage::Stalled | Stage::Pending => {}
            }
        }
        let clients = (0..config.clients).filter(|at| !self.clients[usize::from(*at)].dead);
        clients.clone().find_map(|at| self.due(at, waits[usize::from(at)], config)).unwrap_or(Action::Tick)
    }

    fn due(&self, at: u8, waits: bool, config: &Config) -> Option<Action> {
        let client = &self.clients[usize::from(at)];
        if client.stream_ended {
            return Some(Action::ReopenStream(at));
        }
        if !client.events.is_empty() {
            return Some(Action::ReceiveEvent(at));
        }
        if client.call != 0 && !self.is_under_way(usize::from(at)) {
            return Some(Action::Timeout(at));
        }
        match client.phase {
            Phase::Idle if waits && self.may_begin_again(usize::from(at)) => Some(Action::Begin(at)),
            Phase::Attempting if client.call == 0 => Some(Action::Attempt(at)),
            Phase::Waiting if client.wake <= self.time => Some(Action::Attempt(at)),
            Phase::Waiting if client.refreshed + config.ticket_ttl * CADENCE.0 / CADENCE.1 <= self.time => {
                Some(Action::Refresh(at))
            }
            Phase::Held if self.time >= client.deadline => Some(Action::NoticeLoss(at)),
            Phase::Held if client.others > 0 => Some(Action::Part(at)),
            Phase::Held => Some(Action::Release(at)),
            Phase::Leaving if self.may_withdraw(usize::from(at)) => Some(Action::Withdraw(at)),
            _ => None,
        }
    }
}
