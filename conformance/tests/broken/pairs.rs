//! Stores that are sound in each feature, and broken where two of them meet; and stores whose
//! numbers are wrong in one direction.

mod admin;
mod events;

use std::collections::{HashMap, HashSet};
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use distlock_api::{AcquisitionId, Holder, LockKey, Mode, ReleaseOutcome, Result, async_trait};
use distlock_conformance::{Client, DisturbedStore, Fixture, FixtureError, Profile, Slowness};
use distlock_engine::store::{
    Attempt, BatchRenewStore, BatchStore, BusyReply, Claim, Grant, QueueStanding, QueueStore, Release, Renewal, Reply,
    Standing, StoreCapabilities, StoreExtras, StoreTime,
};
use distlock_engine::{LeaseStore, QueueOptions};
use distlock_memory::MemoryStore;
use futures_util::future::join_all;
use tokio::time::Instant;

use crate::promised;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pairs {
    /// Nothing is broken.
    Sound,
    /// Nothing is broken; the store is slow.
    Slow,
    /// A release with a minimum hold hands the key to a waiter.
    HoldYieldsToWaiters,
    /// A minimum hold counts from the release.
    HoldCountsFromTheRelease,
    /// A minimum hold ends with the ttl of its lease.
    HoldEndsWithTheTtl,
    /// A minimum hold of permits is not kept.
    PermitsIgnoreTheHold,
    /// The releases of a batch keep no minimum hold.
    BatchIgnoresTheHold,
    /// The start of a minimum hold is not pushed.
    HoldIsNotPushed,
    /// A repeated release ends the minimum hold.
    RepeatedReleaseOpens,
    /// An expired lease is free for all, whatever the queue.
    AnyoneAfterExpiry,
    /// A dead waiter has its turn until its ticket ends.
    DeadHeadBlocks,
    /// A force-release drops the tickets.
    ForceDropsTheQueue,
    /// A force-release grants the key to the first waiter.
    ForceGrantsTheFirst,
    /// A lease that is handed over has no owner.
    HandOverForgetsTheOwner,
    /// An attempt in a batch does not look at the queue.
    BatchesBarge,
    /// A batch of renewals extends leases that have expired.
    BatchRevives,
    /// All attempts of a batch have the owner of its first.
    BatchHasOneOwner,
    /// The releases of a batch push no grants.
    BatchPushesNothing,
    /// The events of a hand-over have no owner.
    HandOverIsReportedWithoutOwner,
    /// The release of one of several holders is reported as an expiry.
    SharedReleaseIsAnExpiry,
    /// A release with a minimum hold is reported as an expiry.
    HoldIsAnExpiry,
    /// The grants of a batch are reported with one id.
    BatchEventsHaveOneId,
    /// A release by owner pushes no losses.
    OwnerReleasesAreSilent,
    /// A purge removes a record whose key is closed by a minimum hold.
    PurgeOpens,
    /// A purge removes any record.
    PurgeTakesWhatIsUsed,
    /// A purge forgets the tokens of leases that were not released.
    PurgeForgetsTheDead,
    /// A pushed grant has an expiry that is too late.
    PushesALateExpiry,
    /// A loss is pushed with a token above those of later grants.
    PushesATokenTooHigh,
    /// A renewal reports half of what is left.
    RenewalUnderstates,
    /// Busy answers report half of a minimum hold.
    HoldIsUnderstated,
    /// Dead tickets are counted.
    CountsDeadTickets,
    /// The answer to a refresh has the first place.
    RefreshReportsTheFirstPlace,
    /// Busy answers have a token below that of the present grant.
    AnchorIsTooOld,
    /// Busy answers have a clock that is half as fast.
    ClockIsSlow,
    /// Waiters are told when the lease ends, whatever is before them.
    TurnIgnoresThePlace,
    /// An inspection shows more time than there is.
    InspectionOverstates,
    /// A claim that repeats its attempt is granted what was taken from it by force.
    RepeatBringsBack,
    /// A claim that repeats its attempt is listed twice.
    RepeatIsListedTwice,
    /// A claim that repeats its attempt is reported as granted again.
    RepeatIsReportedAgain,
    /// The counter of a key expires a second after its last lease.
    TokensExpire,
}

/// The window of a dead waiter that [`Pairs::DeadHeadBlocks`] waits for.
const AGES: Duration = Duration::from_secs(3600);

/// The stores of one check.
pub(crate) struct PairStores {
    broken: Pairs,
    memory: MemoryStore,
    seen: Arc<Mutex<Seen>>,
}

#[derive(Debug, Default)]
struct Seen {
    /// When each claim was granted its lease, and for how long.
    granted: HashMap<AcquisitionId, (Instant, Duration)>,
    released: HashSet<AcquisitionId>,
    /// The last grant of each claim.
    grants: HashMap<AcquisitionId, Grant>,
    /// The claims that were granted their lease more than once.
    repeated: HashSet<AcquisitionId>,
    /// The last attempt of each claim.
    attempts: HashMap<AcquisitionId, Attempt>,
    tickets: HashSet<AcquisitionId>,
    /// The keys whose leases a batch has released.
    batched: HashSet<LockKey>,
    /// The claims that a batch has granted a lease.
    granted_by_batch: HashSet<AcquisitionId>,
    /// Whether losses are not pushed.
    is_silent: bool,
    /// What tokens count from, of keys that were purged too early.
    forgotten: HashMap<LockKey, u64>,
}

impl Pairs {
    pub(crate) fn fixture(self) -> PairStores {
        PairStores { broken: self, memory: MemoryStore::new(), seen: Arc::default() }
    }

    fn around(self, memory: &MemoryStore, seen: &Arc<Mutex<Seen>>) -> PairStore {
        PairStore { broken: self, memory: memory.clone(), seen: Arc::clone(seen) }
    }

    fn disturbed(self, store: PairStore) -> DisturbedStore {
        let disturbed = DisturbedStore::new(Arc::new(store));
        if self == Self::Slow { disturbed.slowed(Slowness::PerClient) } else { disturbed }
    }
}

#[async_trait]
impl Fixture for PairStores {
    fn name(&self) -> &str {
        "pairs"
    }

    fn profile(&self) -> Profile {
        Profile::new(promised::all_modes()).admin().owners().lock_events().purge().disturbed().store()
    }

    async fn clients(&self, count: usize) -> std::result::Result<Vec<Client>, FixtureError> {
        let (memory, seen) = (MemoryStore::new(), Arc::default());
        let client = || {
            let store = self.broken.around(&memory, &seen);
            let purged = self.broken.around(&memory, &seen);
            let disturbed = self.broken.disturbed(store).with_purge(move |key| {
                let answer = if purged.purge(&key) { Ok(()) } else { Err(format!("{key:?} is in use").into()) };
                async move { answer }
            });
            // Longer than busy machines stall.
            let queue = QueueOptions::new().claim(Duration::from_secs(3));
            Client::of_disturbed(disturbed, |engine| engine.queue(queue))
        };
        (0..count).map(|_| client()).collect()
    }

    async fn store(&self) -> std::result::Result<Arc<dyn LeaseStore>, FixtureError> {
        let store = self.broken.around(&self.memory, &self.seen);
        if self.broken == Pairs::Slow { Ok(Arc::new(self.broken.disturbed(store))) } else { Ok(Arc::new(store)) }
    }
}

/// The store as one process opens it.
#[derive(Clone, Debug)]
struct PairStore {
    broken: Pairs,
    memory: MemoryStore,
    seen: Arc<Mutex<Seen>>,
}

impl PairStore {
    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap()
    }

    /// Whether the key is closed, and no claim holds it.
    fn is_closed_by_a_hold(&self, key: &LockKey) -> bool {
        self.memory.peek(key).is_some_and(|info| info.id.is_none())
    }

    /// Removes the record of a key that no claim uses.
    fn purge(&self, key: &LockKey) -> bool {
        let info = self.memory.peek(key);
        let is_used = match self.broken {
            Pairs::PurgeTakesWhatIsUsed => false,
            Pairs::PurgeOpens => info.is_some_and(|info| info.id.is_some()),
            _ => info.is_some() || !self.memory.waiting(key).is_empty(),
        };
        if is_used || !self.memory.purge(key) {
            return false;
        }
        let mut seen = self.seen();
        let all_released = seen.granted.keys().all(|id| seen.released.contains(id));
        if self.broken == Pairs::PurgeForgetsTheDead && !all_released {
            seen.forgotten.insert(key.clone(), 0);
        }
        true
    }

    /// Forgets the tokens of a key whose last lease has ended some time ago.
    fn forget_the_old(&self, key: &LockKey) {
        if self.broken != Pairs::TokensExpire || self.memory.peek(key).is_some() {
            return;
        }
        let mut seen = self.seen();
        let of_key = |(id, (since, ttl)): (&AcquisitionId, &(Instant, Duration))| {
            let is_of_key = seen.attempts.get(id).is_some_and(|attempt| attempt.claim.key() == key);
            is_of_key && since.elapsed() > *ttl + Duration::from_secs(1)
        };
        if seen.granted.iter().any(of_key) {
            seen.forgotten.insert(key.clone(), 0);
        }
    }

    /// Changes an attempt before it is carried out.
    fn changed(&self, attempt: &Attempt) -> Attempt {
        let mut attempt = attempt.clone();
        match self.broken {
            Pairs::AnyoneAfterExpiry => attempt.turn_window = Duration::ZERO,
            Pairs::DeadHeadBlocks => attempt.turn_window = AGES,
            Pairs::HandOverForgetsTheOwner if attempt.ticket.is_some() => attempt.holder = Holder::default(),
            _ => {}
        }
        attempt
    }

    /// Records a grant, and returns it as the caller sees it.
    fn granted(&self, attempt: &Attempt, grant: Grant) -> Grant {
        let (id, key) = (attempt.claim.id(), attempt.claim.key());
        let mut seen = self.seen();
        seen.granted.entry(id.clone()).or_insert((Instant::now(), attempt.ttl));
        if seen.grants.insert(id.clone(), grant.clone()).is_some() {
            seen.repeated.insert(id.clone());
        }
        match seen.forgotten.get_mut(key) {
            Some(last) => {
                *last += 1;
                Grant::new(distlock_api::FencingToken::new(*last), grant.remaining)
            }
            None => grant,
        }
    }

    /// Changes a busy answer to the claim of an attempt or of a refresh.
    fn told(&self, claim: &Claim, mut busy: BusyReply) -> BusyReply {
        let ahead = match busy.standing {
            QueueStanding::Queued { ahead } => ahead,
            _ => 0,
        };
        match self.broken {
            Pairs::HoldIsUnderstated if self.is_closed_by_a_hold(claim.key()) => {
                busy.holder_remaining = busy.holder_remaining.map(|left| left / 2);
            }
            Pairs::AnchorIsTooOld => {
                busy.token = busy.token.map(|token| distlock_api::FencingToken::new(token.get().saturating_sub(10)));
            }
            Pairs::ClockIsSlow => {
                let origin = StoreTime::since_origin(Duration::ZERO);
                busy.now = busy.now.map(|now| StoreTime::since_origin(now.saturating_since(origin) / 2));
            }
            Pairs::TurnIgnoresThePlace => {
                let window = self.seen().attempts.get(claim.id()).map_or(Duration::ZERO, |attempt| attempt.turn_window);
                busy.holder_remaining = busy.holder_remaining.map(|left| left.saturating_sub(window * ahead));
            }
            _ => {}
        }
        busy
    }
}

#[async_trait]
impl LeaseStore for PairStore {
    fn capabilities(&self) -> StoreCapabilities {
        self.memory.capabilities()
    }

    fn name(&self) -> &str {
        "pairs"
    }

    async fn try_acquire(&self, attempt: &Attempt) -> Result<Reply> {
        let attempt = self.changed(attempt);
        let id = attempt.claim.id();
        self.forget_the_old(attempt.claim.key());
        {
            let mut seen = self.seen();
            seen.attempts.insert(id.clone(), attempt.clone());
            if attempt.ticket.is_some() {
                seen.tickets.insert(id.clone());
            }
        }
        let known = self.seen().grants.get(id).filter(|_| self.broken == Pairs::RepeatBringsBack).cloned();
        Ok(match self.memory.try_acquire(&attempt).await? {
            Reply::Granted(grant) => Reply::Granted(self.granted(&attempt, grant)),
            Reply::Busy(busy) => match known {
                Some(grant) => Reply::Granted(grant),
                None => Reply::Busy(self.told(&attempt.claim, busy)),
            },
            other => other,
        })
    }

    async fn renew(&self, renewal: &Renewal) -> Result<Standing> {
        Ok(match self.memory.renew(renewal).await? {
            Standing::Held { remaining } if self.broken == Pairs::RenewalUnderstates => {
                Standing::Held { remaining: remaining / 2 }
            }
            Standing::Waiting(mut busy) => {
                if self.broken == Pairs::RefreshReportsTheFirstPlace {
                    busy.standing = QueueStanding::Queued { ahead: 0 };
                }
                Standing::Waiting(self.told(&renewal.claim, busy))
            }
            other => other,
        })
    }

    async fn release(&self, release: &Release) -> Result<ReleaseOutcome> {
        let mut release = release.clone();
        let (key, id) = (release.claim.key().clone(), release.claim.id().clone());
        let since = self.seen().granted.get(&id).copied();
        if let (Some(hold), Some((since, ttl))) = (release.hold_at_least, since) {
            release.hold_at_least = match self.broken {
                Pairs::HoldYieldsToWaiters if !self.memory.waiting(&key).is_empty() => None,
                Pairs::HoldCountsFromTheRelease => Some(hold + since.elapsed()),
                Pairs::HoldEndsWithTheTtl => Some(hold.min(ttl)),
                Pairs::PermitsIgnoreTheHold if matches!(release.claim.mode(), Mode::Permits { .. }) => None,
                _ => Some(hold),
            };
        }
        let again = !self.seen().released.insert(id);
        let outcome = self.memory.release(&release).await?;
        if again && self.broken == Pairs::RepeatedReleaseOpens && self.is_closed_by_a_hold(&key) {
            self.memory.force_release(&key);
        }
        Ok(outcome)
    }

    async fn withdraw(&self, claim: &Claim, timeout: Duration) -> Result<()> {
        self.seen().released.insert(claim.id().clone());
        self.memory.withdraw(claim, timeout).await
    }

    fn extras(&self) -> StoreExtras<'_> {
        let mut extras = StoreExtras::default();
        extras.queue = Some(self);
        extras.events = Some(self);
        extras.batch_renew = Some(self);
        extras.batch = Some(self);
        extras.admin = Some(self);
        extras
    }
}

#[async_trait]
impl QueueStore for PairStore {
    async fn waiters(&self, claim: &Claim, timeout: Duration) -> Result<u32> {
        let waiters = self.memory.waiters(claim, timeout).await?;
        if self.broken != Pairs::CountsDeadTickets {
            return Ok(waiters);
        }
        let seen = self.seen();
        let of_key = |id: &&AcquisitionId| seen.attempts.get(*id).is_some_and(|of| of.claim.key() == claim.key());
        Ok(seen.tickets.iter().filter(of_key).count().try_into().expect("a few"))
    }
}

#[async_trait]
impl BatchRenewStore for PairStore {
    async fn renew_many(&self, renewals: &[Renewal]) -> Vec<Result<Standing>> {
        let mut standings = Vec::new();
        for renewal in renewals {
            let standing = self.renew(renewal).await;
            let is_free = self.memory.peek(renewal.claim.key()).is_none();
            let is_dead = is_free && !self.seen().released.contains(renewal.claim.id());
            standings.push(match standing {
                Ok(Standing::Gone(_)) if self.broken == Pairs::BatchRevives && is_dead => {
                    Ok(Standing::Held { remaining: AGES })
                }
                standing => standing,
            });
        }
        standings
    }
}

#[async_trait]
impl BatchStore for PairStore {
    fn acquire_batch(&self) -> NonZeroUsize {
        NonZeroUsize::new(16).expect("not zero")
    }

    async fn try_acquire_many(&self, attempts: &[Attempt]) -> Vec<Result<Reply>> {
        let mut replies = Vec::new();
        for attempt in attempts {
            let mut attempt = attempt.clone();
            match self.broken {
                Pairs::BatchesBarge => attempt.turn_window = Duration::ZERO,
                Pairs::BatchHasOneOwner => attempt.holder = attempts[0].holder.clone(),
                _ => {}
            }
            self.seen().granted_by_batch.insert(attempt.claim.id().clone());
            replies.push(self.try_acquire(&attempt).await);
        }
        replies
    }

    async fn release_many(&self, releases: &[Release]) -> Vec<Result<ReleaseOutcome>> {
        let mut outcomes = Vec::new();
        for release in releases {
            let mut release = release.clone();
            if self.broken == Pairs::BatchIgnoresTheHold {
                release.hold_at_least = None;
            }
            self.seen().batched.insert(release.claim.key().clone());
            outcomes.push(self.release(&release).await);
        }
        outcomes
    }

    async fn withdraw_many(&self, claims: &[Claim], timeout: Duration) -> Vec<Result<()>> {
        join_all(claims.iter().map(|claim| self.withdraw(claim, timeout))).await
    }
}
