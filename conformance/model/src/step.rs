//! One step from one state to the next.

use crate::action::Action;
use crate::client::Verdict;
use crate::config::Config;
use crate::ids::{Time, Token};
use crate::modes::Role;
use crate::rules::{Guard, Property};
use crate::server::Outcome;
use crate::state::{Client, EventKind, Message, Op, Phase, Server, Stage, State};

impl State {
    /// Returns the first state.
    #[must_use]
    pub fn initial(config: &Config) -> Self {
        let offsets = (Self::SKEWED, Self::SKEWED);
        let mut state = Self { offset: Self::SKEWED, offsets, faults: config.faults, ..Self::default() };
        for (client, role) in state.clients.iter_mut().zip(config.roles) {
            client.role = role;
        }
        state
    }

    /// Returns the state after a possible step, and the property that the step violates, if any.
    #[must_use]
    pub fn after(&self, action: Action, config: &Config) -> (Self, Verdict) {
        let mut next = *self;
        let mut verdict = next.step(action, config);
        next.tidy(config);
        while let Some(action) = next.at_once(config) {
            verdict = verdict.or(next.step(action, config));
            next.tidy(config);
        }
        (next, verdict)
    }

    /// Returns the step that must follow at once, because this network has no delay.
    fn at_once(&self, config: &Config) -> Option<Action> {
        let at = |stage| self.messages.as_slice().iter().position(|message| message.stage == stage).map(|at| at as u8);
        let answer = if config.slow_answers { None } else { at(Stage::Answer).map(Action::DeliverAnswer) };
        let request = || if config.slow_requests { None } else { at(Stage::Sent).map(Action::Execute) };
        answer.or_else(request)
    }

    fn step(&mut self, action: Action, config: &Config) -> Verdict {
        let rules = config.rules;
        let time = self.time;
        match action {
            Action::Tick => {
                self.time += 1;
                self.latest = self.latest.max(self.now());
            }
            Action::Begin(at) => {
                let client = &mut self.clients[usize::from(at)];
                client.number += 1;
                client.phase = Phase::Attempting;
                client.wake = time;
                if config.batch > 0 { self.attempt_in_batch(at, config) } else { self.attempt(at, config) }
            }
            Action::Attempt(at) => self.attempt(at, config),
            Action::Refresh(at) => {
                let client = &mut self.clients[usize::from(at)];
                client.refreshes += 1;
                client.refreshed = time;
                let left = self.bound(at, config);
                self.send(at, Message { op: Op::Refresh, left, ..Message::default() }, config);
            }
            Action::Renew(at) => {
                let client = &mut self.clients[usize::from(at)];
                client.renewals += 1;
                // Marked if it is sent after a gap: only its answer confirms the lease.
                let (token, number) = (client.last_token, u8::from(client.must_renew));
                let left = self.bound(at, config);
                self.send(at, Message { op: Op::Renew, token, number, left, ..Message::default() }, config);
            }
            Action::Release(at) => {
                let hold = if at == 0 { config.hold } else { 0 };
                let client = &mut self.clients[usize::from(at)];
                let old = *client;
                client.leave();
                if !rules.keep(Guard::NotWhileReleasing) {
                    (client.local, client.deadline) = (old.local, old.deadline);
                    (client.token, client.last_token) = (old.token, old.last_token);
                }
                if old.others > 0 {
                    // Only with R21 switched off: one of the guards has sent the release.
                    (client.others, client.deadline, client.token) = (old.others, old.deadline, old.token);
                }
                self.call(at, Op::Release, (hold, old.used), config);
            }
            Action::HandOn(at) => return self.hand_on(usize::from(at), config),
            Action::Join(at) => {
                let client = &mut self.clients[usize::from(at)];
                client.others += 1;
                return (!client.next_token(config)).then_some(Property::Tokens);
            }
            Action::Part(at) => self.clients[usize::from(at)].others -= 1,
            Action::Cancel(at) => {
                let client = &mut self.clients[usize::from(at)];
                if rules.keep(Guard::Withdraw) { client.leave() } else { client.finish() }
            }
            Action::Withdraw(at) => {
                let used = self.clients[usize::from(at)].used;
                self.call(at, Op::Release, (0, used), config);
            }
            // All that it may have left in the record has expired.
            Action::GiveUp(at) => self.clients[usize::from(at)].finish(),
            Action::NoticeLoss(at) => self.clients[usize::from(at)].lose(config),
            Action::Timeout(at) => {
                let id = self.id_of(usize::from(at), config);
                self.faults.timeouts -= u8::from(self.is_under_way(usize::from(at)));
                let client = &mut self.clients[usize::from(at)];
                client.call = 0;
                client.leave_batch(config);
                if client.after_loss {
                    self.abandoned.add(id);
                    client.finish();
                } else if client.phase == Phase::Attempting && !rules.keep(Guard::Unknown) {
                    client.finish();
                }
            }
            Action::Crash(at) => {
                let client = &mut self.clients[usize::from(at)];
                client.others = 0;
                client.finish();
                client.dead = true;
                self.faults.crashes -= 1;
            }
            Action::ReceiveEvent(at) => {
                let client = &mut self.clients[usize::from(at)];
                let event = client.events.remove(0);
                client.at_stale &= !event.of_new_primary;
                let before = *client;
                client.receive_event(&event, time, config);
                return self.false_loss(usize::from(at), &before, config);
            }
            Action::EndStream(at) => {
                let client = &mut self.clients[usize::from(at)];
                client.events.retain(|_| false);
                client.stream_ended = true;
                self.faults.breaks -= 1;
            }
            Action::ReopenStream(at) => {
                let renewals = self.messages.iter_mut().filter(|message| message.op == Op::Renew);
                renewals
                    .filter(|message| message.id.client() == usize::from(at))
                    .for_each(|message| message.number = 0);
                let client = &mut self.clients[usize::from(at)];
                let before = *client;
                client.receive_gap(time, config);
                return self.false_loss(usize::from(at), &before, config);
            }
            Action::Execute(at) => return self.execute(usize::from(at), config),
            Action::ExecuteOnStale(at) => self.execute_on_stale(usize::from(at), config),
            Action::Stall(at) => {
                let clocks = self.clocks(config);
                let mut message = self.reach_primary(usize::from(at));
                (message.now, message.clock, message.stage) = (clocks.now, clocks.logical, Stage::Stalled);
                self.messages.push(message);
                self.faults.stalls -= 1;
            }
            Action::Drop(at) => {
                self.messages.remove(usize::from(at));
                self.faults.drops -= 1;
            }
            Action::Repeat(at) => {
                self.messages.push(self.messages.as_slice()[usize::from(at)]);
                self.faults.repeats -= 1;
            }
            Action::DeliverAnswer(at) => {
                let answer = self.messages.remove(usize::from(at));
                let at = answer.id.client();
                let before = self.clients[at];
                let verdict = self.clients[at].receive_answer(&answer, time, config);
                return verdict.or_else(|| self.false_loss(at, &before, config));
            }
            Action::Replicate => self.replicate(),
            Action::Failover(skewed) => self.fail_over(skewed, config),
            Action::Force => {
                let now = self.now();
                let revoked = self.server.record.token;
                let by = if config.has_old() { Role::OLD } else { Role::EXCLUSIVE };
                if let Some(outcome) = self.server.record.force(now, by, config) {
                    self.server.forced = revoked;
                    self.server.given = self.server.given.max(self.server.record.token);
                    self.publish(&outcome, config);
                }
                self.faults.forces -= 1;
            }
            Action::ForceHolder(at) => {
                let now = self.now();
                let victim = self.server.record.leases(now).as_slice()[usize::from(at)];
                let outcome = self.server.record.force_holder(victim.id, now, config);
                self.server.forced_alone.push(victim.token);
                self.server.given = self.server.given.max(self.server.record.token);
                self.publish(&outcome, config);
                self.faults.forces -= 1;
            }
            Action::Purge => {
                self.server.record = Default::default();
                self.faults.purges -= 1;
                self.publish(&Outcome { freed: true, ..Outcome::default() }, config);
            }
        }
        None
    }

    fn attempt(&mut self, at: u8, config: &Config) {
        let client = &mut self.clients[usize::from(at)];
        client.attempts += 1;
        client.phase = Phase::Attempting;
        client.must_renew = false;
        let bound = self.bound(at, config);
        self.call(at, Op::Acquire, (bound, 0), config);
    }

    /// Returns the bound of an operation that is sent now (R31); 0 for none.
    fn bound(&mut self, at: u8, config: &Config) -> Time {
        if config.limit == 0 {
            return 0;
        }
        let bound = self.now() + config.limit;
        self.clients[usize::from(at)].bound = bound;
        bound
    }

    /// Sends an attempt in a batch. The process knows the server's clock from earlier answers, and
    /// so a token.
    fn attempt_in_batch(&mut self, at: u8, config: &Config) {
        let bound = self.now() + config.batch;
        self.clients[usize::from(at)].batch = bound;
        let first = self.clocks(config).logical;
        self.call(at, Op::Batch, (bound, first), config);
    }

    /// Sends the next operation of the session, and waits for its answer (R11).
    fn call(&mut self, at: u8, op: Op, (left, used): (Time, Token), config: &Config) {
        let client = &mut self.clients[usize::from(at)];
        client.last_call += 1;
        client.call = client.last_call;
        let number = client.call;
        self.send(at, Message { op, number, left, token: used, ..Message::default() }, config);
    }

    fn send(&mut self, at: u8, message: Message, config: &Config) {
        let client = usize::from(at);
        let (id, session) = (self.id_of(client, config), self.clients[client].number);
        let Client { at_stale: to_stale, role, .. } = self.clients[client];
        self.messages.push(Message { id, role, session, sent: self.time, to_stale, ..message });
    }

    /// R21: hands the lease on to the next task of the process.
    fn hand_on(&mut self, at: usize, config: &Config) -> Verdict {
        let time = self.time;
        let client = &mut self.clients[at];
        if client.phase != Phase::Held {
            client.phase = Phase::Held;
            client.deadline = client.deadline.max(if client.lost { time + 1 } else { 0 });
            (client.call, client.after_loss, client.lost) = (0, false, false);
        }
        (!client.next_token(config)).then_some(Property::Tokens)
    }

    /// Whether a process has just given up a lease that every record assigns to it.
    fn false_loss(&self, at: usize, before: &Client, config: &Config) -> Verdict {
        let is_mine = |server: &Server| {
            let lease = server.record.leases(self.now()).of(self.id_of(at, config));
            lease.is_some_and(|lease| lease.token == before.last_token)
        };
        let mine = is_mine(&self.server) && (!self.tracks_majority() || is_mine(&self.majority));
        let lost = before.is_certain(self.time) && self.clients[at].phase != Phase::Held;
        (mine && lost).then_some(Property::FalseLoss)
    }

    /// Removes messages and events without effect, and sorts the messages, so that equal states are
    /// equal.
    fn tidy(&mut self, config: &Config) {
        let (clients, has_stale, now) = (&self.clients, self.stale.is_some(), self.now());
        self.messages.retain(|message| {
            let client = &clients[message.id.client()];
            let own = message.session == client.number && !client.dead;
            match (message.stage, message.op) {
                // That primary can no longer have an effect.
                (Stage::Sent, Op::Batch) if message.to_stale => has_stale,
                (Stage::Sent, _) if message.to_stale && !has_stale => own && client.call == message.number,
                (Stage::Sent, _) => true,
                (Stage::Stalled, _) => now <= message.now.saturating_add(config.longest_stall),
                (_, Op::Acquire | Op::Release | Op::Batch) => own && client.call == message.number,
                (_, Op::Renew) => own && client.phase == Phase::Held && message.token == client.last_token,
                (_, Op::Refresh) => own && matches!(client.phase, Phase::Waiting | Phase::Attempting),
            }
        });
        self.messages.sort();
        let time = self.time;
        for at in 0..usize::from(config.clients) {
            let client = &mut self.clients[at];
            if config.gives_up && client.phase == Phase::Leaving && client.call == 0 && client.left == 0 {
                client.left = time + 1;
            }
            let (id, phase) = (self.id_of(at, config), self.clients[at].phase);
            self.clients[at].events.retain(|event| match event.kind {
                EventKind::Opened => matches!(phase, Phase::Attempting | Phase::Waiting),
                EventKind::Granted => event.id == id && matches!(phase, Phase::Attempting | Phase::Waiting),
                EventKind::Gone => event.id == id && matches!(phase, Phase::Attempting | Phase::Waiting | Phase::Held),
            });
            if self.clients[at].phase == Phase::Idle {
                self.clients[at].stream_ended = false;
            }
        }
        if !self.tracks_majority() {
            self.majority = Server::default();
        }
    }
}
