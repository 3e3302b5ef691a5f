//! Stores whose requests or answers are wrong below the engine, with the usual mistakes of their
//! authors.

use std::collections::HashMap;
use std::num::{NonZeroU32, NonZeroUsize};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use distlock_api::{
    AcquisitionId, FencingToken, LockAdmin, LockError, LockFilter, LockInfo, LockKey, Loss, ReleaseOutcome, Result,
    async_trait,
};
use distlock_conformance::{Client, DisturbedStore, Fixture, FixtureError, Profile, Slowness};
use distlock_engine::LeaseStore;
use distlock_engine::store::{
    Attempt, BatchRenewStore, BatchStore, BusyReply, Claim, EventStore, EventStream, QueueStanding, QueueStore,
    Release, Renewal, RenewalSubject, Reply, Standing, StoreCapabilities, StoreEvent, StoreExtras, Ticket, Watch,
};
use distlock_memory::MemoryStore;
use futures_util::StreamExt;
use tokio::time::sleep;

use crate::promised;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bare {
    /// Nothing is broken.
    Sound,
    /// Nothing is broken; the store is slow.
    Slow,
    /// A ttl is rounded up to whole seconds.
    RoundsTtl,
    /// Other claims get the ttl of the lease, not its remaining time.
    ReportsTheTtl,
    /// A repeated attempt of the holder leaves the expiry as it was.
    RepeatExtendsNothing,
    /// A repeated attempt of the holder is granted other tokens.
    RepeatTakesTokens,
    /// A renewal adds its ttl to what is left.
    RenewalAdds,
    /// A renewal compares only the claim.
    RenewalIgnoresToken,
    /// A renewal takes an expired lease again.
    RenewalRevives,
    /// A renewal reads the lease in one step and writes it in another.
    RenewsInTwoSteps,
    /// A release of an expired lease returns `Released`.
    ReleasesTheExpired,
    /// Only the last release is remembered.
    RemembersOneRelease,
    /// A release reads the lease in one step and ends it in another.
    ReleasesInTwoSteps,
    /// The next block begins within the last one.
    BlocksOverlap,
    /// A withdrawal leaves a held lease.
    WithdrawsNothing,
    /// A batch is answered in the reverse order.
    BatchBackwards,
    /// A batch with one lease that has ended reports all as gone.
    BatchAllOrNothing,
    /// A batch is answered up to the first lease that has ended.
    BatchStops,
    /// The attempts of a batch are answered in the reverse order.
    AttemptsBackwards,
    /// A batch with one key in use is refused as a whole, and its other leases are held.
    OneBusyRefusesAll,
    /// The releases of a batch are answered in the reverse order.
    ReleasesBackwards,
    /// A release in a batch frees the key, also that of another holder.
    ABatchFreesTheKey,
    /// A release in a batch forgets who waits.
    ABatchForgetsWaiters,
    /// The attempts of a batch behind a refused one are not made, and answered like it.
    RefusedAttemptStopsTheBatch,
    /// The answers of a batch of attempts move up by one behind a refused one.
    RefusedAttemptShiftsTheAnswers,
    /// An attempt of a batch that a full queue refuses leaves a ticket.
    RefusedAttemptLeavesATicket,
    /// A batch of renewals refreshes no tickets.
    BatchRefreshesNothing,
    /// A batch of withdrawals ends at the first claim that has nothing.
    WithdrawalsStop,
    /// A batch of withdrawals leaves tickets.
    WithdrawalsLeaveTickets,
    /// A batch of withdrawals frees the keys, also those of other holders.
    WithdrawalsFreeTheKeys,
    /// Keys that differ only in case are one.
    FoldsCase,
    /// The dotless and the dotted i are one.
    FoldsTurkish,
    /// Blanks at the end do not count.
    Trims,
    /// A free key is found in one step and taken in another.
    SelectThenUpdate,
    /// An expired lease is found in one step and taken over in another.
    SelectThenTakeOver,
    /// The loser of a race is answered with an error.
    ContentionIsAnError,
    /// A queue takes any number of tickets.
    UnboundedQueue,
    /// A waiter that repeats its attempt goes to the end of the queue.
    RepeatLosesThePlace,
    /// A waiter that makes an attempt without a ticket loses the one that it has.
    MereAttemptLosesThePlace,
    /// A waiter that refreshes its ticket goes to the end of the queue.
    RefreshLosesThePlace,
    /// A refresh adds the ticket that is missing.
    RefreshAdds,
    /// A ticket lasts for an hour.
    TicketsLast,
    /// A handed-over lease lasts for the whole ttl, not for the claim window.
    HandsOverTheTtl,
    /// A handed-over lease has one token.
    HandsOverOneToken,
    /// A withdrawal leaves the ticket.
    LeavesTickets,
    /// A withdrawal leaves a lease that was handed over in the meantime.
    LeavesWhatWasHandedOver,
    /// Grants are not pushed.
    PushesNoGrant,
    /// Losses are not pushed.
    PushesNoLoss,
    /// A loss is pushed with the token of the lost lease.
    PushesTheOldToken,
    /// The opening of a key is not pushed.
    PushesNoOpening,
    /// Prefixes are patterns, as with SQL's `LIKE`.
    PrefixIsAPattern,
    /// Prefixes fold case.
    PrefixFoldsCase,
    /// Pages follow each other in an order that folds case.
    PagesFoldCase,
    /// Expired leases are listed.
    ListsTheExpired,
    /// What belongs to a key has the name of another key.
    SharesItsCompanions,
    /// Keys are compared by a hash of 16 bits.
    HashesShortly,
    /// A list ends after 200 locks, whether or not they match.
    ListsTheFirst,
    /// A minimum hold is not kept.
    NoMinimumHold,
}

/// By how much [`Bare::ReportsTheTtl`] exaggerates.
const MORE: Duration = Duration::from_millis(20);
/// The time between two steps that should be one.
const BETWEEN: Duration = Duration::from_millis(2);

/// How many locks [`Bare::ListsTheFirst`] looks at.
const LISTED: NonZeroUsize = NonZeroUsize::new(200).expect("not zero");

/// Returns the hash of [`Bare::HashesShortly`].
fn hash(text: &str) -> u16 {
    text.bytes().fold(0, |hash: u16, byte| hash.wrapping_mul(257).wrapping_add(byte.into()))
}

/// The stores of one check.
pub(crate) struct Bares {
    broken: Bare,
    memory: MemoryStore,
    seen: Arc<Mutex<Seen>>,
}

#[derive(Debug, Default)]
struct Seen {
    /// The last release of each key.
    released: HashMap<LockKey, AcquisitionId>,
    /// All grants, as they were listed at the time.
    granted: Vec<LockInfo>,
    /// How long the leases of each key last.
    ttls: HashMap<LockKey, Duration>,
}

impl Bare {
    pub(crate) fn fixture(self) -> Bares {
        Bares { broken: self, memory: MemoryStore::new(), seen: Arc::default() }
    }

    fn has_batches(self) -> bool {
        matches!(
            self,
            Self::AttemptsBackwards
                | Self::OneBusyRefusesAll
                | Self::ReleasesBackwards
                | Self::ABatchFreesTheKey
                | Self::ABatchForgetsWaiters
                | Self::RefusedAttemptStopsTheBatch
                | Self::RefusedAttemptShiftsTheAnswers
                | Self::RefusedAttemptLeavesATicket
                | Self::WithdrawalsStop
                | Self::WithdrawalsLeaveTickets
                | Self::WithdrawalsFreeTheKeys
        )
    }

    /// Returns the key as the store compares it.
    fn key(self, key: &LockKey) -> LockKey {
        let text = key.as_str();
        let known = match self {
            Self::FoldsCase => text.to_lowercase(),
            Self::FoldsTurkish => text.replace(['\u{131}', '\u{130}'], "i"),
            Self::Trims => text.trim_end().to_owned(),
            Self::SharesItsCompanions => text.trim_end_matches(":token").to_owned(),
            Self::HashesShortly => hash(text).to_string(),
            _ => return key.clone(),
        };
        LockKey::new(known).expect("a valid key")
    }

    fn claim(self, claim: &Claim) -> Claim {
        let key = self.key(claim.key());
        if key == *claim.key() { claim.clone() } else { Claim::new(key, claim.id().clone()) }
    }

    /// Returns whether a key begins with a prefix.
    fn matches(self, key: &LockKey, prefix: &str) -> bool {
        match self {
            Self::PrefixFoldsCase => key.as_str().to_lowercase().starts_with(&prefix.to_lowercase()),
            Self::PrefixIsAPattern => {
                let same = |(pattern, text): (char, char)| pattern == '_' || pattern == text;
                key.as_str().chars().count() >= prefix.chars().count()
                    && prefix.chars().zip(key.as_str().chars()).all(same)
            }
            _ => key.as_str().starts_with(prefix),
        }
    }
}

#[async_trait]
impl Fixture for Bares {
    fn name(&self) -> &str {
        "bare"
    }

    fn profile(&self) -> Profile {
        Profile::new(promised::exclusive()).admin().owners().store()
    }

    async fn clients(&self, count: usize) -> std::result::Result<Vec<Client>, FixtureError> {
        Ok((0..count).map(|_| Client::of_store(self.memory.clone())).collect())
    }

    async fn store(&self) -> std::result::Result<Arc<dyn LeaseStore>, FixtureError> {
        let (memory, seen) = (self.memory.clone(), Arc::clone(&self.seen));
        let store = Arc::new(BareStore { memory, broken: self.broken, seen });
        if self.broken == Bare::Slow {
            return Ok(Arc::new(DisturbedStore::new(store).slowed(Slowness::PerClient)));
        }
        Ok(store)
    }
}

#[derive(Debug)]
struct BareStore {
    memory: MemoryStore,
    broken: Bare,
    seen: Arc<Mutex<Seen>>,
}

impl BareStore {
    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap()
    }

    fn holder(&self, key: &LockKey) -> Option<LockInfo> {
        self.memory.peek(key)
    }

    fn holds(&self, claim: &Claim) -> bool {
        self.holder(claim.key()).is_some_and(|info| info.id.as_ref() == Some(claim.id()))
    }

    /// Changes an attempt before it is carried out.
    async fn before(&self, attempt: &mut Attempt) -> Result<()> {
        match self.broken {
            Bare::RoundsTtl => attempt.ttl = Duration::from_secs(attempt.ttl.as_millis().div_ceil(1000) as u64),
            Bare::RepeatExtendsNothing if self.holds(&attempt.claim) => attempt.ttl = Duration::from_millis(1),
            Bare::RepeatTakesTokens if self.holds(&attempt.claim) => {
                let _ = self.memory.release(&Release::new(attempt.claim.clone())).await?;
            }
            Bare::BlocksOverlap => attempt.tokens = NonZeroU32::MIN,
            Bare::RepeatLosesThePlace if !self.holds(&attempt.claim) => {
                self.memory.withdraw(&attempt.claim, BETWEEN).await?;
            }
            Bare::MereAttemptLosesThePlace if attempt.ticket.is_none() && !self.holds(&attempt.claim) => {
                self.memory.withdraw(&attempt.claim, BETWEEN).await?;
            }
            _ => {}
        }
        if let Some(ticket) = &mut attempt.ticket {
            match self.broken {
                Bare::UnboundedQueue => ticket.capacity = u32::MAX,
                Bare::TicketsLast => ticket.ttl = Duration::from_secs(3600),
                Bare::HandsOverTheTtl => ticket.claim_ttl = attempt.ttl,
                Bare::HandsOverOneToken => attempt.tokens = NonZeroU32::MIN,
                _ => {}
            }
        }
        Ok(())
    }

    /// Takes the key from a holder that came in between two steps.
    async fn take_anyway(&self, attempt: &Attempt) -> Result<Reply> {
        self.memory.force_release(attempt.claim.key());
        self.memory.try_acquire(attempt).await
    }
}

#[async_trait]
impl LeaseStore for BareStore {
    fn capabilities(&self) -> StoreCapabilities {
        self.memory.capabilities()
    }

    fn name(&self) -> &str {
        "bare"
    }

    async fn try_acquire(&self, attempt: &Attempt) -> Result<Reply> {
        let requested = attempt.tokens;
        let mut attempt = attempt.clone();
        attempt.claim = self.broken.claim(&attempt.claim);
        let key = attempt.claim.key().clone();
        let is_free = self.holder(&key).is_none();
        let is_known = self.seen().ttls.contains_key(&key);
        self.before(&mut attempt).await?;
        let in_two_steps = match self.broken {
            Bare::SelectThenUpdate => is_free && !is_known,
            Bare::SelectThenTakeOver => is_free && is_known,
            Bare::ContentionIsAnError => is_free,
            _ => false,
        };
        if in_two_steps {
            sleep(BETWEEN).await;
        }
        let reply = match self.memory.try_acquire(&attempt).await? {
            Reply::Busy(_) if in_two_steps && self.broken == Bare::ContentionIsAnError => {
                return Err(LockError::new(distlock_api::ErrorKind::Unavailable, "could not serialize access"));
            }
            Reply::Busy(_) if in_two_steps => self.take_anyway(&attempt).await?,
            reply => reply,
        };
        Ok(match reply {
            Reply::Granted(grant) => {
                let listed = self.holder(&key);
                let mut seen = self.seen();
                seen.granted.extend(listed);
                seen.ttls.insert(key, attempt.ttl);
                if self.broken == Bare::BlocksOverlap {
                    Reply::Granted(grant.with_tokens(requested))
                } else {
                    Reply::Granted(grant)
                }
            }
            Reply::Busy(busy) if self.broken == Bare::ReportsTheTtl => {
                let ttl = self.seen().ttls.get(&key).copied().unwrap_or_default();
                Reply::Busy(busy.with_holder_remaining(ttl + MORE))
            }
            busy => busy,
        })
    }

    async fn renew(&self, renewal: &Renewal) -> Result<Standing> {
        let mut renewal = renewal.clone();
        renewal.claim = self.broken.claim(&renewal.claim);
        let (key, held) = (renewal.claim.key().clone(), self.holds(&renewal.claim));
        match &mut renewal.subject {
            RenewalSubject::Lease { token, ttl } => {
                let info = self.holder(&key).filter(|_| held);
                match (self.broken, info) {
                    (Bare::RenewalAdds, Some(info)) => *ttl += info.remaining,
                    (Bare::RenewalIgnoresToken, Some(info)) => *token = info.token,
                    (Bare::RenewsInTwoSteps, Some(_)) => sleep(BETWEEN).await,
                    _ => {}
                }
                let ttl = *ttl;
                let standing = self.memory.renew(&renewal).await?;
                let takes_again = match self.broken {
                    Bare::RenewalRevives => self.holder(&key).is_none() && self.seen().ttls.contains_key(&key),
                    Bare::RenewsInTwoSteps => held,
                    _ => false,
                };
                if takes_again && matches!(standing, Standing::Gone(_)) {
                    self.memory.try_acquire(&Attempt::new(renewal.claim, ttl)).await?;
                    return Ok(Standing::Held { remaining: ttl });
                }
                Ok(standing)
            }
            RenewalSubject::Ticket(ticket) => {
                let ticket: Ticket = *ticket;
                let standing = self.memory.renew(&renewal).await?;
                let takes_another = match self.broken {
                    Bare::RefreshAdds => matches!(standing, Standing::Gone(_)),
                    Bare::RefreshLosesThePlace => matches!(standing, Standing::Waiting(_)),
                    _ => false,
                };
                if takes_another {
                    self.memory.withdraw(&renewal.claim, BETWEEN).await?;
                    let attempt = Attempt::new(renewal.claim, Duration::from_secs(60)).with_ticket(ticket);
                    if let Reply::Busy(busy) = self.memory.try_acquire(&attempt).await?
                        && busy.standing != QueueStanding::NotQueued
                    {
                        return Ok(Standing::Waiting(busy));
                    }
                }
                Ok(standing)
            }
            _ => self.memory.renew(&renewal).await,
        }
    }

    async fn release(&self, release: &Release) -> Result<ReleaseOutcome> {
        let mut release = release.clone();
        release.claim = self.broken.claim(&release.claim);
        let (key, id) = (release.claim.key().clone(), release.claim.id().clone());
        if self.broken == Bare::NoMinimumHold {
            release.hold_at_least = None;
        }
        let held = self.holds(&release.claim);
        if self.broken == Bare::ReleasesInTwoSteps && (held || self.holder(&key).is_none()) {
            sleep(BETWEEN).await;
            let outcome = self.memory.release(&release).await?;
            self.memory.force_release(&key);
            return Ok(outcome);
        }
        let outcome = self.memory.release(&release).await?;
        if held {
            self.seen().released.insert(key.clone(), id.clone());
        }
        let was_granted = self.seen().granted.iter().any(|info| info.id.as_ref() == Some(&id));
        Ok(match self.broken {
            Bare::ReleasesTheExpired if was_granted => ReleaseOutcome::Released,
            Bare::RemembersOneRelease if self.seen().released.get(&key) != Some(&id) => ReleaseOutcome::AlreadyLost,
            _ => outcome,
        })
    }

    async fn withdraw(&self, claim: &Claim, timeout: Duration) -> Result<()> {
        let claim = self.broken.claim(claim);
        let (held, waits) = (self.holds(&claim), self.memory.waiting(claim.key()).contains(claim.id()));
        match self.broken {
            Bare::WithdrawsNothing if held => Ok(()),
            Bare::LeavesTickets if waits => Ok(()),
            Bare::LeavesWhatWasHandedOver if waits => {
                sleep(BETWEEN).await;
                if self.holds(&claim) { Ok(()) } else { self.memory.withdraw(&claim, timeout).await }
            }
            _ => self.memory.withdraw(&claim, timeout).await,
        }
    }

    fn extras(&self) -> StoreExtras<'_> {
        let mut extras = StoreExtras::default();
        extras.queue = Some(self);
        extras.events = Some(self);
        extras.batch_renew = Some(self);
        extras.batch = self.broken.has_batches().then_some(self as &dyn BatchStore);
        extras.admin = Some(self);
        extras
    }
}

#[async_trait]
impl QueueStore for BareStore {
    async fn waiters(&self, claim: &Claim, timeout: Duration) -> Result<u32> {
        self.memory.waiters(&self.broken.claim(claim), timeout).await
    }
}

#[async_trait]
impl EventStore for BareStore {
    async fn subscribe(&self, watch: &Watch) -> Result<EventStream> {
        let broken = self.broken;
        let events = self.memory.subscribe(watch).await?;
        let pushed = move |event: Result<StoreEvent>| match (broken, event) {
            (Bare::PushesNoGrant, Ok(StoreEvent::Granted { .. }))
            | (Bare::PushesNoLoss, Ok(StoreEvent::Gone { .. }))
            | (Bare::PushesNoOpening, Ok(StoreEvent::Freed { .. })) => None,
            (Bare::PushesTheOldToken, Ok(StoreEvent::Gone { key, id, token, loss })) => {
                let token = FencingToken::new(token.get() - 1);
                Some(Ok(StoreEvent::Gone { key, id, token, loss }))
            }
            (_, event) => Some(event),
        };
        Ok(events.filter_map(move |event| std::future::ready(pushed(event))).boxed())
    }
}

#[async_trait]
impl BatchRenewStore for BareStore {
    fn renew_batch(&self) -> NonZeroUsize {
        NonZeroUsize::new(4).expect("not zero")
    }

    async fn renew_many(&self, renewals: &[Renewal]) -> Vec<Result<Standing>> {
        let mut standings = Vec::new();
        for renewal in renewals {
            standings.push(self.renew(renewal).await);
        }
        let is_gone = |standing: &Result<Standing>| matches!(standing, Ok(Standing::Gone(_)));
        match self.broken {
            Bare::BatchBackwards => standings.reverse(),
            Bare::BatchAllOrNothing if standings.iter().any(is_gone) => {
                standings.iter_mut().for_each(|standing| *standing = Ok(Standing::Gone(Loss::Gone)));
            }
            Bare::BatchStops => {
                let answered = standings.iter().position(is_gone).map_or(standings.len(), |at| at + 1);
                standings.truncate(answered);
            }
            Bare::BatchRefreshesNothing => {
                for (standing, renewal) in standings.iter_mut().zip(renewals) {
                    if matches!(renewal.subject, RenewalSubject::Ticket(_)) {
                        *standing = Ok(Standing::Gone(Loss::Gone));
                    }
                }
            }
            _ => {}
        }
        standings
    }
}

#[async_trait]
impl BatchStore for BareStore {
    fn acquire_batch(&self) -> NonZeroUsize {
        NonZeroUsize::new(16).expect("not zero")
    }

    async fn try_acquire_many(&self, attempts: &[Attempt]) -> Vec<Result<Reply>> {
        let mut replies = Vec::new();
        let is_busy = |reply: &Result<Reply>| matches!(reply, Ok(Reply::Busy(_)));
        for attempt in attempts {
            if self.broken == Bare::RefusedAttemptStopsTheBatch && replies.iter().any(is_busy) {
                replies.push(Ok(Reply::Busy(BusyReply::new())));
                continue;
            }
            let reply = self.try_acquire(attempt).await;
            let is_full = matches!(&reply, Ok(Reply::Busy(busy)) if busy.standing == QueueStanding::Full);
            if is_full && self.broken == Bare::RefusedAttemptLeavesATicket {
                let mut again = attempt.clone();
                again.ticket = again.ticket.map(|ticket| Ticket::new(ticket.ttl, ticket.claim_ttl, u32::MAX));
                let _ = self.try_acquire(&again).await;
            }
            replies.push(reply);
        }
        match self.broken {
            Bare::RefusedAttemptShiftsTheAnswers => {
                if let Some(refused) = replies.iter().position(is_busy) {
                    replies[refused..].rotate_left(1);
                }
            }
            Bare::AttemptsBackwards => replies.reverse(),
            Bare::OneBusyRefusesAll if replies.iter().any(is_busy) => {
                replies.iter_mut().for_each(|reply| *reply = Ok(Reply::Busy(BusyReply::new())));
            }
            _ => {}
        }
        replies
    }

    async fn release_many(&self, releases: &[Release]) -> Vec<Result<ReleaseOutcome>> {
        let mut outcomes = Vec::new();
        for release in releases {
            let outcome = self.release(release).await;
            let frees_the_key = match self.broken {
                Bare::ABatchFreesTheKey => !matches!(outcome, Ok(ReleaseOutcome::Released)),
                // The release has granted it to the first waiter.
                Bare::ABatchForgetsWaiters => matches!(outcome, Ok(ReleaseOutcome::Released)),
                _ => false,
            };
            if frees_the_key {
                self.memory.force_release(release.claim.key());
            }
            outcomes.push(outcome);
        }
        if self.broken == Bare::ReleasesBackwards {
            outcomes.reverse();
        }
        outcomes
    }

    async fn withdraw_many(&self, claims: &[Claim], timeout: Duration) -> Vec<Result<()>> {
        let waits = |claim: &Claim| self.memory.waiting(claim.key()).contains(claim.id());
        let withdrawn =
            claims.iter().take_while(|claim| self.broken != Bare::WithdrawalsStop || self.holds(claim) || waits(claim));
        let withdrawn: Vec<_> = withdrawn.collect();
        for claim in &withdrawn {
            if self.broken == Bare::WithdrawalsLeaveTickets && waits(claim) {
                continue;
            }
            if self.broken == Bare::WithdrawalsFreeTheKeys {
                self.memory.force_release(claim.key());
            }
            if let Err(error) = self.withdraw(claim, timeout).await {
                return claims.iter().map(|_| Err(error.clone())).collect();
            }
        }
        claims.iter().map(|_| Ok(())).collect()
    }
}

impl BareStore {
    /// Returns all locks that the store lists, in its order.
    async fn all(&self, filter: &LockFilter) -> Result<Vec<LockInfo>> {
        let everything = filter.clone().prefix("");
        let mut all = self.sound().page(&everything, None, NonZeroUsize::MAX).await?;
        if self.broken == Bare::ListsTheExpired {
            let listed = |key: &LockKey| all.iter().any(|info| info.key == *key);
            let expired: Vec<_> = self.seen().granted.iter().filter(|info| !listed(&info.key)).cloned().collect();
            all.extend(expired);
        }
        if self.broken == Bare::ListsTheFirst {
            all = self.sound().page(&LockFilter::new(), None, LISTED).await?;
            all.retain(|info| filter.owner.is_none() || filter.owner == info.owner);
        }
        all.retain(|info| self.broken.matches(&info.key, &filter.prefix));
        if self.broken == Bare::PagesFoldCase {
            all.sort_by_key(|info| info.key.as_str().to_lowercase());
        } else {
            all.sort_by(|a, b| a.key.cmp(&b.key));
        }
        Ok(all)
    }

    fn sound(&self) -> &dyn LockAdmin {
        self.memory.extras().admin.expect("the memory store has administration")
    }
}

#[async_trait]
impl LockAdmin for BareStore {
    async fn inspect(&self, key: &LockKey) -> Result<Option<LockInfo>> {
        self.sound().inspect(&self.broken.key(key)).await
    }

    async fn force_release(&self, key: &LockKey, reason: &str) -> Result<Option<LockInfo>> {
        self.sound().force_release(&self.broken.key(key), reason).await
    }

    async fn page(&self, filter: &LockFilter, after: Option<&LockKey>, limit: NonZeroUsize) -> Result<Vec<LockInfo>> {
        let folds = self.broken == Bare::PagesFoldCase;
        let is_after = |key: &LockKey| match after {
            None => true,
            Some(after) if folds => key.as_str().to_lowercase() > after.as_str().to_lowercase(),
            Some(after) => key > after,
        };
        let all = self.all(filter).await?;
        Ok(all.into_iter().filter(|info| is_after(&info.key)).take(limit.get()).collect())
    }

    async fn release_matching(&self, filter: &LockFilter, reason: &str) -> Result<u64> {
        filter.ensure_restricted()?;
        let mut released = 0;
        for info in self.all(filter).await? {
            released += u64::from(self.sound().force_release(&info.key, reason).await?.is_some());
        }
        Ok(released)
    }
}
