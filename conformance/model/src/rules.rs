//! The rules as switches, and what falls when one of them is off.

use std::fmt;

/// What the protocol promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Property {
    /// C1, C3: two processes are never certain of one key at the same time.
    Exclusion,
    /// C5, R21: tokens strictly increase in commit order, also across purge, and from guard to guard.
    Tokens,
    /// C16: without further faults every live waiter is granted the key in bounded time.
    LostWaiter,
    /// A lease that was passed on to a live waiter is taken up before it expires, without further faults.
    LostGrant,
    /// C11: no lease and no place of an acquisition that nobody works for any more.
    Orphan,
    /// C15: nobody gets the key ahead of those who have waited longer and are alive, but for the windows of R8.
    Order,
    /// C9, C10: "busy" only if somebody else may have it, and a repeated release is recognised.
    Truth,
    /// C25: nothing is granted while a minimum hold lasts.
    MinimumHold,
    /// C22: who was force-released is not renewed, and hears of it.
    Forced,
    /// C13: a lease that is the process's own by the record is not given up as lost.
    FalseLoss,
}

/// One thing that a rule demands, and that can be switched off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Guard {
    /// R1: deadlines count from before the request was sent.
    SentInstant,
    /// R3: an extension never shortens.
    ExtendMax,
    /// R4: the margin covers what the servers' clocks differ by.
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
    /// R8: who holds the lease already is told so.
    MineAlready,
    /// R8: an expired lease is not "mine already".
    MineUnexpired,
    /// R8: position × window, for newcomers too.
    Turns,
    /// R9: an answer without the marker is none.
    Marker,
    /// R10: a grant that comes too late is not handed on.
    LateGrant,
    /// R11: an id is never used again.
    FreshId,
    /// R11: the session refuses what comes after its successor.
    Session,
    /// R11: a cancelled attempt is let finish, then withdrawn.
    Withdraw,
    /// R12: a release is by id.
    ReleaseById,
    /// R12: a release frees an expired lease as well.
    ReleaseExpired,
    /// R12: leaving takes the own ticket along.
    LeaveQueue,
    /// R12: a repeated release is recognised.
    Released,
    /// R13: no grant before `closedUntil`.
    Closed,
    /// R14: a renewal is of an id.
    RenewById,
    /// R14: a renewal is of a token.
    RenewToken,
    /// R14: an expired lease is not renewed.
    RenewUnexpired,
    /// R15: a refresh adds no ticket.
    RefreshOnly,
    /// R16: a force-release names its victim in `revoked`.
    Revoked,
    /// R16: who loses a lease releases it.
    Farewell,
    /// R17: only majority-acknowledged answers count.
    Majority,
    /// R17: no answer is no refusal.
    Unknown,
    /// R18: the deadline of a pushed grant is a difference of two readings of the server's clock.
    Anchor,
    /// R18: an event of an older grant does not count.
    AnchorToken,
    /// R19: an event that precedes the first answer is kept.
    KeepEvent,
    /// R20: after a gap everybody asks.
    GapAsks,
    /// R20: a gap is no loss.
    GapIsNoLoss,
    /// R20: what tells a loss counts only if its token is greater than the guard's.
    LossToken,
    /// R21: every guard has the next token of the block.
    NextToken,
    /// R21: once its release was sent a lease is not handed on.
    NotWhileReleasing,
    /// R21: a lost lease is not handed on.
    NotWhenLost,
    /// R21: a release gives back no token that a guard has had.
    LastUsed,
}

impl Guard {
    /// All of them, in the order of the rules.
    pub const ALL: [Self; 40] = [
        Self::SentInstant,
        Self::ExtendMax,
        Self::Margin,
        Self::TokenStrict,
        Self::TokenClock,
        Self::PurgeGrace,
        Self::TokenTime,
        Self::FreeIfAbsent,
        Self::FreeIfExpired,
        Self::MineAlready,
        Self::MineUnexpired,
        Self::Turns,
        Self::Marker,
        Self::LateGrant,
        Self::FreshId,
        Self::Session,
        Self::Withdraw,
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
        Self::Farewell,
        Self::Majority,
        Self::Unknown,
        Self::Anchor,
        Self::AnchorToken,
        Self::KeepEvent,
        Self::GapAsks,
        Self::GapIsNoLoss,
        Self::LossToken,
        Self::NextToken,
        Self::NotWhileReleasing,
        Self::NotWhenLost,
        Self::LastUsed,
    ];

    /// The number of the rule.
    #[must_use]
    pub const fn rule(self) -> u8 {
        match self {
            Self::SentInstant => 1,
            Self::ExtendMax => 3,
            Self::Margin => 4,
            Self::TokenStrict | Self::TokenClock => 5,
            Self::PurgeGrace | Self::TokenTime => 6,
            Self::FreeIfAbsent | Self::FreeIfExpired => 7,
            Self::MineAlready | Self::MineUnexpired | Self::Turns => 8,
            Self::Marker => 9,
            Self::LateGrant => 10,
            Self::FreshId | Self::Session | Self::Withdraw => 11,
            Self::ReleaseById | Self::ReleaseExpired | Self::LeaveQueue | Self::Released => 12,
            Self::Closed => 13,
            Self::RenewById | Self::RenewToken | Self::RenewUnexpired => 14,
            Self::RefreshOnly => 15,
            Self::Revoked | Self::Farewell => 16,
            Self::Majority | Self::Unknown => 17,
            Self::Anchor | Self::AnchorToken => 18,
            Self::KeepEvent => 19,
            Self::GapAsks | Self::GapIsNoLoss | Self::LossToken => 20,
            Self::NextToken | Self::NotWhileReleasing | Self::NotWhenLost | Self::LastUsed => 21,
        }
    }
}

impl fmt::Display for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "R{} {self:?}", self.rule())
    }
}

/// Which guards are on.
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

    /// Whether a guard is on.
    #[must_use]
    pub const fn keep(self, guard: Guard) -> bool {
        self.0 & (1 << guard as u8) != 0
    }
}
