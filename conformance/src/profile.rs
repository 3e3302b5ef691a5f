//! What a backend promises to the suite.

use std::time::Duration;

use distlock_api::{Capabilities, LockKey};

use crate::arena::Hook;
use crate::clause::Clause;
use crate::need::Need;

/// What a backend promises.
///
/// What a profile declares must work. What it does not declare must be refused by the backend,
/// where the suite can check that. All other checks of it are *refused by design*: shown with the
/// reason, and counted. Their number must be the declared one, so that no check falls silent
/// unnoticed.
///
/// ```
/// use std::time::Duration;
/// use distlock_api::Capabilities;
/// use distlock_conformance::Profile;
///
/// let mut promised = Capabilities::default();
/// (promised.expiry, promised.fair) = (true, true);
/// let profile = Profile::new(promised).ttl(Duration::from_secs(2)).admin().store().disturbed();
/// # drop(profile);
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct Profile {
    capabilities: Capabilities,
    once: bool,
    admin: bool,
    owners: bool,
    lock_events: bool,
    processes: bool,
    disturbed: bool,
    purge: bool,
    one_provider: bool,
    arena: bool,
    store: bool,
    hooks: Vec<Hook>,
    ttl: Duration,
    longest_key: usize,
    refused: Vec<(&'static str, &'static str)>,
    weaker: Vec<(Clause, &'static str)>,
    expected_refusals: usize,
    variant: bool,
}

impl Profile {
    /// Makes the profile of a backend with exactly these capabilities and nothing else.
    pub fn new(capabilities: Capabilities) -> Self {
        Self {
            capabilities,
            once: false,
            admin: false,
            owners: false,
            lock_events: false,
            processes: false,
            disturbed: false,
            purge: false,
            one_provider: false,
            arena: false,
            store: false,
            hooks: Vec::new(),
            ttl: Duration::from_secs(3),
            longest_key: LockKey::MAX_LEN,
            refused: Vec::new(),
            weaker: Vec::new(),
            expected_refusals: 0,
            variant: false,
        }
    }

    /// Declares that [`Fixture::once_clients`](crate::Fixture::once_clients) works. Without it, the
    /// checks of work that is done once are refused by design.
    pub fn once(mut self) -> Self {
        self.once = true;
        self
    }

    /// Declares that [`LockProvider::admin`](distlock_api::LockProvider::admin) returns an
    /// administration.
    pub fn admin(mut self) -> Self {
        self.admin = true;
        self
    }

    /// Declares that the administration lists locks, releases those of an owner, and records forced
    /// releases.
    pub fn owners(mut self) -> Self {
        self.owners = true;
        self
    }

    /// Declares that the administration reports what happens to locks:
    /// [`LockAdmin::watch`](distlock_api::LockAdmin::watch) works.
    pub fn lock_events(mut self) -> Self {
        self.lock_events = true;
        self
    }

    /// Declares that other processes can be clients: [`Fixture::address`](crate::Fixture::address)
    /// and [`Fixture::connect`](crate::Fixture::connect) work. Some of these clients have a wrong
    /// clock, for which the suite needs `libfaketime`. Set `DISTLOCK_FAKETIME_LIB` to its path, or
    /// enable the crate's feature `faketime`.
    pub fn processes(mut self) -> Self {
        self.processes = true;
        self
    }

    /// Declares that each client has a [`DisturbedStore`](crate::DisturbedStore), which makes its
    /// faults.
    pub fn disturbed(mut self) -> Self {
        self.disturbed = true;
        self
    }

    /// Declares that records can be purged:
    /// [`DisturbedStore::with_purge`](crate::DisturbedStore::with_purge) was called.
    pub fn purge(mut self) -> Self {
        self.purge = true;
        self
    }

    /// Declares that all clients of one call of [`Fixture::clients`](crate::Fixture::clients) are
    /// the same provider, so that closing one closes all.
    pub fn one_provider(mut self) -> Self {
        self.one_provider = true;
        self
    }

    /// Declares that [`Fixture::arena`](crate::Fixture::arena) starts a deployment for fault
    /// injection, with clients in other processes. Without it, the checks that need one are refused
    /// by design.
    pub fn arena(mut self) -> Self {
        self.arena = true;
        self
    }

    /// Declares that the backend is a [`LeaseStore`](distlock_engine::LeaseStore), which
    /// [`Fixture::store`](crate::Fixture::store) opens. The suite then checks its requests and
    /// answers directly, below the lease engine. Without it, those checks are refused by design.
    pub fn store(mut self) -> Self {
        self.store = true;
        self
    }

    /// Declares that [`Arena::hook`](crate::Arena::hook) has these hooks, and that
    /// [`Fixture::store_at`](crate::Fixture::store_at) works, and with [`once`](Self::once) also
    /// [`Fixture::once_at`](crate::Fixture::once_at). Requires [`arena`](Self::arena) and
    /// [`store`](Self::store), or [`once`](Self::once). Without a hook, the checks that need it are
    /// refused by design.
    pub fn hooks(mut self, hooks: impl IntoIterator<Item = Hook>) -> Self {
        self.hooks.extend(hooks);
        self
    }

    /// Sets the ttl of leases that must expire during a check. Choose many times the duration of
    /// one operation. Defaults to 3 s.
    ///
    /// Checks use a longer ttl on a slow machine, up to six times this one. It is at least eight
    /// times the slowest operation that was timed before the first check, and eight times the
    /// longest pause of the suite's own tasks so far. If a backend needs even more,
    /// `profile::fast_enough` fails.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// Sets the length of the longest key in bytes, if a wrapper leaves less than
    /// [`LockKey::MAX_LEN`], the default.
    pub fn longest_key(mut self, bytes: usize) -> Self {
        self.longest_key = bytes;
        self
    }

    /// Refuses one check by its name, such as `C5_fencing::across_purge`, because it does not apply
    /// to the backend. The reason is shown in reports.
    pub fn refuses(mut self, check: &'static str, reason: &'static str) -> Self {
        self.refused.push((check, reason));
        self
    }

    /// Declares that the backend keeps a clause in a weaker form only, and why. For what no check
    /// can find, such as leases that a fail-over loses, and beside [`refuses`](Self::refuses) for
    /// what a check finds. It is shown in every report, with the clause. The checks of the clause
    /// run all the same.
    ///
    /// ```
    /// use distlock_api::Capabilities;
    /// use distlock_conformance::{Clause, Profile};
    ///
    /// let profile = Profile::new(Capabilities::default());
    /// let profile = profile.weaker(Clause::C5, "a fail-over of the asynchronous replica loses the last grants");
    /// # drop(profile);
    /// ```
    pub fn weaker(mut self, clause: Clause, why: &'static str) -> Self {
        self.weaker.push((clause, why));
        self
    }

    /// Sets how many checks are refused by design: those named by [`refuses`](Self::refuses), and
    /// those that need what is not declared. Defaults to 0. If the number is wrong, the check
    /// `profile::refusals_as_declared` fails and prints the right one.
    pub fn expected_refusals(mut self, count: usize) -> Self {
        self.expected_refusals = count;
        self
    }

    /// Declares that another fixture of the run examines the same backend in full, and this one in
    /// another place, or with other access. At the default level, `quick`, the variants of a run
    /// share the shortest checks, each of which one of them takes; from `standard` on all take all.
    pub fn variant(mut self) -> Self {
        self.variant = true;
        self
    }

    pub(crate) fn is_variant(&self) -> bool {
        self.variant
    }

    pub(crate) fn has(&self, need: Need) -> bool {
        match need {
            Need::Expiry => self.capabilities.expiry,
            Need::NoExpiry => !self.capabilities.expiry,
            Need::MinimumHold => self.capabilities.minimum_hold,
            Need::NoMinimumHold => !self.capabilities.minimum_hold,
            Need::Shared => self.capabilities.shared,
            Need::NoShared => !self.capabilities.shared,
            Need::Permits => self.capabilities.permits,
            Need::NoPermits => !self.capabilities.permits,
            Need::Once => self.once,
            Need::Admin => self.admin,
            Need::NoAdmin => !self.admin,
            Need::Owners => self.owners,
            // Without administration, no method could refuse.
            Need::NoOwners => self.admin && !self.owners,
            Need::LockEvents => self.lock_events,
            Need::NoLockEvents => self.admin && !self.lock_events,
            Need::Processes => self.processes,
            Need::Faults => self.disturbed,
            Need::Purge => self.purge,
            Need::Fair => self.capabilities.fair,
            Need::Push => self.capabilities.push,
            Need::SeparateClients => !self.one_provider,
            Need::Arena => self.arena,
            Need::Store => self.store,
            Need::Cut => self.hooks.contains(&Hook::Cut),
            Need::Stall => self.hooks.contains(&Hook::Stall),
            Need::Delay => self.hooks.contains(&Hook::Delay),
            Need::Lag => self.hooks.contains(&Hook::Lag),
            Need::LoseReplies => self.hooks.contains(&Hook::LoseReplies),
            Need::Restart => self.hooks.contains(&Hook::Restart),
            Need::Block => self.hooks.contains(&Hook::Block),
        }
    }
}

// For checks.
impl Profile {
    pub(crate) fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    pub(crate) fn has_admin(&self) -> bool {
        self.admin
    }

    pub(crate) fn is_one_provider(&self) -> bool {
        self.one_provider
    }

    pub(crate) fn short_ttl(&self) -> Duration {
        self.ttl
    }

    pub(crate) fn key_limit(&self) -> usize {
        self.longest_key
    }

    /// Returns why the check of this name does not apply to the backend, if the profile names it.
    pub(crate) fn reason_to_refuse(&self, check: &str) -> Option<&'static str> {
        self.refused.iter().find(|(refused, _)| *refused == check).map(|(_, reason)| *reason)
    }

    /// Returns the clauses that are kept in a weaker form only, and why.
    pub(crate) fn weaker_clauses(&self) -> &[(Clause, &'static str)] {
        &self.weaker
    }

    /// The checks that the profile names.
    pub(crate) fn refused_by_name(&self) -> impl Iterator<Item = &'static str> + '_ {
        self.refused.iter().map(|(check, _)| *check)
    }

    pub(crate) fn declared_refusals(&self) -> usize {
        self.expected_refusals
    }
}
