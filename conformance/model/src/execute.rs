//! The execution of operations in the replica set: sessions, the majority, fail-over, and events
//! (R11, R17, R20).

use crate::client::Verdict;
use crate::config::Config;
use crate::ids::{Id, Time, Token};
use crate::modes::{Lease, Leases};
use crate::rules::{Guard, Property};
use crate::server::{Clocks, Outcome};
use crate::state::{Answer, Event, EventKind, Message, Op, Record, Server, Stage, State};

/// The result of an execution.
enum Execution {
    /// The session has begun a later operation, or it is too late (R31).
    Refused,
    /// It has been executed before.
    Replayed,
    Done(Outcome),
}

impl State {
    /// Returns the clock readings of an operation that begins now (R2).
    ///
    /// The logical clock does not advance within a tick, so equal readings on one key are common
    /// here.
    pub(crate) fn clocks(&self, config: &Config) -> Clocks {
        Clocks { now: self.now(), logical: Token::from(self.latest) * Token::from(config.tokens_per_tick) + 1 }
    }

    /// Removes a request that the primary begins. If it was sent to another primary, the driver has
    /// found this one, and sent it again.
    pub(crate) fn reach_primary(&mut self, at: usize) -> Message {
        let message = self.messages.remove(at);
        self.clients[message.id.client()].at_stale &= !message.to_stale;
        Message { to_stale: false, ..message }
    }

    /// Executes an operation on the primary.
    pub(crate) fn execute(&mut self, at: usize, config: &Config) -> Verdict {
        let mut message = self.reach_primary(at);
        let clocks = if message.stage == Stage::Stalled {
            Clocks { now: message.now, logical: message.clock }
        } else {
            self.clocks(config)
        };
        let now = self.now();
        let before = self.server;
        let execution = self.server.execute(&message, clocks, config);
        let Execution::Done(outcome) = execution else {
            if matches!(execution, Execution::Replayed) {
                let mine = self.server.record.is_held_by(message.id, now);
                message = Message { answer: Answer::Replay, mine, ..message };
                self.answer(message, false, config);
            }
            return None;
        };
        let verdict = self.server.judge(&message, &outcome, &before.record, (clocks.now, now), config);
        let renewed = message.op == Op::Renew && outcome.answer == Answer::Granted;
        if renewed && self.server.is_forced(message.token, message.token) {
            return Some(Property::Forced);
        }
        let Outcome { answer, token, tokens, left, .. } = outcome;
        let mine = answer == Answer::Busy && before.record.is_held_by(message.id, clocks.now);
        let is_early = is_early_release(&message, &outcome, config);
        self.answer(Message { answer, token, tokens, left, now: clocks.now, mine, ..message }, is_early, config);
        self.publish(&outcome, config);
        verdict
    }

    fn answer(&mut self, message: Message, is_early: bool, config: &Config) {
        let waits = self.tracks_majority() && self.server != self.majority && config.rules.keep(Guard::Majority);
        // Clear the fields that only the server needs.
        let stage = if waits && !is_early { Stage::Pending } else { Stage::Answer };
        let now = if tells_the_time(&message, config) { message.now } else { 0 };
        self.messages.push(Message { stage, now, clock: 0, ..message });
    }

    /// Executes an operation on a former primary. Its writes are never acknowledged, but it may
    /// answer if it has nothing to write.
    pub(crate) fn execute_on_stale(&mut self, at: usize, config: &Config) {
        let Some((mut server, offset, clean)) = self.stale.take() else { return };
        let message = self.messages.remove(at);
        let now = (self.time + offset).saturating_sub(Self::SKEWED);
        let before = server.record;
        let clocks = Clocks { now, ..self.clocks(config) };
        let Execution::Done(outcome) = server.execute(&message, clocks, config) else { return };
        let is_early = is_early_release(&message, &outcome, config);
        if is_early {
            // What it has released there is held until it expires.
            self.abandoned.add(message.id);
        }
        if is_early || (server.record == before && clean) || !config.rules.keep(Guard::Majority) {
            let Outcome { answer, token, tokens, left, .. } = outcome;
            let mine = before.is_held_by(message.id, now);
            let now = if tells_the_time(&Message { answer, ..message }, config) { now } else { 0 };
            let answer = Message { answer, token, tokens, left, now, mine, ..message };
            self.messages.push(Message { stage: Stage::Answer, clock: 0, to_stale: false, ..answer });
        }
    }

    /// Replicates all writes to a majority.
    pub(crate) fn replicate(&mut self) {
        self.majority = self.server;
        for message in self.messages.iter_mut().filter(|message| message.stage == Stage::Pending) {
            message.stage = Stage::Answer;
        }
        for (client, event) in std::mem::take(&mut self.unconfirmed).as_slice() {
            self.push_event(usize::from(*client), *event);
        }
    }

    /// Returns the range of the offsets with another one.
    pub(crate) fn offsets_with(&self, offset: u8) -> (u8, u8) {
        (self.offsets.0.min(offset), self.offsets.1.max(offset))
    }

    /// Makes another member the primary.
    pub(crate) fn fail_over(&mut self, skewed: u8, config: &Config) {
        let old = (self.server, self.offset, self.server == self.majority);
        let skew = self.faults.skew;
        if config.early_releases {
            // Leases whose releases are rolled back expire by themselves.
            self.abandoned.0 |= self.server.record.released.0 & !self.majority.record.released.0;
            if !config.rules.keep(Guard::HoldMajority) {
                // It has been answered, so the key must stay closed.
                self.majority.held_until = self.server.held_until;
            }
        }
        self.stale = Some(old);
        self.server = self.majority;
        for session in self.server.sessions.iter_mut().flatten() {
            session.begun = session.written;
        }
        self.offset = Self::SKEWED + skewed - skew;
        self.offsets = self.offsets_with(self.offset);
        self.latest = self.latest.max(self.now());
        self.unconfirmed = Default::default();
        self.messages.retain(|message| !matches!(message.stage, Stage::Pending | Stage::Stalled));
        self.messages.iter_mut().for_each(|message| message.to_stale = message.stage == Stage::Sent);
        self.clients.iter_mut().for_each(|client| client.at_stale = !client.dead);
        self.faults.failovers -= 1;
    }

    /// Sends the events of an operation, once a majority has it.
    pub(crate) fn publish(&mut self, outcome: &Outcome, config: &Config) {
        let own = outcome.events.as_slice().iter().map(|event| (event.id.client(), *event));
        let opened = Event { kind: EventKind::Opened, ..Event::default() };
        let told = if outcome.freed { usize::from(config.clients) } else { 0 };
        for (client, event) in own.chain((0..told).map(|client| (client, opened))) {
            if self.tracks_majority() {
                self.unconfirmed.push((client as u8, event));
            } else {
                self.push_event(client, event);
            }
        }
    }

    fn push_event(&mut self, client: usize, event: Event) {
        let client = &mut self.clients[client];
        if client.stream_ended || client.dead {
            return;
        }
        if client.events.has_room(1) {
            client.events.push(Event { of_new_primary: client.at_stale, ..event });
        } else {
            // A stream that lags too far ends.
            client.events.retain(|_| false);
            client.stream_ended = true;
        }
    }
}

/// R23: whether a request is answered before a majority has what it wrote.
fn is_early_release(message: &Message, outcome: &Outcome, config: &Config) -> bool {
    let keeps_closed = message.left > 0 && config.rules.keep(Guard::HoldMajority);
    config.early_releases && message.op == Op::Release && outcome.answer == Answer::Released && !keeps_closed
}

/// Whether the process reads the server's clock in an answer: R18, R24.
fn tells_the_time(message: &Message, config: &Config) -> bool {
    message.answer == Answer::Busy || (message.op == Op::Release && config.batch > 0)
}

impl Server {
    fn execute(&mut self, message: &Message, clocks: Clocks, config: &Config) -> Execution {
        let &Message { op, id, role, number, token, left, .. } = message;
        let ordered = matches!(op, Op::Acquire | Op::Release) && config.rules.keep(Guard::Session);
        let session = &mut self.sessions[id.client()][usize::from(message.session)];
        if ordered {
            if number < session.begun {
                return Execution::Refused;
            }
            if number == session.written {
                return Execution::Replayed;
            }
            session.begun = number;
        }
        let is_bounded = match op {
            Op::Acquire => config.rules.keep(Guard::AttemptBound),
            Op::Renew => config.rules.keep(Guard::RenewalBound),
            Op::Refresh => config.rules.keep(Guard::RefreshBound),
            Op::Release | Op::Batch => false,
        };
        if is_bounded && left > 0 && clocks.now >= left {
            return Execution::Refused;
        }
        let before = self.record;
        let outcome = match op {
            Op::Acquire => self.record.acquire(id, role, clocks, config),
            Op::Release => self.record.release(id, role, (left, token), clocks, config),
            Op::Renew => self.record.renew(id, token, clocks.now, config),
            Op::Refresh => self.record.refresh(id, role, clocks.now, config),
            Op::Batch => self.record.acquire_in_batch(id, role, (left, token), clocks, config),
        };
        if ordered && self.record != before {
            let session = &mut self.sessions[id.client()][usize::from(message.session)];
            (session.begun, session.written) = (number, number);
        }
        Execution::Done(outcome)
    }

    /// Returns the property that the operation's change of the record violates, by the operation's
    /// clock and the true one.
    fn judge(
        &mut self,
        message: &Message,
        outcome: &Outcome,
        before: &Record,
        (started, now): (Time, Time),
        config: &Config,
    ) -> Verdict {
        let id = message.id;
        let record = self.record;
        let (leases_before, leases) = (before.leases(started), record.leases(started));
        let until = if message.op == Op::Release && message.left > 0 { before.acquired + message.left } else { 0 };
        let own = leases_before.of(id);
        if outcome.answer == Answer::Released && until > now && own.is_some() {
            self.held_until = until;
        }
        if let Some(own) = own.filter(|own| outcome.answer == Answer::Released && own.token == before.token) {
            // No guard gets the rest of the latest block.
            self.given = message.token.max(own.first());
        }
        let mut beside = leases_before;
        beside.retain(|lease| lease.id != id);
        let mut granted = Leases::default();
        // A lease that becomes valid again after its expiry also counts as a grant.
        let is_new = |lease: &&Lease| leases_before.of(lease.id).is_none_or(|before| before.token != lease.token);
        for lease in leases.as_slice().iter().filter(is_new) {
            let strict = lease.first() > self.given;
            self.given = self.given.max(lease.token);
            let closed = now < std::mem::take(&mut self.held_until);
            let ahead = before.place_of_grant(lease.id, (id, &granted), now, config);
            let turn = before.opened() + ahead * config.window;
            // Beside holders there are no windows.
            let barged = ahead > 0 && (message.op != Op::Acquire || !beside.is_empty() || now < turn);
            let found = [
                (!strict).then_some(Property::Tokens),
                closed.then_some(Property::MinimumHold),
                barged.then_some(Property::Order),
            ];
            if let Some(found) = found.into_iter().flatten().next() {
                return Some(found);
            }
            granted.push(*lease);
        }
        let found = record.judge_holders(message, before, started, config);
        if found.is_some() {
            return found;
        }
        if !granted.is_empty() {
            let released = &mut self.sessions[id.client()][usize::from(message.session)].released;
            *released |= message.op == Op::Release && outcome.answer == Answer::Released;
            return None;
        }
        match message.op {
            Op::Acquire if outcome.answer == Answer::Busy => {
                let free = !before.is_held(started) && before.closed <= started;
                let alone = before.place(id, started, config) == 0;
                let fits =
                    before.holder == Id::SHARED && !leases_before.is_empty() && leases_before.admit(message.role.mode);
                (own.is_some() || ((free || fits) && alone)).then_some(Property::Truth)
            }
            Op::Release => {
                let session = &mut self.sessions[id.client()][usize::from(message.session)];
                let says = outcome.answer == Answer::Released;
                let does = before.is_held_by(id, started);
                let untrue = says && !does && !session.released || !says && before.released.has(id);
                session.released |= says && does;
                untrue.then_some(Property::Truth)
            }
            _ => None,
        }
    }
}

impl Record {
    /// Counts the live waiters before the new holder, without the releaser and those that the same
    /// step has granted the key before it.
    fn place_of_grant(&self, winner: Id, (releaser, granted): (Id, &Leases), now: Time, config: &Config) -> u8 {
        let tickets = self.queue.as_slice().iter();
        let others = tickets.filter(|ticket| ticket.id != releaser || ticket.id == winner);
        let others = others.filter(|ticket| granted.of(ticket.id).is_none());
        let live = others.filter(|ticket| ticket.refreshed + config.ticket_ttl > now);
        live.take_while(|ticket| ticket.id != winner).count() as u8
    }

    /// Returns the property of several holders that an operation's change of the record violates.
    fn judge_holders(&self, message: &Message, before: &Self, started: Time, config: &Config) -> Verdict {
        if self.holder != Id::SHARED || self == before {
            return None;
        }
        let is_other = |lease: &&Lease| lease.id != message.id;
        let was_extended = |lease: &Lease| {
            let mut old = before.holders.as_slice().iter().filter(|old| (old.id, old.token) == (lease.id, lease.token));
            old.any(|old| old.expires != lease.expires)
        };
        if before.holder == Id::SHARED && self.holders.as_slice().iter().filter(is_other).any(was_extended) {
            return Some(Property::OwnExpiry);
        }
        let mut waiters = self.queue.as_slice().iter();
        let head = waiters.find(|ticket| Self::is_live(ticket, started, config));
        let beside = self.leases(started);
        let fits = !beside.is_empty() && head.is_some_and(|head| beside.admit(head.mode));
        (message.op == Op::Release && !message.role.old && fits).then_some(Property::Together)
    }
}
