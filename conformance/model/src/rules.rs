//! The rules as switches, and the properties that fail without them.

use std::fmt;

/// A property that the protocol guarantees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Property {
    /// C1, C3, C26, C27: two processes are never certain of one key at the same time, unless their
    /// modes allow it. The leases of a record may always be held together.
    Exclusion,
    /// C5, R21: tokens strictly increase in commit order, even across a purge, and from guard to
    /// guard.
    Tokens,
    /// C16: without further faults every live waiter is granted the key in bounded time.
    LostWaiter,
    /// Without further faults, a lease that was granted by a release to a live waiter is accepted
    /// before it expires.
    LostGrant,
    /// C11: the record has no lease and no ticket of an acquisition that has ended.
    Orphan,
    /// C15: no acquisition is granted the key ahead of an older live ticket, except by the windows
    /// of R8.
    Order,
    /// C9, C10: "busy" only if another acquisition may have the key, and a repeated release is
    /// recognised.
    Truth,
    /// C25: nothing is granted while a minimum hold lasts.
    MinimumHold,
    /// C22: the victim of a force-release is not renewed, and receives the event.
    Forced,
    /// C13: a process does not give up as lost a lease that the record assigns to it.
    FalseLoss,
    /// C28: a release that makes room grants the key, in one step, to all at the head of the queue
    /// that fit together.
    Together,
    /// C29: no other acquisition changes when the lease of one of several holders expires.
    OwnExpiry,
}

/// One requirement of a rule, which can be switched off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Guard {
    /// R1: deadlines count from before the request was sent.
    SentInstant,
    /// R3: an extension never shortens.
    ExtendMax,
    /// R4: the margin covers the difference of the servers' clocks.
    Margin,
    /// R5: a token is greater than the record's.
    TokenStrict,
    /// R5: a token is not less than the cluster's clock.
    TokenClock,
    /// R6: records outlive their leases by a grace.
    PurgeGrace,
    /// R6: a released record is kept until the clock has reached its token.
    TokenTime,
    /// R7: a record without a holder is free, whatever its expiry says.
    FreeIfAbsent,
    /// R7: an expired lease is free.
    FreeIfExpired,
    /// R8: an attempt of the present holder is granted.
    AlreadyHeld,
    /// R8: an expired lease does not count as already held.
    HeldUnexpired,
    /// R8: position × window, for newcomers too.
    Turns,
    /// R9: an answer without the marker does not count.
    Marker,
    /// R10: a late grant is not returned to the caller.
    LateGrant,
    /// R11: an id is never used again.
    FreshId,
    /// R11: the session refuses what comes after its successor.
    Session,
    /// R11: a cancelled attempt finishes first, and is then withdrawn.
    Withdraw,
    /// R11: a clean-up is repeated until what it removes has ended by itself.
    CleanUpLife,
    /// R12: a release is by id.
    ReleaseById,
    /// R12: a release frees an expired lease as well.
    ReleaseExpired,
    /// R12: leaving removes the own ticket.
    LeaveQueue,
    /// R12: a repeated release is recognised.
    Released,
    /// R13: no grant before `closedUntil`.
    Closed,
    /// R14: a renewal is by id.
    RenewById,
    /// R14: a renewal is by token.
    RenewToken,
    /// R14: an expired lease is not renewed.
    RenewUnexpired,
    /// R15: a refresh adds no ticket.
    RefreshOnly,
    /// R16: a force-release names its victim in `revoked`.
    Revoked,
    /// R16: after the loss of a lease the process releases it.
    ReleaseAfterLoss,
    /// R17: only majority-acknowledged answers count.
    Majority,
    /// R17: a missing answer is not a refusal.
    Unknown,
    /// R18: the deadline of a pushed grant is a difference of two readings of the server's clock.
    Anchor,
    /// R18: an event of an older grant does not count.
    AnchorToken,
    /// R19: an event that precedes the first answer is kept.
    KeepEvent,
    /// R20: after a gap every process queries the record.
    QueryAfterGap,
    /// R20: a gap is not a loss.
    GapIsNotLoss,
    /// R20: an event of a loss counts only if its token is greater than the guard's.
    LossToken,
    /// R21: every guard has the next token of the block.
    NextToken,
    /// R21: a lease is not handed on after its release was sent.
    NotWhileReleasing,
    /// R21: a lost lease is not handed on.
    NotWhenLost,
    /// R21: a release returns no token that a guard has had.
    LastUsed,
    /// R21: of several readers of one lease, only the last one releases it.
    LastReader,
    /// R23: a release with a minimum hold waits for the majority.
    HoldMajority,
    /// R24: a batch grants nothing from its bound on.
    BatchBound,
    /// R24: a batch grants only keys whose tokens are smaller than its own.
    BatchToken,
    /// R24: an acquisition whose batch is not answered makes no other attempt.
    BatchGivenUp,
    /// R24: it has not ended before it was withdrawn after the bound.
    BatchSettled,
    /// R25: a record with several holders names the marker as its holder.
    SharedMarker,
    /// R25: holders count only beside the marker.
    Leftover,
    /// R26: the expiry of the record is the latest of its holders.
    LatestExpiry,
    /// R26: a holder relies on its own expiry, and not on that of the record.
    ToldExpiry,
    /// R27: beside live holders only the first in the queue is granted the key.
    NoOvertaking,
    /// R27: it is granted only if its mode fits.
    Fits,
    /// R28: a release grants only to those that fit.
    RunFits,
    /// R28: it grants to all at the head that fit together.
    WholeRun,
    /// R29: a renewal of one of several holders is by token.
    HolderToken,
    /// R29: it extends the lease of that holder only.
    HolderOnly,
    /// R30: unused tokens are returned only from the latest block.
    LatestBlock,
    /// R31: an attempt does nothing from its bound on.
    AttemptBound,
    /// R31: a renewal does nothing from its bound on.
    RenewalBound,
    /// R31: a refresh does nothing from its bound on.
    RefreshBound,
}

impl Guard {
    /// All guards, in the order of the rules.
    pub const ALL: [Self; 61] = [
        Self::SentInstant,
        Self::ExtendMax,
        Self::Margin,
        Self::TokenStrict,
        Self::TokenClock,
        Self::PurgeGrace,
        Self::TokenTime,
        Self::FreeIfAbsent,
        Self::FreeIfExpired,
        Self::AlreadyHeld,
        Self::HeldUnexpired,
        Self::Turns,
        Self::Marker,
        Self::LateGrant,
        Self::FreshId,
        Self::Session,
        Self::Withdraw,
        Self::CleanUpLife,
        Self::ReleaseById,
        Self::ReleaseExpired,
        Self::LeaveQueue,
        Self::Released,
        Self::Closed,
        Self::RenewById,
        Self::RenewToken,
        Self::RenewUnexpired,
        Self::RefreshOnly,
        Self::Revoked,
        Self::ReleaseAfterLoss,
        Self::Majority,
        Self::Unknown,
        Self::Anchor,
        Self::AnchorToken,
        Self::KeepEvent,
        Self::QueryAfterGap,
        Self::GapIsNotLoss,
        Self::LossToken,
        Self::NextToken,
        Self::NotWhileReleasing,
        Self::NotWhenLost,
        Self::LastUsed,
        Self::LastReader,
        Self::HoldMajority,
        Self::BatchBound,
        Self::BatchToken,
        Self::BatchGivenUp,
        Self::BatchSettled,
        Self::SharedMarker,
        Self::Leftover,
        Self::LatestExpiry,
        Self::ToldExpiry,
        Self::NoOvertaking,
        Self::Fits,
        Self::RunFits,
        Self::WholeRun,
        Self::HolderToken,
        Self::HolderOnly,
        Self::LatestBlock,
        Self::AttemptBound,
        Self::RenewalBound,
        Self::RefreshBound,
    ];

    /// Returns the number of the rule.
    #[must_use]
    pub const fn rule(self) -> u8 {
        match self {
            Self::SentInstant => 1,
            Self::ExtendMax => 3,
            Self::Margin => 4,
            Self::TokenStrict | Self::TokenClock => 5,
            Self::PurgeGrace | Self::TokenTime => 6,
            Self::FreeIfAbsent | Self::FreeIfExpired => 7,
            Self::AlreadyHeld | Self::HeldUnexpired | Self::Turns => 8,
            Self::Marker => 9,
            Self::LateGrant => 10,
            Self::FreshId | Self::Session | Self::Withdraw | Self::CleanUpLife => 11,
            Self::ReleaseById | Self::ReleaseExpired | Self::LeaveQueue | Self::Released => 12,
            Self::Closed => 13,
            Self::RenewById | Self::RenewToken | Self::RenewUnexpired => 14,
            Self::RefreshOnly => 15,
            Self::Revoked | Self::ReleaseAfterLoss => 16,
            Self::Majority | Self::Unknown => 17,
            Self::Anchor | Self::AnchorToken => 18,
            Self::KeepEvent => 19,
            Self::QueryAfterGap | Self::GapIsNotLoss | Self::LossToken => 20,
            Self::NextToken | Self::NotWhileReleasing | Self::NotWhenLost | Self::LastUsed | Self::LastReader => 21,
            Self::HoldMajority => 23,
            Self::BatchBound | Self::BatchToken | Self::BatchGivenUp | Self::BatchSettled => 24,
            Self::SharedMarker | Self::Leftover => 25,
            Self::LatestExpiry | Self::ToldExpiry => 26,
            Self::NoOvertaking | Self::Fits => 27,
            Self::RunFits | Self::WholeRun => 28,
            Self::HolderToken | Self::HolderOnly => 29,
            Self::LatestBlock => 30,
            Self::AttemptBound | Self::RenewalBound | Self::RefreshBound => 31,
        }
    }
}

impl fmt::Display for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "R{} {self:?}", self.rule())
    }
}

/// The guards that are on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules(u64);

impl Rules {
    /// The protocol.
    pub const ALL: Self = Self(u64::MAX);

    /// The protocol without one guard.
    #[must_use]
    pub const fn without(self, guard: Guard) -> Self {
        Self(self.0 & !(1 << guard as u8))
    }

    /// Returns whether a guard is on.
    #[must_use]
    pub const fn keep(self, guard: Guard) -> bool {
        self.0 & (1 << guard as u8) != 0
    }
}
