//! What all configurations have unless they say otherwise.

use crate::config::{Config, Faults};
use crate::modes::Role;
use crate::rules::Rules;

/// No faults.
pub(super) const NONE: Faults = Faults {
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

/// Two processes that acquire exclusively, once each, without faults.
pub(super) const BASE: Config = Config {
    name: "",
    rules: Rules::ALL,
    clients: 2,
    roles: [Role::EXCLUSIVE; 3],
    symmetric: true,
    acquisitions: 1,
    horizon: 5,
    messages: 3,
    slow_requests: true,
    slow_answers: true,
    attempts: 2,
    batch: 0,
    limit: 0,
    early_releases: false,
    longest_stall: 100,
    renewals: 0,
    refreshes: 0,
    cancel: false,
    gives_up: false,
    ttl: 3,
    claim: 2,
    ticket_ttl: 6,
    window: 1,
    margin: 0,
    grace: 3,
    hold: 0,
    tokens_per_tick: 16,
    block: 1,
    faults: NONE,
};
