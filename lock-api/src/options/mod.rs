//! The options of an acquisition, and the terms of its lease.

mod acquire;
mod lease;

pub use self::acquire::{AcquireOptions, Wait};
pub use self::lease::{LeaseOptions, LeaseTerms, RenewalPolicy};
