//! The bounds of a run: the number of processes, the time, and the faults.

use crate::ids::CLIENTS;
use crate::modes::{Mode, Role};
use crate::rules::{Guard, Rules};

/// The bounds of one run. Time is counted in ticks.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// The name.
    pub name: &'static str,
    /// The rules that are on.
    pub rules: Rules,
    /// Processes, each with one acquisition at a time: 1–3.
    pub clients: u8,
    /// Their roles.
    pub roles: [Role; CLIENTS],
    /// Whether processes of one role are interchangeable. If so, states that differ only by their
    /// names are one state.
    pub symmetric: bool,
    /// Acquisitions of each process.
    pub acquisitions: u8,
    /// The last tick.
    pub horizon: u8,
    /// Messages in transit at a time, requests and answers.
    pub messages: u8,
    /// Whether requests take time. If not, they are executed when they are sent.
    pub slow_requests: bool,
    /// Whether answers take time. If not, they arrive when they are given.
    pub slow_answers: bool,
    /// Attempts (R8) per acquisition.
    pub attempts: u8,
    /// For how many ticks a batch may act, in which the first attempt of an acquisition goes (R24);
    /// 0 if there are no batches.
    pub batch: u8,
    /// For how many ticks an attempt, a renewal or a refresh may begin after it was sent (R31).
    /// Clean-ups without an answer then end in time. 0 if there is no bound, and no such end.
    pub limit: u8,
    /// Whether releases are answered before a majority has them (R23).
    pub early_releases: bool,
    /// For how many ticks an operation may stall before `maxTimeMS` ends it.
    pub longest_stall: u8,
    /// Renewals per acquisition.
    pub renewals: u8,
    /// Ticket refreshes per acquisition.
    pub refreshes: u8,
    /// Whether a waiter may leave.
    pub cancel: bool,
    /// Whether a process gives a clean-up up in the end.
    pub gives_up: bool,
    /// Length of a lease.
    pub ttl: u8,
    /// Length of a lease that a release granted.
    pub claim: u8,
    /// How long a ticket lives after its refresh.
    pub ticket_ttl: u8,
    /// The additional wait of each place in the queue.
    pub window: u8,
    /// Subtracted from every deadline.
    pub margin: u8,
    /// How long records outlive their expiry.
    pub grace: u8,
    /// Minimum hold of the first process's leases; 0 for none.
    pub hold: u8,
    /// The advance of the logical clock per tick, in tokens.
    pub tokens_per_tick: u8,
    /// Guards of one lease within a process, including the first. This is also the length of its
    /// block of tokens.
    pub block: u8,
    /// How often each kind of fault may happen.
    pub faults: Faults,
}

impl Config {
    /// Whether a process of the older format takes part. Then a force-release is by an older
    /// program.
    #[must_use]
    pub fn has_old(&self) -> bool {
        self.processes().any(|role| role.old)
    }

    /// Whether a process acquires in a mode that this tests.
    #[must_use]
    pub fn has_mode(&self, test: impl Fn(Mode) -> bool) -> bool {
        self.processes().any(|role| test(role.mode))
    }

    fn processes(&self) -> impl Iterator<Item = Role> {
        self.roles.into_iter().take(usize::from(self.clients))
    }

    /// Returns the length of the block of tokens that a process of this role requests.
    #[must_use]
    pub const fn block_of(&self, role: Role) -> u8 {
        match role.mode {
            Mode::Exclusive | Mode::Shared => self.block,
            Mode::Permits { .. } => 1,
        }
    }

    /// Returns for how long a clean-up is repeated: as long as what it removes may last by itself.
    /// A ticket lives longer than a lease, and a release may grant it one.
    #[must_use]
    pub const fn clean_up_life(&self) -> u8 {
        let ticket = self.ticket_ttl + self.claim;
        if self.rules.keep(Guard::CleanUpLife) && ticket > self.ttl { ticket } else { self.ttl }
    }

    /// Returns the margin, which is subtracted from every deadline (R4).
    #[must_use]
    pub const fn margin(&self) -> u8 {
        if self.rules.keep(Guard::Margin) { self.margin } else { 0 }
    }
}

/// Budgets of faults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Faults {
    /// Requests or answers that get lost.
    pub drops: u8,
    /// Requests that the driver sends twice, under the same number.
    pub repeats: u8,
    /// Calls that are given up while a message of them is still in transit.
    pub timeouts: u8,
    /// Operations that begin, stall, and are executed later with old clock readings.
    pub stalls: u8,
    /// Processes that die.
    pub crashes: u8,
    /// Streams of events that end silently.
    pub breaks: u8,
    /// Force-releases.
    pub forces: u8,
    /// Fail-overs to a primary that has only the data of the majority.
    pub failovers: u8,
    /// How much the clocks of any two primaries may differ.
    pub skew: u8,
    /// Removals of records by age.
    pub purges: u8,
}
