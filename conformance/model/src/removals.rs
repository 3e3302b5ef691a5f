//! Which property falls without which guard.

use crate::config::Config;
use crate::configs;
use crate::rules::{Guard, Property, Rules};
use crate::search::{Limits, Progress, Report, explore};

/// A guard, the small configuration that shows what it is for, and the property that falls without it.
#[derive(Clone, Copy, Debug)]
pub struct Removal {
    /// What is removed.
    pub guard: Guard,
    /// Where that is seen.
    pub config: &'static str,
    /// What falls.
    pub property: Property,
}

const fn removal(guard: Guard, config: &'static str, property: Property) -> Removal {
    Removal { guard, config, property }
}

/// Every guard.
pub const REMOVALS: [Removal; 40] = [
    removal(Guard::SentInstant, "renewals", Property::Exclusion),
    removal(Guard::ExtendMax, "stalls", Property::Exclusion),
    removal(Guard::Margin, "failover", Property::Exclusion),
    removal(Guard::TokenStrict, "lost", Property::Tokens),
    removal(Guard::TokenClock, "purge", Property::Tokens),
    removal(Guard::PurgeGrace, "purge", Property::Tokens),
    removal(Guard::TokenTime, "outrun", Property::Tokens),
    removal(Guard::FreeIfAbsent, "stalls", Property::Truth),
    removal(Guard::FreeIfExpired, "queue", Property::LostWaiter),
    removal(Guard::MineAlready, "lost", Property::Truth),
    removal(Guard::MineUnexpired, "queue", Property::Tokens),
    removal(Guard::Turns, "queue", Property::Order),
    removal(Guard::Marker, "repeated", Property::Truth),
    removal(Guard::LateGrant, "lost", Property::Exclusion),
    removal(Guard::FreshId, "purge", Property::Truth),
    removal(Guard::Session, "given-up", Property::Orphan),
    removal(Guard::Withdraw, "given-up", Property::Orphan),
    removal(Guard::ReleaseById, "queue", Property::Exclusion),
    removal(Guard::ReleaseExpired, "stalls", Property::Orphan),
    removal(Guard::LeaveQueue, "late", Property::Orphan),
    removal(Guard::Released, "lost", Property::Truth),
    removal(Guard::Closed, "hold", Property::MinimumHold),
    removal(Guard::RenewById, "force", Property::Forced),
    removal(Guard::RenewToken, "force", Property::Forced),
    removal(Guard::RenewUnexpired, "renewals", Property::Tokens),
    removal(Guard::RefreshOnly, "refreshes", Property::Orphan),
    removal(Guard::Revoked, "force", Property::Forced),
    removal(Guard::Farewell, "renewals", Property::Orphan),
    removal(Guard::Majority, "failover", Property::Exclusion),
    removal(Guard::Unknown, "lost", Property::Orphan),
    removal(Guard::Anchor, "passing", Property::Exclusion),
    removal(Guard::AnchorToken, "forced", Property::Exclusion),
    removal(Guard::KeepEvent, "purge", Property::LostGrant),
    removal(Guard::GapAsks, "events", Property::LostGrant),
    removal(Guard::GapIsNoLoss, "events", Property::FalseLoss),
    removal(Guard::LossToken, "queue", Property::FalseLoss),
    removal(Guard::NextToken, "hand-off", Property::Tokens),
    removal(Guard::NotWhileReleasing, "hand-off", Property::Exclusion),
    removal(Guard::NotWhenLost, "hand-off", Property::Exclusion),
    removal(Guard::LastUsed, "outrun", Property::Tokens),
];

/// What the model cannot show to be needed, and why: the rule, which part of it, and the reason.
pub const UNSEEN: [(u8, &str); 10] = [
    (
        2,
        "the clocks are fixed when an operation starts: that is what the server does, and every operation of the model does it; `maxTimeMS` bounds how long an operation stalls, which the horizon does",
    ),
    (
        8,
        "dead tickets are passed over: without that a successor loses a window or a claim for each, and is granted all the same",
    ),
    (
        12,
        "a release passes on: without that waiters ask when the lease would have expired; it is for the time of a hand-over and the number of writes",
    ),
    (12, "the block of the head's own length: a block of any length is as good to everything that the model checks"),
    (
        14,
        "batches, `matchedCount`, and the query for the missing ones: a renewal of the model is of one lease, and its answer is the truth",
    ),
    (
        16,
        "the token moves with a force-release: the next grant's is greater anyway; it is for the resource, which can fence off the victim at once",
    ),
    (
        18,
        "\"not yet\" tells the first token of a block, not the last: with the last one a grant that follows a quick release is not taken for a newer one, and the waiter asks instead",
    ),
    (19, "the keeper renews to the full ttl in the background: the claim alone is as safe, and shorter"),
    (
        21,
        "the next local attempt starts after the release has ended: a process of the model has one acquisition at a time",
    ),
    (22, "documents that are no records: the model has one key, and only records"),
];

impl Removal {
    /// The removal of a guard.
    #[must_use]
    pub fn of(guard: Guard) -> Option<Self> {
        REMOVALS.into_iter().find(|removal| removal.guard == guard)
    }

    /// The configuration, without the guard.
    ///
    /// # Panics
    /// If the table names a configuration that does not exist.
    #[must_use]
    pub fn config(&self) -> Config {
        let config = configs::small(self.config).expect("the table names small configurations");
        Config { rules: Rules::ALL.without(self.guard), ..config }
    }

    /// Looks for the violation.
    pub fn search(&self, tell: impl FnMut(&Progress)) -> Report {
        explore(&self.config(), Some(self.property), Limits::default(), tell)
    }
}
