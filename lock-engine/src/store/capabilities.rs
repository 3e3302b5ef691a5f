//! The optional abilities of a store in its three requests.

use std::time::Duration;

use distlock_api::{LeaseOptions, LeaseTerms, LockError, Result};

/// The optional abilities of a store in the three requests, beyond exclusive leases with one token.
/// By default nothing.
///
/// # Modes
/// A store that declares [`shared`](Self::shared) or
/// [`permits`](Self::permits) gets claims with another [`mode`](super::Claim::mode) than
/// exclusive. A key may then have several *holders*: live leases of different claims, each with its
/// own tokens and expiry. What the requests say of *the* lease of a claim is said of its own.
///
/// * A claim that holds nothing is granted beside holders only if no ticket is before it, and its
///   mode [fits](distlock_api::Mode::fits) them ([C26], [C27], [C28]).
/// * When a claim gives up its lease, or leaves the queue while others hold the key, the first
///   tickets are granted one after the other. This continues as long as the mode of the next one
///   fits. All are granted in the same step, with tokens in the order of the queue, one
///   [`Granted`](super::StoreEvent::Granted) each.
/// * `holder_remaining` of a busy answer is the time until the first holder's lease ends: the
///   others may have been given up by then ([C29]). If only tickets are ahead, it counts the turn
///   windows alone.
/// * A renewal changes the lease of its claim and no other ([C29]).
/// * With a minimum hold, the lease of a claim that is not exclusive stays until then, without its
///   claim: others that fit are granted beside it ([C25]).
///
/// [C25]: distlock_api::contract#c25
/// [C26]: distlock_api::contract#c26
/// [C27]: distlock_api::contract#c27
/// [C28]: distlock_api::contract#c28
/// [C29]: distlock_api::contract#c29
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoreCapabilities {
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
    /// The shortest ttl that is of use with this store: far above the usual time of a request. A
    /// lease that ends sooner is never held, because its answer comes too late, and a caller that
    /// waits would ask for ever. Shorter ones are refused before any I/O. Defaults to
    /// [`LeaseOptions::MIN_TTL`].
    pub min_ttl: Duration,
}

impl Default for StoreCapabilities {
    fn default() -> Self {
        Self {
            token_blocks: false,
            minimum_hold: false,
            ordered_claims: false,
            shared: false,
            permits: false,
            min_ttl: LeaseOptions::MIN_TTL,
        }
    }
}

impl StoreCapabilities {
    /// Checks lease terms by [`min_ttl`](Self::min_ttl). `store` is its name. The engine checks
    /// each acquisition; this is for styles that send other requests before.
    ///
    /// # Errors
    /// [`InvalidOptions`](distlock_api::ErrorKind::InvalidOptions) for:
    ///
    /// * a ttl below the shortest one;
    /// * a safety margin that leaves less than half of the shortest ttl;
    /// * a renewal interval that leaves less than a tenth of it for the answer to a renewal.
    pub fn check_terms(&self, store: &str, terms: &LeaseTerms) -> Result<()> {
        let LeaseTerms { ttl, margin, renew_every, .. } = *terms;
        let floor = self.min_ttl;
        let refuse = |what: String, change: &str| {
            Err(LockError::invalid_options(format!(
                "{what}, and the store {store} may take longer to answer: its shortest ttl is {floor:?}. {change}; a \
                 test may lower that with `min_ttl` on the builder of the store"
            )))
        };
        if ttl < floor {
            return refuse(format!("a lease would end after its ttl of {ttl:?}"), "Raise the ttl");
        }
        let held = ttl.saturating_sub(margin);
        if held < floor / 2 {
            let what = format!("a safety margin of {margin:?} leaves {held:?} of the ttl ({ttl:?})");
            return refuse(what, "Lower the margin or raise the ttl");
        }
        if let Some(cadence) = renew_every
            && held.saturating_sub(cadence) < floor / 10
        {
            let left = held.saturating_sub(cadence);
            let what = format!("a renewal interval of {cadence:?} leaves {left:?} for the answer to a renewal");
            return refuse(what, "Lower the interval or raise the ttl");
        }
        Ok(())
    }
}
