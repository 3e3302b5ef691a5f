//! Exclusive locks: lost, late and repeated messages, the queue, fail-overs, removals, forced
//! releases.

use super::base::{BASE, NONE};
use crate::config::{Config, Faults};

pub(super) const EXCLUSIVE: [Config; 24] = [
    // Messages get lost.
    Config { name: "lost", horizon: 4, faults: Faults { drops: 2, ..NONE }, ..BASE },
    // Messages are late: their callers stop waiting for the answer, or leave.
    Config { name: "late", horizon: 3, cancel: true, faults: Faults { timeouts: 1, ..NONE }, ..BASE },
    // Waiters leave, their withdrawals get lost, and clean-ups are given up in the end.
    Config {
        name: "clean-up",
        horizon: 6,
        messages: 2,
        attempts: 1,
        slow_requests: false,
        cancel: true,
        gives_up: true,
        ttl: 2,
        claim: 1,
        ticket_ttl: 4,
        faults: Faults { drops: 1, ..NONE },
        ..BASE
    },
    // A call hangs at the server, its acquisition is given up, and its caller continues under
    // another id. For the record that is a third process, beside the one that was given up and
    // another one.
    Config {
        name: "given-up",
        clients: 3,
        horizon: 2,
        attempts: 1,
        cancel: true,
        slow_answers: false,
        faults: Faults { timeouts: 1, stalls: 1, ..NONE },
        ..BASE
    },
    // Messages are sent twice.
    Config { name: "repeated", horizon: 3, messages: 2, faults: Faults { repeats: 1, drops: 1, ..NONE }, ..BASE },
    // Renewals get lost, and overtake each other.
    Config { name: "renewals", horizon: 4, attempts: 1, renewals: 2, faults: Faults { drops: 1, ..NONE }, ..BASE },
    // Operations stall between reading the clocks and writing.
    Config {
        name: "stalls",
        horizon: 4,
        renewals: 2,
        slow_answers: false,
        faults: Faults { stalls: 1, ..NONE },
        ..BASE
    },
    // A release that grants to a waiter stalls, while that waiter refreshes.
    Config {
        name: "passing",
        acquisitions: 2,
        horizon: 3,
        messages: 2,
        attempts: 1,
        refreshes: 1,
        slow_answers: false,
        faults: Faults { stalls: 1, ..NONE },
        ..BASE
    },
    // Refreshes arrive after their waiter has left.
    Config { name: "refreshes", horizon: 3, cancel: true, attempts: 1, refreshes: 2, slow_answers: false, ..BASE },
    // The stream of events ends silently.
    Config {
        name: "events",
        refreshes: 1,
        cancel: true,
        slow_requests: false,
        faults: Faults { breaks: 1, ..NONE },
        ..BASE
    },
    // Another primary, whose clock differs, and a former one that has not noticed the fail-over.
    Config {
        name: "failover",
        horizon: 3,
        ttl: 2,
        margin: 1,
        messages: 2,
        slow_answers: false,
        faults: Faults { failovers: 1, skew: 1, ..NONE },
        ..BASE
    },
    // Records are removed; a process begins a second acquisition.
    Config {
        name: "purge",
        acquisitions: 2,
        block: 2,
        slow_requests: false,
        faults: Faults { purges: 1, ..NONE },
        ..BASE
    },
    // Guards use more tokens than the clock advances, return the unused ones, and the record is
    // removed.
    Config {
        name: "outrun",
        acquisitions: 2,
        horizon: 7,
        attempts: 1,
        cancel: true,
        ttl: 9,
        claim: 9,
        ticket_ttl: 9,
        grace: 1,
        tokens_per_tick: 1,
        block: 3,
        slow_requests: false,
        slow_answers: false,
        faults: Faults { purges: 1, ..NONE },
        ..BASE
    },
    // Leases are force-released.
    Config { name: "force", renewals: 1, slow_answers: false, faults: Faults { forces: 1, ..NONE }, ..BASE },
    // Also a lease whose grant no process has received yet.
    Config {
        name: "forced",
        acquisitions: 2,
        slow_requests: false,
        slow_answers: false,
        faults: Faults { forces: 1, ..NONE },
        ..BASE
    },
    // Leases go from task to task of one process.
    Config {
        name: "hand-off",
        horizon: 4,
        block: 3,
        renewals: 1,
        slow_answers: false,
        faults: Faults { timeouts: 1, ..NONE },
        ..BASE
    },
    // Three in the queue, one of which dies.
    Config {
        name: "queue",
        clients: 3,
        horizon: 6,
        refreshes: 1,
        cancel: true,
        slow_requests: false,
        slow_answers: false,
        faults: Faults { crashes: 1, ..NONE },
        ..BASE
    },
    // A lease with a minimum hold.
    Config {
        name: "hold",
        symmetric: false,
        horizon: 4,
        ttl: 2,
        hold: 3,
        slow_answers: false,
        faults: Faults { drops: 1, ..NONE },
        ..BASE
    },
    // First attempts go in batches, which have no numbers. One is late, and one stalls.
    Config {
        name: "batches",
        horizon: 4,
        batch: 1,
        longest_stall: 1,
        cancel: true,
        slow_answers: false,
        faults: Faults { timeouts: 1, stalls: 1, ..NONE },
        ..BASE
    },
    // A frozen server executes what it has received when it continues. Meanwhile clean-ups have
    // ended without an answer.
    Config {
        name: "frozen",
        attempts: 1,
        renewals: 1,
        refreshes: 1,
        cancel: true,
        limit: 1,
        claim: 1,
        ticket_ttl: 2,
        messages: 2,
        slow_answers: false,
        ..BASE
    },
    // A batch reaches another primary, whose clock differs.
    Config {
        name: "batch-failover",
        horizon: 3,
        ttl: 4,
        margin: 1,
        batch: 1,
        longest_stall: 0,
        messages: 2,
        attempts: 1,
        slow_answers: false,
        faults: Faults { timeouts: 1, failovers: 1, skew: 1, ..NONE },
        ..BASE
    },
    // Releases are answered before a majority has them, and are rolled back.
    Config {
        name: "early",
        symmetric: false,
        horizon: 4,
        ttl: 2,
        hold: 3,
        messages: 2,
        early_releases: true,
        slow_answers: false,
        faults: Faults { failovers: 1, ..NONE },
        ..BASE
    },
    // A release that was answered early is rolled back, and an operator takes the lock.
    Config {
        name: "early-forced",
        horizon: 4,
        ttl: 2,
        messages: 2,
        early_releases: true,
        slow_answers: false,
        faults: Faults { forces: 1, failovers: 1, ..NONE },
        ..BASE
    },
    // Batches, and releases that are answered early and rolled back.
    Config {
        name: "batch-early",
        horizon: 3,
        ttl: 2,
        batch: 1,
        longest_stall: 0,
        messages: 2,
        attempts: 1,
        early_releases: true,
        slow_answers: false,
        faults: Faults { timeouts: 1, failovers: 1, ..NONE },
        ..BASE
    },
];
