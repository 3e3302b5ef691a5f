//! Stores that break what the clauses say of shared locks and permits, below the engine and above.

mod overtaking;
mod shadow;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use distlock_api::{
    AcquisitionId, FencingToken, ForcedRelease, LockAdmin, LockFilter, LockInfo, LockKey, Mode, ReleaseOutcome, Result,
    async_trait,
};
use distlock_conformance::{Client, DisturbedStore, Fixture, FixtureError, Profile};
use distlock_engine::store::{
    Attempt, Claim, EventStore, EventStream, Grant, ProviderId, Release, Renewal, RenewalSubject, Reply, Standing,
    StoreCapabilities, StoreEvent, StoreExtras, Watch,
};
use distlock_engine::{LeaseStore, QueueOptions};
use distlock_memory::MemoryStore;
use futures_util::StreamExt;
use tokio::time::Instant;

use crate::promised;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Modes {
    /// Nothing is broken.
    Sound,
    /// A reader is granted a key that a writer holds.
    ReaderBesideWriter,
    /// A writer is granted a key that readers hold.
    WriterBesideReader,
    /// Every claim is exclusive.
    EverythingIsExclusive,
    /// Every claim is shared.
    EverythingIsShared,
    /// A key without a holder is found in one step and taken in another.
    TakesInTwoSteps,
    /// One permit more is granted than there are.
    OnePermitMore,
    /// Each guard counts as one permit.
    CountsGuards,
    /// The number of the first holder decides.
    FirstNumberDecides,
    /// A reader is granted the key beside others although a writer waits.
    ReadersOvertake,
    /// Permits are granted although an earlier waiter wants more than there are left.
    SmallRequestsOvertake,
    /// A release grants the key to one waiting reader only.
    OneReaderPerRelease,
    /// The ticket of a writer that leaves stays.
    LeavingWriterBlocks,
    /// Only every second grant is pushed.
    PushesEverySecondGrant,
    /// A reader's lease lasts for hours.
    DeadReaderBlocks,
    /// The expiry of one reader's lease frees the key.
    ExpiryOfOneFreesAll,
    /// A reader's renewal extends the leases of all readers.
    RenewalExtendsAll,
    /// A reader of the same process makes way for its own writer.
    Upgrades,
    /// All readers that hold a key together have one token.
    OneTokenForReaders,
    /// The tokens of readers are above those of later writers.
    ReadersHaveHighTokens,
    /// The release of one reader frees the key.
    ReleaseOfOneFreesAll,
    /// A repeated release of a reader releases another one.
    RepeatedReleaseFreesAnother,
    /// A repeated attempt of a reader is another reader.
    RepeatedAttemptIsAnother,
    /// The force-release of one holder takes the lock from all.
    ForceOfOneTakesAll,
    /// A force-release takes the lock from the first holder only.
    ForceTakesTheFirst,
    /// The minimum hold of a reader is not kept.
    NoMinimumHoldOfReaders,
}

/// How much longer the leases of [`Modes::DeadReaderBlocks`] last.
const AGES: Duration = Duration::from_secs(7200);
/// By how much the tokens of [`Modes::ReadersHaveHighTokens`] are raised.
const RAISED: u64 = 1_000_000_000;
/// The time between two steps that should be one.
const BETWEEN: Duration = Duration::from_millis(2);

/// The state of one check.
pub(crate) struct Fixed {
    broken: Modes,
    memory: MemoryStore,
    seen: Arc<Mutex<Seen>>,
}

/// What the clients of one state have done.
#[derive(Debug, Default)]
struct Seen {
    attempts: HashMap<AcquisitionId, Attempt>,
    /// The grants of claims that are not exclusive, without those that were released.
    granted: HashMap<AcquisitionId, Granted>,
    /// The claims that hold or want another key than they name.
    shadows: HashMap<AcquisitionId, LockKey>,
    released: HashMap<AcquisitionId, LockKey>,
}

#[derive(Clone, Debug)]
struct Granted {
    claim: Claim,
    /// As the memory granted it.
    grant: Grant,
    expires: Instant,
}

impl Granted {
    fn last(&self) -> FencingToken {
        FencingToken::new(self.grant.token.get() + u64::from(self.grant.tokens.get()) - 1)
    }
}

impl Modes {
    pub(crate) fn fixture(self) -> Fixed {
        Fixed { broken: self, memory: MemoryStore::new(), seen: Arc::default() }
    }

    /// Changes the mode of a claim.
    fn mode(self, mode: Mode, attempt: Option<&Attempt>, info: Option<&LockInfo>) -> Mode {
        match (self, mode) {
            (Self::EverythingIsExclusive, _) => Mode::Exclusive,
            (Self::EverythingIsShared, _) => Mode::Shared,
            (Self::OnePermitMore, Mode::Permits { take, of }) => Mode::Permits { take, of: of + 1 },
            (Self::CountsGuards, Mode::Permits { of, .. }) => Mode::Permits { take: 1, of },
            (Self::FirstNumberDecides, Mode::Permits { take, of }) => match info.map(LockInfo::mode) {
                Some(Mode::Permits { of: first, .. }) => Mode::Permits { take, of: first.max(take) },
                _ => Mode::Permits { take, of },
            },
            (Self::OneReaderPerRelease, Mode::Shared) => {
                let waits = attempt.is_some_and(|attempt| attempt.ticket.is_some());
                if waits && info.is_some_and(|info| info.mode().is_exclusive()) { Mode::Exclusive } else { mode }
            }
            _ => mode,
        }
    }
}

#[async_trait]
impl Fixture for Fixed {
    fn name(&self) -> &str {
        "modes"
    }

    fn profile(&self) -> Profile {
        Profile::new(promised::all_modes()).admin().owners().disturbed().store()
    }

    async fn clients(&self, count: usize) -> std::result::Result<Vec<Client>, FixtureError> {
        let (memory, seen) = (MemoryStore::new(), Arc::default());
        let client = || {
            let disturbed = DisturbedStore::new(Arc::new(self.broken.around(&memory, &seen)));
            // Longer than busy machines stall.
            let queue = QueueOptions::new().claim(Duration::from_secs(3));
            Client::of_disturbed(disturbed, |engine| engine.queue(queue))
        };
        (0..count).map(|_| client()).collect()
    }

    async fn store(&self) -> std::result::Result<Arc<dyn LeaseStore>, FixtureError> {
        Ok(Arc::new(self.broken.around(&self.memory, &self.seen)))
    }
}

impl Modes {
    fn around(self, memory: &MemoryStore, seen: &Arc<Mutex<Seen>>) -> ModesStore {
        ModesStore { broken: self, memory: memory.clone(), seen: Arc::clone(seen), own: Mutex::default() }
    }
}

/// The store as one process opens it.
#[derive(Debug)]
struct ModesStore {
    broken: Modes,
    memory: MemoryStore,
    seen: Arc<Mutex<Seen>>,
    /// The shared claims of this process.
    own: Mutex<Vec<Claim>>,
}

impl ModesStore {
    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap()
    }

    fn others(&self, claim: &Claim) -> Vec<Granted> {
        let seen = self.seen();
        let is_other = |granted: &&Granted| granted.claim.key() == claim.key() && granted.claim.id() != claim.id();
        seen.granted.values().filter(is_other).cloned().collect()
    }

    /// Frees the key if the lease of one of its readers has expired.
    fn expire(&self, key: &LockKey) {
        let (mut seen, now) = (self.seen(), Instant::now());
        let ended = |granted: &Granted| granted.claim.key() == key && granted.expires <= now;
        if self.broken == Modes::ExpiryOfOneFreesAll && seen.granted.values().any(ended) {
            seen.granted.retain(|_, granted| granted.claim.key() != key);
            drop(seen);
            self.memory.force_release(key);
        }
    }

    /// Releases what the process of an exclusive claim reads.
    async fn upgrade(&self, claim: &Claim) -> Result<()> {
        if self.broken == Modes::Upgrades && claim.mode().is_exclusive() {
            let own = std::mem::take(&mut *self.own.lock().unwrap());
            for reader in own.iter().filter(|own| own.key() == claim.key()) {
                self.memory.withdraw(reader, BETWEEN).await?;
            }
        }
        Ok(())
    }

    /// Records a grant of the memory, and returns it as the caller sees it.
    fn after(&self, attempt: &Attempt, grant: Grant) -> Grant {
        let claim = &attempt.claim;
        if claim.mode().is_exclusive() {
            return grant;
        }
        if claim.mode() == Mode::Shared {
            self.own.lock().unwrap().push(claim.clone());
        }
        let first = self.others(claim).into_iter().min_by_key(|other| other.grant.token);
        let granted = Granted { claim: claim.clone(), grant: grant.clone(), expires: Instant::now() + attempt.ttl };
        self.seen().granted.insert(claim.id().clone(), granted);
        let token = match (self.broken, first) {
            (Modes::OneTokenForReaders, Some(first)) => first.grant.token,
            (Modes::ReadersHaveHighTokens, _) => FencingToken::new(grant.token.get() + RAISED),
            _ => grant.token,
        };
        let remaining = match self.broken {
            Modes::DeadReaderBlocks => grant.remaining.saturating_sub(AGES),
            _ => grant.remaining,
        };
        Grant::new(token, remaining).with_tokens(grant.tokens)
    }

    /// Returns another acquisition's claim of the same key.
    fn another(&self, claim: &Claim) -> Claim {
        Claim::new(claim.key().clone(), ProviderId::random().acquisition_id()).with_mode(claim.mode())
    }
}

#[async_trait]
impl LeaseStore for ModesStore {
    fn capabilities(&self) -> StoreCapabilities {
        self.memory.capabilities()
    }

    fn name(&self) -> &str {
        "modes"
    }

    async fn try_acquire(&self, attempt: &Attempt) -> Result<Reply> {
        let (key, id) = (attempt.claim.key(), attempt.claim.id());
        self.expire(key);
        self.upgrade(&attempt.claim).await?;
        let mut sent = attempt.clone();
        let known = self.seen().granted.contains_key(id);
        let info = self.memory.peek(key);
        // A claim keeps its mode.
        let kept = self.seen().attempts.get(id).map(|attempt| attempt.claim.mode());
        let mode = kept.unwrap_or_else(|| self.broken.mode(attempt.claim.mode(), Some(attempt), info.as_ref()));
        sent.claim = attempt.claim.clone().with_mode(mode);
        match self.broken {
            Modes::DeadReaderBlocks if !mode.is_exclusive() => sent.ttl += AGES,
            Modes::RepeatedAttemptIsAnother if known => sent.claim = self.another(&sent.claim),
            _ => {}
        }
        self.seen().attempts.insert(id.clone(), sent.clone());
        let reply = match self.broken {
            Modes::ReadersOvertake | Modes::SmallRequestsOvertake => self.overtake(&sent).await?,
            Modes::ReaderBesideWriter | Modes::WriterBesideReader | Modes::TakesInTwoSteps => {
                self.take_in_the_shadow(&sent).await?
            }
            _ => self.memory.try_acquire(&sent).await?,
        };
        Ok(match reply {
            Reply::Granted(grant) => Reply::Granted(self.after(attempt, grant)),
            busy => busy,
        })
    }

    async fn renew(&self, renewal: &Renewal) -> Result<Standing> {
        let mut renewal = renewal.clone();
        self.expire(renewal.claim.key());
        let known = self.seen().granted.get(renewal.claim.id()).cloned();
        let others = self.others(&renewal.claim);
        renewal.claim = self.real(&renewal.claim);
        if let RenewalSubject::Lease { token, ttl } = &mut renewal.subject
            && let Some(known) = known
        {
            let lasts = *ttl;
            match self.broken {
                Modes::OneTokenForReaders | Modes::ReadersHaveHighTokens => *token = known.last(),
                Modes::DeadReaderBlocks => *ttl += AGES,
                Modes::RenewalExtendsAll => {
                    for other in others {
                        self.memory.renew(&Renewal::lease(other.claim.clone(), other.last(), lasts)).await?;
                    }
                }
                _ => {}
            }
            let standing = self.memory.renew(&renewal).await?;
            if let (Standing::Held { .. }, Some(granted)) = (&standing, self.seen().granted.get_mut(known.claim.id())) {
                granted.expires = granted.expires.max(Instant::now() + lasts);
            }
            return Ok(standing);
        }
        self.memory.renew(&renewal).await
    }

    async fn release(&self, release: &Release) -> Result<ReleaseOutcome> {
        let mut release = release.clone();
        let (key, id) = (release.claim.key().clone(), release.claim.id().clone());
        let mode = release.claim.mode();
        let others = self.others(&release.claim);
        release.claim = self.real(&release.claim);
        if self.broken == Modes::NoMinimumHoldOfReaders && mode == Mode::Shared {
            release.hold_at_least = None;
        }
        let is_held = self.seen().granted.remove(&id).is_some();
        let again = self.seen().released.insert(id, key.clone()).is_some();
        let outcome = self.memory.release(&release).await?;
        match self.broken {
            Modes::ReleaseOfOneFreesAll if is_held => drop(self.memory.force_release(&key)),
            Modes::RepeatedReleaseFreesAnother if again && mode == Mode::Shared => {
                for other in others.iter().take(1) {
                    let _ = self.memory.release(&Release::new(other.claim.clone())).await?;
                }
            }
            _ => {}
        }
        Ok(outcome)
    }

    async fn withdraw(&self, claim: &Claim, timeout: Duration) -> Result<()> {
        let waits = self.memory.waiting(claim.key()).contains(claim.id());
        if self.broken == Modes::LeavingWriterBlocks && waits && claim.mode().is_exclusive() {
            return Ok(());
        }
        self.seen().granted.remove(claim.id());
        self.memory.withdraw(&self.real(claim), timeout).await
    }

    fn extras(&self) -> StoreExtras<'_> {
        let mut extras = self.memory.extras();
        extras.batch_renew = None;
        extras.events = Some(self);
        extras.admin = Some(self);
        extras
    }
}

#[async_trait]
impl EventStore for ModesStore {
    async fn subscribe(&self, watch: &Watch) -> Result<EventStream> {
        let halves = self.broken == Modes::PushesEverySecondGrant;
        let mut grants = 0;
        let events = self.memory.subscribe(watch).await?.filter(move |event| {
            let is_grant = matches!(event, Ok(StoreEvent::Granted { .. }));
            grants += usize::from(is_grant);
            std::future::ready(!(halves && is_grant && grants % 2 == 0))
        });
        Ok(Box::pin(events))
    }
}

impl ModesStore {
    fn sound(&self) -> &dyn LockAdmin {
        self.memory.extras().admin.expect("the memory store has administration")
    }
}

#[async_trait]
impl LockAdmin for ModesStore {
    async fn inspect(&self, key: &LockKey) -> Result<Option<LockInfo>> {
        self.sound().inspect(key).await
    }

    async fn force_release(&self, key: &LockKey, reason: &str) -> Result<Option<LockInfo>> {
        let first = self.memory.peek(key).and_then(|info| info.holders.first().map(|holder| holder.id.clone()));
        match first {
            Some(first) if self.broken == Modes::ForceTakesTheFirst => {
                self.sound().force_release_holder(key, &first, reason).await
            }
            _ => self.sound().force_release(key, reason).await,
        }
    }

    async fn force_release_holder(&self, key: &LockKey, id: &AcquisitionId, reason: &str) -> Result<Option<LockInfo>> {
        if self.broken == Modes::ForceOfOneTakesAll {
            return self.sound().force_release(key, reason).await;
        }
        self.sound().force_release_holder(key, id, reason).await
    }

    async fn page(
        &self,
        filter: &LockFilter,
        after: Option<&LockKey>,
        limit: std::num::NonZeroUsize,
    ) -> Result<Vec<LockInfo>> {
        self.sound().page(filter, after, limit).await
    }

    async fn release_matching(&self, filter: &LockFilter, reason: &str) -> Result<u64> {
        self.sound().release_matching(filter, reason).await
    }

    async fn history(&self, key: &LockKey) -> Result<Vec<ForcedRelease>> {
        self.sound().history(key).await
    }
}
