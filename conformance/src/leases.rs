//! The leases that checks ask for.

use std::time::Duration;

use distlock_api::{AcquireOptions, LeaseOptions, RenewalPolicy};

/// A ttl that no check outlives.
pub(crate) const LONG: Duration = Duration::from_secs(120);

/// A lease of this ttl that is renewed as usual.
pub(crate) fn renewed(ttl: Duration) -> AcquireOptions {
    AcquireOptions::new().with_lease(LeaseOptions::new().ttl(ttl))
}

/// A lease of this ttl that is renewed once per interval.
pub(crate) fn renewed_every(ttl: Duration, interval: Duration) -> AcquireOptions {
    let lease = LeaseOptions::new().ttl(ttl).renewal(RenewalPolicy::Every(interval));
    AcquireOptions::new().with_lease(lease)
}

/// A lease of this ttl that is never renewed.
pub(crate) fn unrenewed(ttl: Duration) -> AcquireOptions {
    AcquireOptions::new().with_lease(LeaseOptions::new().ttl(ttl).renewal(RenewalPolicy::Never))
}

/// How long such a guard is valid: its holder may, and does, give an unrenewed lease back when the margin begins.
pub(crate) fn validity(ttl: Duration) -> Duration {
    let terms = LeaseOptions::new().ttl(ttl).terms().expect("a valid ttl");
    terms.ttl - terms.margin
}
