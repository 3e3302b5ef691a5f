//! What a run explores: how many take part, for how long, and which faults there may be.

use crate::rules::{Guard, Rules};

/// The bounds of one run. Time is counted in ticks.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// What it is about, in one word.
    pub name: &'static str,
    /// The protocol, or what is left of it.
    pub rules: Rules,
    /// Processes, each with one acquisition at a time: 1–3.
    pub clients: u8,
    /// Whether the processes are interchangeable; then states that differ by their names only are one.
    pub symmetric: bool,
    /// Acquisitions of each process.
    pub acquisitions: u8,
    /// The last tick.
    pub horizon: u8,
    /// Messages under way at a time, requests and answers.
    pub messages: u8,
    /// Whether requests take time; else they are carried out as they are sent.
    pub slow_requests: bool,
    /// Whether answers take time; else they are heard as they are given.
    pub slow_answers: bool,
    /// Questions of R8 per acquisition.
    pub asks: u8,
    /// Renewals per acquisition.
    pub renewals: u8,
    /// Ticket refreshes per acquisition.
    pub refreshes: u8,
    /// Whether a waiter may leave.
    pub cancel: bool,
    /// Length of a lease.
    pub ttl: u8,
    /// Length of a lease that was passed on.
    pub claim: u8,
    /// How long a ticket lives after it was seen.
    pub ticket_ttl: u8,
    /// What each place further back waits longer.
    pub window: u8,
    /// Taken off every deadline.
    pub margin: u8,
    /// How long records outlive their expiry.
    pub grace: u8,
    /// Minimum hold of the first process's leases; none if 0.
    pub hold: u8,
    /// What the logical clock gains in a tick, in tokens.
    pub tokens_per_tick: u8,
    /// Guards of one lease within a process, the first included; also the length of its block of tokens.
    pub block: u8,
    /// How much each kind of fault may happen.
    pub faults: Faults,
}

impl Config {
    /// What is taken off every deadline (R4).
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
    /// Calls that are given up although something of them is still under way.
    pub timeouts: u8,
    /// Operations that start, stall, and are carried out later with old clocks.
    pub stalls: u8,
    /// Processes that die.
    pub crashes: u8,
    /// Streams of events that end without a word.
    pub breaks: u8,
    /// Leases that are taken away by force.
    pub forces: u8,
    /// Primaries that are followed by one that has only what a majority has.
    pub failovers: u8,
    /// How much the clocks of any two primaries may differ.
    pub skew: u8,
    /// Removals of records by age.
    pub purges: u8,
}
