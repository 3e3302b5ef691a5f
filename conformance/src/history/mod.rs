//! Recorded histories of calls, and the judges that find violations in them.
//!
//! A history is a list of [`Call`]s by one monotonic clock. Each is a closed interval from the
//! request to the answer; a call without an answer stays open. There are two judges:
//!
//! * The **interval checks**. A client held a lock *for certain* from the moment the grant returned
//!   until the moment before the release, or until its guard was last valid. Such holds lie inside
//!   those at the store. So two that overlap prove a broken exclusion (C1), and their order is the
//!   store's order of grants, in which tokens must increase (C5). A client *may* have held the lock
//!   from the request of an acquisition until the answer to its release. An answer "busy" while no
//!   client may have held the lock is wrong.
//! * The **linearizability checker**. It searches for one order of all calls, each at a moment
//!   within its interval. In this order a lock – free, or held under a token – would have given all
//!   the recorded answers.
//!
//! Clients that share a key, or have permits of it, may hold it together: a hold is a violation
//! only if its mode does not fit beside the others. Guards of one client may share a lease and its
//! block of tokens. So the tokens of shared guards have no order among each other, as long as a
//! client holds the key. Their order to the tokens of all other modes is the order of the grants.
//!
//! A history that cannot be decided, or that proves nothing for lack of grants or contention, is a
//! [`Violation`] as well.
//!
//! ```
//! use std::time::Duration;
//! use distlock_api::Mode;
//! use distlock_conformance::history::{Call, End, Expected, Violation, CallKind, violations};
//!
//! let held = |client, token, from, until| Call {
//!     client,
//!     key: "orders/4711".to_owned(),
//!     asked: Duration::from_millis(from),
//!     answered: Some(Duration::from_millis(from)),
//!     queued: None,
//!     mode: Mode::Exclusive,
//!     what: CallKind::Granted { token, until: Duration::from_millis(until), end: End::Lost },
//! };
//! let found = violations(&[held(1, 1, 0, 20), held(2, 2, 10, 30)], Expected::default());
//! assert!(matches!(found[0], Violation::Overlap(_)));
//! ```

mod call;
mod intervals;
mod linear;
mod micros;
mod modes;
#[cfg(test)]
mod tests;
mod violation;

pub(crate) use call::by_key;
pub use call::{Call, CallKind, End};
pub use intervals::Expected;
use linear::Answers;
pub use violation::Violation;

/// Returns all violations of a history: first those of the intervals, the worst first, then those
/// of linearizability.
///
/// A pure function. The calls may be in any order.
#[must_use]
pub fn violations(calls: &[Call], expected: Expected) -> Vec<Violation> {
    all_violations(calls, Answers::Known, expected)
}

/// The same of a history in which the outcome of requests to the store may have been unknown.
///
/// A call that waits may then have held the lock before its grant, for a moment: its first claim
/// was granted without an answer, and withdrawn. So a "busy" proves nothing while such a call is
/// pending.
#[must_use]
pub fn violations_amid_faults(calls: &[Call], expected: Expected) -> Vec<Violation> {
    all_violations(calls, Answers::Uncertain, expected)
}

fn all_violations(calls: &[Call], answers: Answers, expected: Expected) -> Vec<Violation> {
    let mut found = intervals::violations(calls);
    for of_key in by_key(calls) {
        found.extend(linear::violation(&of_key, answers, linear::STEPS));
    }
    found.extend(intervals::too_little(calls, expected));
    found
}
