//! Optional capabilities of a store.

use std::num::NonZeroUsize;

/// What a store can do beyond the required methods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoreCapabilities {
    /// Keeps tickets, and grants in their order ([C15]).
    ///
    /// [C15]: distlock_api::contract#c15
    pub queue: bool,
    /// Supports [`LeaseStore::subscribe`](super::LeaseStore::subscribe).
    pub push: bool,
    /// Grants blocks of more than one token for in-process hand-off.
    pub token_blocks: bool,
    /// Supports [`Release::hold_at_least`](super::Release::hold_at_least) ([C25]).
    ///
    /// [C25]: distlock_api::contract#c25
    pub minimum_hold: bool,
    /// Once a later call of the same claim has been answered, even with "busy", a call that was
    /// given up can no longer take effect. A store that carries out its calls one after the other,
    /// in the order in which they were made, has this without effort. Without it the engine never
    /// uses a claim again after a call of unknown outcome: it cleans the claim up and starts with a
    /// new id.
    pub ordered_claims: bool,
    /// Has [`Mode::Shared`](distlock_api::Mode::Shared) ([C26]).
    ///
    /// [C26]: distlock_api::contract#c26
    pub shared: bool,
    /// Has [`Mode::Permits`](distlock_api::Mode::Permits) ([C27]).
    ///
    /// [C27]: distlock_api::contract#c27
    pub permits: bool,
    /// How many renewals one [`LeaseStore::renew_many`](super::LeaseStore::renew_many) may carry.
    /// Defaults to 100.
    pub renew_batch: NonZeroUsize,
    /// How many attempts one [`LeaseStore::try_acquire_many`](super::LeaseStore::try_acquire_many)
    /// may carry, and how many releases one
    /// [`LeaseStore::release_many`](super::LeaseStore::release_many). Defaults to 1: the engine
    /// never sends them together.
    pub acquire_batch: NonZeroUsize,
}

impl Default for StoreCapabilities {
    fn default() -> Self {
        Self {
            queue: false,
            push: false,
            token_blocks: false,
            minimum_hold: false,
            ordered_claims: false,
            shared: false,
            permits: false,
            renew_batch: NonZeroUsize::new(100).expect("not zero"),
            acquire_batch: NonZeroUsize::MIN,
        }
    }
}
