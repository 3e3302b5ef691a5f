//! What a check needs of a backend or its fixture.

/// What a check needs of a backend or its fixture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Need {
    /// Leases expire.
    Expiry,
    /// Leases do **not** expire: the check asserts that.
    NoExpiry,
    /// The minimum hold.
    MinimumHold,
    /// **No** minimum hold: the check asserts the refusal.
    NoMinimumHold,
    /// Shared locks.
    Shared,
    /// **No** shared locks: the check asserts the refusal.
    NoShared,
    /// Permits.
    Permits,
    /// **No** permits: the check asserts the refusal.
    NoPermits,
    /// Work that is done once.
    Once,
    /// Administration.
    Admin,
    /// **No** administration: the check asserts the refusal.
    NoAdmin,
    /// Lists of locks, releases by owner, a history of forced releases.
    Owners,
    /// **None** of these: the check asserts the refusal.
    NoOwners,
    /// A stream of events about locks.
    LockEvents,
    /// **No** such stream: the check asserts the refusal.
    NoLockEvents,
    /// Clients in other processes.
    Processes,
    /// Faults of the requests and events of a client on demand, and their number.
    Faults,
    /// Purging of records on demand.
    Purge,
    /// Grants in the order of the queue.
    Fair,
    /// Grants are pushed to waiters, so that these need not poll.
    Push,
    /// Clients that are separate providers.
    SeparateClients,
    /// The bare store, below the lease engine.
    Store,
    /// A deployment for fault injection.
    Arena,
    /// The server's connections are cut on demand: [`Hook::Cut`](crate::Hook::Cut).
    Cut,
    /// The server stalls on demand: [`Hook::Stall`](crate::Hook::Stall).
    Stall,
    /// Requests are late on demand: [`Hook::Delay`](crate::Hook::Delay).
    Delay,
    /// Each request is a little late on demand: [`Hook::Lag`](crate::Hook::Lag).
    Lag,
    /// Replies are lost on demand: [`Hook::LoseReplies`](crate::Hook::LoseReplies).
    LoseReplies,
    /// The server crashes and starts again on demand: [`Hook::Restart`](crate::Hook::Restart).
    Restart,
    /// A key is blocked at the server on demand: [`Hook::Block`](crate::Hook::Block).
    Block,
}

impl Need {
    /// Whether a check that needs it asserts the refusal of a capability. It does not apply to
    /// backends that have the capability.
    pub(crate) fn is_refusal(self) -> bool {
        matches!(
            self,
            Self::NoExpiry
                | Self::NoMinimumHold
                | Self::NoShared
                | Self::NoPermits
                | Self::NoAdmin
                | Self::NoOwners
                | Self::NoLockEvents
        )
    }

    /// Returns the reason to refuse a check if this is missing.
    pub(crate) fn missing(self) -> &'static str {
        match self {
            Self::Expiry => "leases of this backend do not expire",
            Self::NoExpiry => "leases of this backend expire",
            Self::MinimumHold => "this backend has no minimum hold",
            Self::NoMinimumHold => "this backend has a minimum hold",
            Self::Shared => "this backend has no shared locks",
            Self::NoShared => "this backend has shared locks",
            Self::Permits => "this backend has no permits",
            Self::NoPermits => "this backend has permits",
            Self::Once => "this backend remembers no outcomes of work",
            Self::Admin => "this backend offers no administration",
            Self::NoAdmin => "this backend offers administration",
            Self::Owners => "this backend lists no locks",
            Self::NoOwners => "this backend lists locks",
            Self::LockEvents => "this backend reports no events about locks",
            Self::NoLockEvents => "this backend reports events about locks",
            Self::Processes => "the state of this backend lives in one process",
            Self::Faults => "the fixture injects no faults",
            Self::Purge => "the fixture cannot purge records",
            Self::Fair => "this backend has no queue",
            Self::Push => "this backend pushes nothing to its waiters: they poll",
            Self::SeparateClients => "all clients of this backend are one provider",
            Self::Store => "this fixture does not open the bare store",
            Self::Arena => "the fixture has no deployment for fault injection",
            Self::Cut => "the fixture has no hook that cuts connections",
            Self::Stall => "the fixture has no hook that stalls the server",
            Self::Delay => "the fixture has no hook that delays requests",
            Self::Lag => "the fixture has no hook that makes the network slow",
            Self::LoseReplies => "the fixture has no hook that loses replies",
            Self::Restart => "the fixture has no hook that restarts the server",
            Self::Block => "the fixture has no hook that blocks a key",
        }
    }
}
