//! The decisions of the engine, without I/O.
//!
//! | file | what it decides |
//! |---|---|
//! | `local_queue` | which caller of this process may request a key from the store, and which gets a lease that is handed on |
//! | `wait` | what an acquisition does next after each answer, event and timer |
//! | `claim` | what is known of a claim that is pending or waits in the store's queue |
//! | `lease` | the life of one lease: held, committing, releasing, ended, lost; and its deadline |
//! | `sharing` | which readers of this process share one lease |
//! | `blocks` | how many tokens a lease asks for |
//! | `reading_pause` | how long a waiter in the store's queue pauses before it reads events |
//! | `recent_keys` | a bounded table of values for recent keys |
//! | `repeats` | how often a failure is told that happens again and again |
//! | `ledger` | which leases are alive, when each is due (`renewal_succeeded`, `renewal_failed`), and the accounting |
//! | `schedule` | the due times of one lease or ticket |
//! | `batch` | which of the due leases and tickets are renewed in one call |
//! | `hand_off` | how long a lease is handed on within the process |
//! | `time` | one reading of the clocks: the time is an argument everywhere here |
//! | `backoff` | how long to wait before the next attempt |

pub(crate) mod backoff;
pub(crate) mod batch;
pub(crate) mod blocks;
pub(crate) mod claim;
pub(crate) mod hand_off;
pub(crate) mod lease;
pub(crate) mod ledger;
pub(crate) mod local_queue;
pub(crate) mod reading_pause;
pub(crate) mod recent_keys;
pub(crate) mod repeats;
pub(crate) mod schedule;
pub(crate) mod sharing;
pub(crate) mod time;
pub(crate) mod wait;
