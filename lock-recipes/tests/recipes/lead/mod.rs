//! Leadership in memory, with paused time, by clause. The conformance suite checks the same clauses
//! in real time, on every backend.

mod candidates;
mod errors;
mod kit;
mod observers;
#[cfg(feature = "metrics")]
mod reports;
