//! The possible steps.

use crate::config::Config;
use crate::ids::{Id, SESSIONS};
use crate::modes::Mode;
use crate::rules::Guard;
use crate::state::{Message, Op, Phase, Stage, State};

/// One step. Processes are named by their index, messages by their index in the state's list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Time passes.
    Tick,
    /// A process begins an acquisition.
    Begin(u8),
    /// It sends another attempt.
    Attempt(u8),
    /// It refreshes its ticket.
    Refresh(u8),
    /// It renews its lease.
    Renew(u8),
    /// It releases its lease.
    Release(u8),
    /// It hands its lease on to its next task.
    HandOn(u8),
    /// A further reader of the process joins its shared lease.
    Join(u8),
    /// One of its readers leaves, while others remain.
    Part(u8),
    /// A waiter leaves.
    Cancel(u8),
    /// It withdraws an acquisition that it gave up.
    Withdraw(u8),
    /// It gives its clean-up up.
    GiveUp(u8),
    /// It finds that its deadline has passed.
    NoticeLoss(u8),
    /// It stops waiting for the answer.
    Timeout(u8),
    /// It dies.
    Crash(u8),
    /// It receives the next event.
    ReceiveEvent(u8),
    /// Its stream ends silently.
    EndStream(u8),
    /// It opens the stream again.
    ReopenStream(u8),
    /// The primary executes an operation.
    Execute(u8),
    /// The primary begins an operation, which stalls.
    Stall(u8),
    /// A former primary executes an operation.
    ExecuteOnStale(u8),
    /// A message gets lost.
    Drop(u8),
    /// The driver sends a request again, under its number.
    Repeat(u8),
    /// An answer arrives.
    DeliverAnswer(u8),
    /// A majority has all writes.
    Replicate,
    /// Another member with the data of the majority becomes primary. Its clock differs by this
    /// number, minus the greatest skew.
    Failover(u8),
    /// The holder's lease is force-released.
    Force,
    /// The lease of one of several holders is force-released, by its place among them.
    ForceHolder(u8),
    /// The TTL monitor removes the record.
    Purge,
}

impl State {
    /// Returns the id of a process's acquisition.
    #[must_use]
    pub fn id_of(&self, client: usize, config: &Config) -> Id {
        self.id(client, config.rules.keep(Guard::FreshId))
    }

    /// Whether a message of the call that a process waits for is in transit. A batch to a former
    /// primary is not: the driver ends that call when it finds the new one.
    #[must_use]
    pub fn is_under_way(&self, client: usize) -> bool {
        let is_cut_off = |message: &Message| message.op == Op::Batch && message.to_stale;
        self.messages.as_slice().iter().any(|message| self.is_awaited(client, message) && !is_cut_off(message))
    }

    /// Whether a numbered message belongs to the call that a process waits for.
    #[must_use]
    pub fn is_awaited(&self, client: usize, message: &Message) -> bool {
        let it = &self.clients[client];
        matches!(message.op, Op::Acquire | Op::Release | Op::Batch)
            && message.id.client() == client
            && (message.session, message.number) == (it.number, it.call)
    }

    /// Whether the primary can get a request. One that was sent to a former primary reaches this
    /// one only as the driver's second try, which batches do not have.
    #[must_use]
    pub fn reaches_primary(&self, message: &Message) -> bool {
        !message.to_stale || (message.op != Op::Batch && self.is_awaited(message.id.client(), message))
    }

    /// Whether a process may withdraw its acquisition now: once at once, and once its batch can no
    /// longer act.
    #[must_use]
    pub fn may_withdraw(&self, client: usize) -> bool {
        let client = &self.clients[client];
        client.call == 0 && (!client.withdrawn || self.now() >= client.fence)
    }

    /// Whether a stalled earlier operation of the session delays it.
    fn waits_for_session(&self, message: &Message) -> bool {
        matches!(message.op, Op::Acquire | Op::Release)
            && self.messages.as_slice().iter().any(|other| {
                other.stage == Stage::Stalled
                    && matches!(other.op, Op::Acquire | Op::Release)
                    && (other.id.client(), other.session) == (message.id.client(), message.session)
            })
    }

    /// Collects all possible steps, including the remaining faults.
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
                    if !self.waits_for_session(message) && self.reaches_primary(message) {
                        into.push(Action::Execute(number));
                        if faults.stalls > 0 {
                            into.push(Action::Stall(number));
                        }
                    }
                    if message.to_stale && self.stale.is_some() {
                        into.push(Action::ExecuteOnStale(number));
                    }
                    if faults.drops > 0 {
                        into.push(Action::Drop(number));
                    }
                    let numbered = matches!(message.op, Op::Acquire | Op::Release);
                    if faults.repeats > 0 && numbered && self.messages.len() < usize::from(config.messages) {
                        into.push(Action::Repeat(number));
                    }
                }
                Stage::Stalled => into.push(Action::Execute(number)),
                Stage::Pending => {}
                Stage::Answer => {
                    into.push(Action::DeliverAnswer(number));
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
            // R4 is about any two members: the skews of several fail-overs during one lease add up.
            let differs_little = |skewed: &u8| {
                let (least, greatest) = self.offsets_with(Self::SKEWED + skewed - faults.skew);
                greatest - least <= faults.skew
            };
            into.extend((0..=2 * faults.skew).filter(differs_little).map(Action::Failover));
        }
        let record = &self.server.record;
        if faults.forces > 0 && record.is_held(self.now()) {
            into.push(Action::Force);
            if record.holder == Id::SHARED && !config.has_old() {
                into.extend((0..record.leases(self.now()).len()).map(|at| Action::ForceHolder(at as u8)));
            }
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
        let stream_matters = client.phase != Phase::Idle;
        if !client.events.is_empty() {
            into.push(Action::ReceiveEvent(number));
        }
        if client.stream_ended {
            into.push(Action::ReopenStream(number));
        } else if self.faults.breaks > 0 && stream_matters {
            into.push(Action::EndStream(number));
        }
        if self.faults.crashes > 0 && client.phase != Phase::Idle {
            into.push(Action::Crash(number));
        }
        if client.call != 0 && (!self.is_under_way(at) || self.faults.timeouts > 0) {
            into.push(Action::Timeout(number));
        }
        match client.phase {
            Phase::Idle if client.number < config.acquisitions && room => into.push(Action::Begin(number)),
            Phase::Attempting | Phase::Waiting => {
                let due = client.phase == Phase::Attempting || client.wake <= self.time;
                if client.call == 0 && due && client.attempts < config.attempts && room {
                    into.push(Action::Attempt(number));
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
                    if client.others == 0 || !rules.keep(Guard::LastReader) {
                        into.push(Action::Release(number));
                    }
                    if client.renewals < config.renewals {
                        into.push(Action::Renew(number));
                    }
                }
                if certain && client.local > 0 {
                    // A lease with several readers is joined, and not handed on.
                    let shared = client.role.mode == Mode::Shared;
                    into.push(if shared { Action::Join(number) } else { Action::HandOn(number) });
                }
                if certain && client.others > 0 {
                    into.push(Action::Part(number));
                }
            }
            Phase::Leaving => {
                if self.may_withdraw(at) && room {
                    into.push(Action::Withdraw(number));
                }
                let after_bound = client.bound > 0 && self.now() >= client.bound + config.clean_up_life();
                let after_end =
                    client.call == 0 && client.left > 0 && self.time + 1 >= client.left + config.clean_up_life();
                if after_bound || after_end {
                    into.push(Action::GiveUp(number));
                }
                let releasing = !client.after_loss && !rules.keep(Guard::NotWhileReleasing);
                if client.local > 0 && (client.lost || (releasing && self.time < client.deadline)) {
                    into.push(Action::HandOn(number));
                }
            }
            Phase::Idle => {}
        }
    }

    /// Whether a process may begin one more acquisition although its budget is used up.
    #[must_use]
    pub fn may_begin_again(&self, client: usize) -> bool {
        usize::from(self.clients[client].number) + 1 < SESSIONS
    }

    /// Whether the state distinguishes the writes that a majority has.
    #[must_use]
    pub fn tracks_majority(&self) -> bool {
        self.faults.failovers > 0
    }
}
