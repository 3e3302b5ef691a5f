//! What is too large for every run.

use super::base::{BASE, NONE};
use crate::config::{Config, Faults};
use crate::state::MESSAGES;

/// Too large for a run of moderate length: bounded by states or time.
pub(super) const ONLY_LARGE: [Config; 3] = [
    Config {
        name: "three",
        clients: 3,
        messages: 3,
        renewals: 1,
        cancel: true,
        slow_answers: false,
        faults: Faults { drops: 1, timeouts: 1, crashes: 1, ..NONE },
        ..BASE
    },
    Config {
        name: "three-events",
        clients: 3,
        horizon: 6,
        refreshes: 1,
        cancel: true,
        slow_requests: false,
        faults: Faults { breaks: 1, forces: 1, crashes: 1, ..NONE },
        ..BASE
    },
    Config {
        name: "everything",
        acquisitions: 2,
        horizon: 6,
        margin: 1,
        block: 2,
        renewals: 1,
        refreshes: 1,
        cancel: true,
        faults: Faults {
            drops: 1,
            repeats: 1,
            timeouts: 1,
            stalls: 1,
            crashes: 1,
            breaks: 1,
            forces: 1,
            failovers: 1,
            skew: 1,
            // Together with stalls a tick of grace would have to be longer than any operation may
            // take.
            purges: 0,
        },
        ..BASE
    },
];

impl Config {
    /// Returns the configuration with one more tick, attempt, message and fault of each kind.
    pub(super) fn larger(&self) -> Self {
        let more = |budget: u8| budget + u8::from(budget > 0);
        let Faults { drops, repeats, timeouts, stalls, crashes, breaks, forces, failovers, skew, purges } = self.faults;
        Self {
            horizon: self.horizon + 1,
            attempts: self.attempts + 1,
            messages: (self.messages + 1).min(MESSAGES as u8),
            faults: Faults {
                drops: more(drops),
                repeats: more(repeats),
                timeouts: more(timeouts),
                stalls: more(stalls),
                crashes: more(crashes),
                breaks: more(breaks),
                forces: more(forces),
                failovers: more(failovers),
                skew,
                purges: more(purges),
            },
            ..*self
        }
    }
}
