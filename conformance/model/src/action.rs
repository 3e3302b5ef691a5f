//! What can happen next.

use crate::config::Config;
use crate::rules::Guard;
use crate::state::{Id, Message, Op, Phase, SESSIONS, Stage, State};

/// One step. Clients are named by their index, messages by their place in the state's list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Time passes.
    Tick,
    /// A process begins an acquisition.
    Begin(u8),
    /// It asks again.
    Ask(u8),
    /// It refreshes its ticket.
    Refresh(u8),
    /// It renews its lease.
    Renew(u8),
    /// It releases its lease.
    Release(u8),
    /// It hands its lease on to its next task.
    HandOn(u8),
    /// A waiter leaves.
    Cancel(u8),
    /// What is given up is withdrawn.
    Withdraw(u8),
    /// It sees that its deadline has passed.
    NoticeLoss(u8),
    /// It does not wait for the answer any longer.
    Timeout(u8),
    /// It dies.
    Crash(u8),
    /// It hears the next event.
    Hear(u8),
    /// Its stream ends without a word.
    Break(u8),
    /// It opens the stream again.
    Reopen(u8),
    /// The primary carries an operation out.
    Carry(u8),
    /// The primary begins an operation, which stalls.
    Stall(u8),
    /// A primary that is none any more carries an operation out.
    CarryStale(u8),
    /// A message gets lost.
    Drop(u8),
    /// The driver sends a request again, under its number.
    Repeat(u8),
    /// An answer arrives.
    Deliver(u8),
    /// A majority has everything.
    Replicate,
    /// Another member with what the majority has becomes primary; its clock differs by so much, plus the greatest skew.
    Failover(u8),
    /// The holder's lease is taken away.
    Force,
    /// The TTL monitor removes the record.
    Purge,
}

impl State {
    /// The id of a process's acquisition.
    #[must_use]
    pub fn id_of(&self, client: usize, config: &Config) -> Id {
        self.id(client, config.rules.keep(Guard::FreshId))
    }

    /// Whether something of the call that a process waits for is under way.
    #[must_use]
    pub fn is_under_way(&self, client: usize) -> bool {
        self.messages.as_slice().iter().any(|message| self.is_awaited(client, message))
    }

    /// Whether a numbered message belongs to the call that a process waits for.
    #[must_use]
    pub fn is_awaited(&self, client: usize, message: &Message) -> bool {
        let it = &self.clients[client];
        matches!(message.op, Op::Acquire | Op::Release)
            && message.id.client() == client
            && (message.session, message.number) == (it.number, it.call)
    }

    /// Whether an earlier operation of the session keeps it while it stalls.
    fn waits_for_session(&self, message: &Message) -> bool {
        matches!(message.op, Op::Acquire | Op::Release)
            && self.messages.as_slice().iter().any(|other| {
                other.stage == Stage::Stalled
                    && matches!(other.op, Op::Acquire | Op::Release)
                    && (other.id.client(), other.session) == (message.id.client(), message.session)
            })
    }

    /// All steps that are possible, faults among them as far as there are any left.
    pub fn actions(&self, config: &Config, into: &mut Vec<Action>) {
        into.clear();
        let faults = &self.faults;
        for client in 0..config.clients {
            self.actions_of(usize::from(client), config, into);
        }
        let messages = self.messages.as_slice();
        for (at, message) in messages.iter().enumerate() {
            if at > 0 && messages[at - 1] == *message {
                continue;
            }
            let number = at as u8;
            match message.stage {
                Stage::Sent => {
                    // What was sent to another primary goes to the new one only as the driver's second try.
                    let is_tried_again = || self.is_awaited(message.id.client(), message);
                    if !self.waits_for_session(message) && (!message.to_stale || is_tried_again()) {
                        into.push(Action::Carry(number));
                        if faults.stalls > 0 {
                            into.push(Action::Stall(number));
                        }
                    }
                    if message.to_stale && self.stale.is_some() {
                        into.push(Action::CarryStale(number));
                    }
                    if faults.drops > 0 {
                        into.push(Action::Drop(number));
                    }
                    let numbered = matches!(message.op, Op::Acquire | Op::Release);
                    if faults.repeats > 0 && numbered && self.messages.len() < usize::from(config.messages) {
                        into.push(Action::Repeat(number));
                    }
                }
                Stage::Stalled => into.push(Action::Carry(number)),
                Stage::Pending => {}
                Stage::Answer => {
                    into.push(Action::Deliver(number));
                    if faults.drops > 0 {
                        into.push(Action::Drop(number));
                    }
                }
            }
        }
        if self.tracks_majority() && self.server != self.majority {
            into.push(Action::Replicate);
        }
        if faults.failovers > 0 {
            // R4 is about any two members: what several fail-overs during one lease add up to.
            let differs_little = |skewed: &u8| {
                let (least, greatest) = self.offsets_with(Self::SKEWED + skewed - faults.skew);
                greatest - least <= faults.skew
            };
            into.extend((0..=2 * faults.skew).filter(differs_little).map(Action::Failover));
        }
        let record = &self.server.record;
        if faults.forces > 0 && record.is_held(self.now()) {
            into.push(Action::Force);
        }
        if faults.purges > 0 && record.is_old(self.now(), config) {
            into.push(Action::Purge);
        }
        if self.time < config.horizon {
            into.push(Action::Tick);
        }
    }

    fn actions_of(&self, at: usize, config: &Config, into: &mut Vec<Action>) {
        let client = &self.clients[at];
        let number = at as u8;
        if client.dead {
            return;
        }
        let rules = config.rules;
        let room = self.messages.len() < usize::from(config.messages);
        let deaf_matters = client.phase != Phase::Idle;
        if !client.events.is_empty() {
            into.push(Action::Hear(number));
        }
        if client.deaf {
            into.push(Action::Reopen(number));
        } else if self.faults.breaks > 0 && deaf_matters {
            into.push(Action::Break(number));
        }
        if self.faults.crashes > 0 && client.phase != Phase::Idle {
            into.push(Action::Crash(number));
        }
        if client.call != 0 && (!self.is_under_way(at) || self.faults.timeouts > 0) {
            into.push(Action::Timeout(number));
        }
        match client.phase {
            Phase::Idle if client.number < config.acquisitions && room => into.push(Action::Begin(number)),
            Phase::Asking | Phase::Waiting => {
                let due = client.phase == Phase::Asking || client.wake <= self.time;
                if client.call == 0 && due && client.asks < config.asks && room {
                    into.push(Action::Ask(number));
                }
                if client.phase == Phase::Waiting && client.refreshes < config.refreshes && room {
                    into.push(Action::Refresh(number));
                }
                if config.cancel {
                    into.push(Action::Cancel(number));
                }
            }
            Phase::Held => {
                let certain = self.time < client.deadline;
                if !certain {
                    into.push(Action::NoticeLoss(number));
                }
                if certain && room {
                    into.push(Action::Release(number));
                    if client.renewals < config.renewals {
                        into.push(Action::Renew(number));
                    }
                }
                if certain && client.local > 0 {
                    into.push(Action::HandOn(number));
                }
            }
            Phase::Leaving => {
                if client.call == 0 && room {
                    into.push(Action::Withdraw(number));
                }
                let releasing = !client.farewell && !rules.keep(Guard::NotWhileReleasing);
                if client.local > 0 && (client.lost || (releasing && self.time < client.deadline)) {
                    into.push(Action::HandOn(number));
                }
            }
            Phase::Idle => {}
        }
    }

    /// Whether a process may begin one more acquisition although its budget is spent.
    #[must_use]
    pub fn may_begin_afresh(&self, client: usize) -> bool {
        usize::from(self.clients[client].number) + 1 < SESSIONS
    }

    /// Whether writes must be told from those that a majority has.
    #[must_use]
    pub fn tracks_majority(&self) -> bool {
        self.faults.failovers > 0
    }
}
