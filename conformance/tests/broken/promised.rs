//! What the backends would promise if nothing were broken.

use distlock_api::Capabilities;

/// Returns what an engine over a `MemoryStore` promises of exclusive locks.
pub(crate) fn exclusive() -> Capabilities {
    let mut promised = Capabilities::default();
    promised.expiry = true;
    promised.minimum_hold = true;
    promised.fair = true;
    promised.push = true;
    promised
}

/// Returns what it promises of all modes.
pub(crate) fn all_modes() -> Capabilities {
    let mut promised = exclusive();
    promised.shared = true;
    promised.permits = true;
    promised
}
