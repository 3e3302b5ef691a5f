//! The leases that checks request.

use std::time::Duration;

use distlock_api::{AcquireOptions, LeaseOptions, RenewalPolicy};

/// A ttl that is longer than any check.
pub(crate) const LONG: Duration = Duration::from_secs(120);

/// Returns options for a lease of this ttl that is renewed as usual.
pub(crate) fn renewed(ttl: Duration) -> AcquireOptions {
    AcquireOptions::new().with_lease(LeaseOptions::new().ttl(ttl))
}

/// Returns options for a lease of this ttl that is renewed once per interval.
pub(crate) fn renewed_every(ttl: Duration, interval: Duration) -> AcquireOptions {
    let lease = LeaseOptions::new().ttl(ttl).renewal(RenewalPolicy::Every(interval));
    AcquireOptions::new().with_lease(lease)
}

/// Returns options for a lease of this ttl that is never renewed.
pub(crate) fn unrenewed(ttl: Duration) -> AcquireOptions {
    AcquireOptions::new().with_lease(LeaseOptions::new().ttl(ttl).renewal(RenewalPolicy::Never))
}

/// Returns how long a guard without renewal is valid. Its holder gives the lease back when the
/// margin begins.
pub(crate) fn validity(ttl: Duration) -> Duration {
    let terms = LeaseOptions::new().ttl(ttl).terms().expect("a valid ttl");
    terms.ttl - terms.margin
}
