//! Shared locks and permits, also beside exclusive ones and processes of the older format.

use super::base::{BASE, NONE};
use crate::config::{Config, Faults};
use crate::modes::Role;

/// Two readers and a writer.
const READERS: [Role; 3] = [Role::SHARED, Role::SHARED, Role::EXCLUSIVE];

pub(super) const MODES: [Config; 16] = [
    // Two readers and a writer, one of which dies; leases expire and are taken over.
    Config {
        name: "readers",
        clients: 3,
        roles: READERS,
        renewals: 1,
        cancel: true,
        slow_requests: false,
        slow_answers: false,
        faults: Faults { crashes: 1, ..NONE },
        ..BASE
    },
    // The same, with lost answers.
    Config {
        name: "readers-lost",
        clients: 3,
        roles: READERS,
        horizon: 3,
        messages: 2,
        slow_requests: false,
        faults: Faults { drops: 1, ..NONE },
        ..BASE
    },
    // The same, with an operation that stalls, and late requests.
    Config {
        name: "readers-stall",
        clients: 3,
        roles: READERS,
        horizon: 3,
        messages: 2,
        attempts: 1,
        renewals: 1,
        ttl: 2,
        slow_answers: false,
        faults: Faults { stalls: 1, ..NONE },
        ..BASE
    },
    // The same; the driver sends twice.
    Config {
        name: "readers-repeated",
        clients: 3,
        roles: READERS,
        horizon: 2,
        messages: 2,
        attempts: 1,
        cancel: true,
        slow_answers: false,
        faults: Faults { repeats: 1, ..NONE },
        ..BASE
    },
    // The same, with another primary, whose clock differs.
    Config {
        name: "readers-failover",
        clients: 3,
        roles: READERS,
        horizon: 3,
        ttl: 2,
        margin: 1,
        messages: 1,
        attempts: 1,
        slow_answers: false,
        faults: Faults { failovers: 1, skew: 1, ..NONE },
        ..BASE
    },
    // The same; the lease of one reader, or of all, is force-released.
    Config {
        name: "readers-forced",
        clients: 3,
        roles: READERS,
        horizon: 4,
        renewals: 1,
        slow_requests: false,
        slow_answers: false,
        faults: Faults { forces: 1, ..NONE },
        ..BASE
    },
    // The same with late requests and one reader.
    Config {
        name: "reader-forced",
        roles: [Role::SHARED, Role::EXCLUSIVE, Role::EXCLUSIVE],
        renewals: 1,
        slow_answers: false,
        faults: Faults { forces: 1, ..NONE },
        ..BASE
    },
    // Readers of one process share a lease, beside one of another process; blocks of tokens.
    Config {
        name: "joined",
        clients: 3,
        roles: READERS,
        horizon: 3,
        messages: 2,
        attempts: 1,
        block: 2,
        renewals: 1,
        slow_answers: false,
        ..BASE
    },
    // Three that take one permit of two, one of which dies.
    Config {
        name: "permits",
        clients: 3,
        roles: [Role::permits(1, 2); 3],
        renewals: 1,
        refreshes: 1,
        cancel: true,
        slow_requests: false,
        slow_answers: false,
        faults: Faults { crashes: 1, ..NONE },
        ..BASE
    },
    // One that takes both.
    Config {
        name: "permits-all",
        clients: 3,
        roles: [Role::permits(1, 2), Role::permits(1, 2), Role::permits(2, 2)],
        acquisitions: 2,
        horizon: 3,
        cancel: true,
        slow_requests: false,
        slow_answers: false,
        ..BASE
    },
    // A reader, a permit and a writer, one of which dies.
    Config {
        name: "mixed",
        clients: 3,
        roles: [Role::SHARED, Role::permits(1, 2), Role::EXCLUSIVE],
        renewals: 1,
        refreshes: 1,
        cancel: true,
        slow_requests: false,
        slow_answers: false,
        faults: Faults { crashes: 1, ..NONE },
        ..BASE
    },
    // The stream of events of one of them ends silently.
    Config {
        name: "readers-events",
        clients: 3,
        roles: READERS,
        horizon: 4,
        slow_requests: false,
        slow_answers: false,
        cancel: true,
        faults: Faults { breaks: 1, ..NONE },
        ..BASE
    },
    // The record is removed.
    Config {
        name: "readers-purge",
        clients: 3,
        roles: READERS,
        acquisitions: 2,
        horizon: 4,
        attempts: 1,
        ttl: 2,
        grace: 1,
        slow_requests: false,
        slow_answers: false,
        faults: Faults { purges: 1, ..NONE },
        ..BASE
    },
    // First attempts go in batches, which have no numbers. One is late.
    Config {
        name: "readers-batches",
        clients: 3,
        roles: READERS,
        horizon: 3,
        messages: 2,
        attempts: 1,
        batch: 1,
        longest_stall: 0,
        slow_answers: false,
        faults: Faults { timeouts: 1, ..NONE },
        ..BASE
    },
    // Releases are answered before a majority has them, and are rolled back.
    Config {
        name: "readers-early",
        clients: 3,
        roles: READERS,
        horizon: 3,
        ttl: 2,
        messages: 1,
        attempts: 1,
        early_releases: true,
        slow_answers: false,
        faults: Faults { failovers: 1, ..NONE },
        ..BASE
    },
    // Two readers beside a process of the older format. An older program force-releases.
    Config {
        name: "old-format",
        clients: 3,
        roles: [Role::SHARED, Role::SHARED, Role::OLD],
        horizon: 4,
        renewals: 1,
        cancel: true,
        slow_requests: false,
        slow_answers: false,
        faults: Faults { forces: 1, ..NONE },
        ..BASE
    },
];
