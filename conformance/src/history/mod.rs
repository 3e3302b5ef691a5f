//! Recorded histories, and what they must not contain.
//!
//! A history is a list of [`Call`]s by one monotonic clock, each a closed interval from the question to the answer; a call without
//! an answer stays open. Two judges look at it:
//!
//! * the **interval checks**: a client held a lock *for certain* from the moment the grant had returned until the moment before it
//!   released, or until its guard was last valid. Such holds lie inside those at the store, so two that overlap prove a broken exclusion (C1), and their order is
//!   the store's order of the grants, in which tokens must increase (C5). From the question of an acquisition until the answer to its release a
//!   client *may* have held the lock; who hears "busy" when nobody may have held it was told a lie.
//! * the **linearizability checker**: is there one order of all calls, each at a moment within its interval, in which a
//!   lock – free, or held under a token – would have answered all of them as they were answered?
//!
//! What cannot be decided, and what proves nothing for lack of grants or contention, is a [`Violation`] as well.

mod call;
mod intervals;
mod linear;
mod micros;
#[cfg(test)]
mod tests;
mod violation;

pub(crate) use call::by_key;
pub use call::{Call, End, What};
pub use intervals::Expected;
pub use violation::Violation;

/// Everything that is wrong with a history: first what the intervals show, the worst first, then what is not linearizable.
///
/// It is a pure function: calls in any order in, violations out.
#[must_use]
pub fn violations(calls: &[Call], expected: Expected) -> Vec<Violation> {
    let mut found = intervals::violations(calls);
    for of_key in by_key(calls) {
        found.extend(linear::violation(&of_key, linear::STEPS));
    }
    found.extend(intervals::too_little(calls, expected));
    found
}
