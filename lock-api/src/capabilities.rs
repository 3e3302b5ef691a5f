//! The optional promises of a provider.

/// The optional promises of a provider. It refuses an option that it does not promise, and never
/// ignores one silently.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// Leases expire: a holder that died loses the lock after its ttl ([C19]). Without this promise
    /// a lock is held for as long as the process lives.
    ///
    /// [C19]: distlock_api::contract#c19
    pub expiry: bool,
    /// The minimum hold ([C25]).
    ///
    /// [C25]: distlock_api::contract#c25
    pub minimum_hold: bool,
    /// Grants follow the order of the queue ([C15]): within a process the order of the calls,
    /// across processes the order of their tickets.
    ///
    /// [C15]: distlock_api::contract#c15
    pub fair: bool,
    /// The store pushes changes to waiters and holders ([C16], [C17]).
    ///
    /// [C16]: distlock_api::contract#c16
    /// [C17]: distlock_api::contract#c17
    pub push: bool,
    /// [`Mode::Shared`](crate::Mode::Shared) ([C26]).
    ///
    /// [C26]: distlock_api::contract#c26
    pub shared: bool,
    /// [`Mode::Permits`](crate::Mode::Permits) ([C27]).
    ///
    /// [C27]: distlock_api::contract#c27
    pub permits: bool,
}
