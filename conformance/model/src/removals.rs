//! Which property fails without which guard.

use crate::config::Config;
use crate::configs;
use crate::rules::{Guard, Property, Rules};
use crate::search::{Limits, Progress, Report, explore};

/// A guard, the small configuration that shows its purpose, and the property that fails without it.
#[derive(Clone, Copy, Debug)]
pub struct Removal {
    /// The removed guard.
    pub guard: Guard,
    /// The configuration that shows it.
    pub config: &'static str,
    /// The property that fails.
    pub property: Property,
}

const fn removal(guard: Guard, config: &'static str, property: Property) -> Removal {
    Removal { guard, config, property }
}

/// The removal of every guard.
pub const REMOVALS: [Removal; 61] = [
    removal(Guard::SentInstant, "renewals", Property::Exclusion),
    removal(Guard::ExtendMax, "stalls", Property::Exclusion),
    removal(Guard::Margin, "failover", Property::Exclusion),
    removal(Guard::TokenStrict, "lost", Property::Tokens),
    removal(Guard::TokenClock, "purge", Property::Tokens),
    removal(Guard::PurgeGrace, "purge", Property::Tokens),
    removal(Guard::TokenTime, "outrun", Property::Tokens),
    removal(Guard::FreeIfAbsent, "stalls", Property::Truth),
    removal(Guard::FreeIfExpired, "queue", Property::LostWaiter),
    removal(Guard::AlreadyHeld, "lost", Property::Truth),
    removal(Guard::HeldUnexpired, "queue", Property::Tokens),
    removal(Guard::Turns, "queue", Property::Order),
    removal(Guard::Marker, "repeated", Property::Truth),
    removal(Guard::LateGrant, "lost", Property::Exclusion),
    removal(Guard::FreshId, "purge", Property::Truth),
    removal(Guard::Session, "given-up", Property::Orphan),
    removal(Guard::Withdraw, "given-up", Property::Orphan),
    removal(Guard::CleanUpLife, "clean-up", Property::Orphan),
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
    removal(Guard::ReleaseAfterLoss, "renewals", Property::Orphan),
    removal(Guard::Majority, "failover", Property::Exclusion),
    removal(Guard::Unknown, "lost", Property::Orphan),
    removal(Guard::Anchor, "passing", Property::Exclusion),
    removal(Guard::AnchorToken, "forced", Property::Exclusion),
    removal(Guard::KeepEvent, "purge", Property::LostGrant),
    removal(Guard::QueryAfterGap, "events", Property::LostGrant),
    removal(Guard::GapIsNotLoss, "events", Property::FalseLoss),
    removal(Guard::LossToken, "queue", Property::FalseLoss),
    removal(Guard::NextToken, "hand-off", Property::Tokens),
    removal(Guard::NotWhileReleasing, "hand-off", Property::Exclusion),
    removal(Guard::NotWhenLost, "hand-off", Property::Exclusion),
    removal(Guard::LastUsed, "outrun", Property::Tokens),
    removal(Guard::LastReader, "joined", Property::Exclusion),
    removal(Guard::HoldMajority, "early", Property::MinimumHold),
    removal(Guard::BatchBound, "batches", Property::Orphan),
    removal(Guard::BatchToken, "batches", Property::Tokens),
    removal(Guard::BatchGivenUp, "batches", Property::Orphan),
    removal(Guard::BatchSettled, "batches", Property::Orphan),
    removal(Guard::SharedMarker, "old-format", Property::Exclusion),
    removal(Guard::Leftover, "old-format", Property::Exclusion),
    removal(Guard::LatestExpiry, "readers", Property::Exclusion),
    removal(Guard::ToldExpiry, "permits-all", Property::Exclusion),
    removal(Guard::NoOvertaking, "readers", Property::Order),
    removal(Guard::Fits, "permits", Property::Exclusion),
    removal(Guard::RunFits, "readers", Property::Exclusion),
    removal(Guard::WholeRun, "readers", Property::Together),
    removal(Guard::HolderToken, "reader-forced", Property::Forced),
    removal(Guard::HolderOnly, "readers", Property::OwnExpiry),
    removal(Guard::LatestBlock, "joined", Property::Tokens),
    removal(Guard::AttemptBound, "frozen", Property::Orphan),
    removal(Guard::RenewalBound, "frozen", Property::Orphan),
    removal(Guard::RefreshBound, "frozen", Property::Orphan),
];

/// The parts of rules that the model cannot show to be needed: the rule, and the part with the
/// reason.
pub const UNSEEN: [(u8, &str); 10] = [
    (
        2,
        "an operation reads the clocks when it starts: the server always does this, and so does every operation of the model; `maxTimeMS` bounds how long an operation stalls, and the horizon does so in the model",
    ),
    (
        8,
        "dead tickets are skipped: without that a successor loses a window or a claim for each, and is still granted the key",
    ),
    (
        12,
        "a release grants to the first waiter: without that waiters send attempts when the lease would have expired; the rule saves time and writes of a hand-over",
    ),
    (12, "the block has the length of the head's ticket: for all properties of the model any length is as good"),
    (
        14,
        "batches, `matchedCount`, and the query for the missing ones: a renewal of the model is of one lease, and its answer is true",
    ),
    (
        16,
        "the token increases with a force-release: that of the next grant is greater anyway; the rule lets the resource fence off the victim at once",
    ),
    (
        18,
        "a busy answer contains the first token of a block, not the last: with the last one a grant that follows a quick release does not count as newer, and the waiter sends an attempt instead",
    ),
    (19, "the keeper renews to the full ttl in the background: the claim alone is as safe, and shorter"),
    (
        21,
        "the next local attempt starts after the release has ended: a process of the model has one acquisition at a time",
    ),
    (22, "documents that are not records: the model has one key, and only records"),
];

impl Removal {
    /// Returns the removal of a guard.
    #[must_use]
    pub fn of(guard: Guard) -> Option<Self> {
        REMOVALS.into_iter().find(|removal| removal.guard == guard)
    }

    /// Returns the configuration without the guard.
    /// # Panics
    /// The table names a configuration that does not exist.
    #[must_use]
    pub fn config(&self) -> Config {
        let config = configs::small(self.config).expect("the table names small configurations");
        Config { rules: Rules::ALL.without(self.guard), ..config }
    }

    /// Searches for the violation.
    pub fn search(&self, report: impl FnMut(&Progress)) -> Report {
        explore(&self.config(), Some(self.property), Limits::default(), report)
    }
}
