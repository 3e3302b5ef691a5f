//! The configurations: each small enough to be explored as a whole, and together all that the protocol has to stand.

use crate::config::{Config, Faults};
use crate::rules::Rules;

const NO_FAULTS: Faults = Faults {
    drops: 0,
    repeats: 0,
    timeouts: 0,
    stalls: 0,
    crashes: 0,
    breaks: 0,
    forces: 0,
    failovers: 0,
    skew: 0,
    purges: 0,
};

const BASE: Config = Config {
    name: "",
    rules: Rules::ALL,
    clients: 2,
    symmetric: true,
    acquisitions: 1,
    horizon: 5,
    messages: 3,
    slow_requests: true,
    slow_answers: true,
    asks: 2,
    renewals: 0,
    refreshes: 0,
    cancel: false,
    ttl: 3,
    claim: 2,
    ticket_ttl: 6,
    window: 1,
    margin: 0,
    grace: 3,
    hold: 0,
    block: 1,
    faults: NO_FAULTS,
};

/// For continuous integration.
pub const SMALL: [Config; 12] = [
    // Lost messages.
    Config { name: "lost", horizon: 4, faults: Faults { drops: 2, ..NO_FAULTS }, ..BASE },
    // Late ones, whose callers give up waiting.
    Config { name: "late", horizon: 3, cancel: true, faults: Faults { timeouts: 1, ..NO_FAULTS }, ..BASE },
    // Repeated messages.
    Config { name: "repeated", acquisitions: 2, asks: 1, horizon: 3, faults: Faults { repeats: 1, timeouts: 1, ..NO_FAULTS }, ..BASE },
    Config { name: "renewals", horizon: 4, renewals: 2, asks: 1, faults: Faults { drops: 1, ..NO_FAULTS }, ..BASE },
    // Operations that stall between reading the clock and writing.
    Config { name: "stalls", renewals: 2, slow_answers: false, faults: Faults { stalls: 1, ..NO_FAULTS }, ..BASE },
    // The stream of events breaks; waiters refresh and leave.
    Config { name: "events", refreshes: 1, cancel: true, slow_requests: false, faults: Faults { breaks: 1, ..NO_FAULTS }, ..BASE },
    // A new primary, whose clock is off, and one that does not know.
    Config { name: "failover", margin: 1, renewals: 1, horizon: 4, slow_answers: false, faults: Faults { failovers: 1, skew: 1, ..NO_FAULTS }, ..BASE },
    // Records are removed.
    Config { name: "purge", acquisitions: 2, block: 2, slow_requests: false, faults: Faults { purges: 1, ..NO_FAULTS }, ..BASE },
    // Leases are taken away.
    Config { name: "force", renewals: 1, asks: 2, slow_answers: false, faults: Faults { forces: 1, ..NO_FAULTS }, ..BASE },
    // Leases go from task to task of one process.
    Config { name: "hand-off", block: 3, renewals: 1, acquisitions: 2, horizon: 4, slow_answers: false, faults: Faults { timeouts: 1, ..NO_FAULTS }, ..BASE },
    // Three in the queue, one of which dies.
    Config { name: "queue", clients: 3, slow_requests: false, slow_answers: false, faults: Faults { crashes: 1, ..NO_FAULTS }, ..BASE },
    // A minimum hold.
    Config { name: "hold", symmetric: false, hold: 4, horizon: 6, slow_answers: false, faults: Faults { timeouts: 1, ..NO_FAULTS }, ..BASE },
];
