//! Stores with a queue and pushes that break a rule of [`LeaseStore`].

use std::collections::{HashMap, HashSet};
use std::future::ready;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use distlock_api::{AcquisitionId, Capabilities, LockAdmin, Loss, ReleaseOutcome, Result, async_trait};
use distlock_conformance::{Client, DisturbedStore, Profile};
use distlock_engine::store::{
    Attempt, BusyReply, Claim, EventStream, QueueStanding, Release, Renewal, RenewalSubject, Reply, Standing,
    StoreCapabilities, StoreEvent, StoreTime, Ticket, Watch,
};
use distlock_engine::{LeaseProvider, LeaseStore, QueueOptions};
use distlock_memory::MemoryStore;
use futures_util::{StreamExt, stream};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Queue {
    /// Nothing is wrong with it.
    Sound,
    /// Nothing is wrong with it: it is slow.
    Slow,
    /// A release grants to whoever came last.
    LastInFirstOut,
    /// A release leaves the key to whoever asks first, in the queue or not.
    FirstToAsk,
    /// A ticket stays when its waiter leaves.
    Ghosts,
    /// Whoever leaves the queue takes all others along.
    EverybodyLeaves,
    /// A withdrawal says that it was done, and was not.
    WithdrawalLies,
    /// The head of the queue is granted the lease, and told that it still waits.
    Silent,
    /// So it is if nothing can be pushed to it, and a stream that breaks looks as if it went on.
    HidesBreaks,
    /// An attempt looks at the lease in one step, and takes its place in another; of a lease that is free nobody is told.
    TakesItsPlaceLate,
    /// A waiter that is granted the lease and does not come keeps it from the others.
    DeadHeadBlocks,
    /// Whoever was told once that the lease is busy is told so for ever.
    BusyForEver,
    /// A release tells everybody to ask.
    WakesAll,
    /// A grant is said to last an hour when it is pushed.
    LiesAboutExpiry,
    /// A repeated attempt is busy with the lease that the first one got.
    BusyWithItself,
    /// A repeated release frees the key, whoever holds it.
    ReleasesTheNext,
    /// A repeated release is told that there was nothing to release.
    ForgetsReleases,
    /// A renewal whose reply is lost is answered: the lease is gone.
    UnknownIsLoss,
    /// A request waits for the answer to the one before.
    OneAtATime,
}

/// How long a request takes for [`Queue::Slow`].
const SLOW: Duration = Duration::from_millis(40);
/// What a liar says that remains of the present holder's lease.
const AGES: Duration = Duration::from_secs(120);
/// How long [`Queue::TakesItsPlaceLate`] is late.
const LATE: Duration = Duration::from_millis(20);

impl Queue {
    pub(crate) fn profile() -> Profile {
        let mut promised = Capabilities::default();
        promised.expiry = true;
        promised.minimum_hold = true;
        promised.fair = true;
        promised.push = true;
        Profile::new(promised).admin().disturbed()
    }

    /// Clients of one store that is broken for all of them.
    pub(crate) fn clients(self, count: usize) -> Vec<Client> {
        let (memory, seen) = (MemoryStore::new(), Arc::default());
        let provider = |store| LeaseProvider::builder(store).queue(self.options()).build().expect("valid options");
        let client = || {
            let around = |next, seen| Arc::new(BrokenQueue { next, memory: memory.clone(), broken: self, seen });
            let sound = Arc::new(memory.clone());
            if self.is_before_the_faults() {
                let disturbed = DisturbedStore::new(sound);
                let store = around(Arc::new(disturbed.clone()), Arc::default());
                return Client::new(Arc::new(provider(store))).with_controls(disturbed);
            }
            let disturbed = DisturbedStore::new(around(sound, Arc::clone(&seen)));
            Client::new(Arc::new(provider(Arc::new(disturbed.clone())))).with_controls(disturbed)
        };
        (0..count).map(|_| client()).collect()
    }

    /// Where nothing may be caught, claims are longer than busy machines stall: who misses one stands behind the others.
    fn options(self) -> QueueOptions {
        let is_sound = matches!(self, Self::Sound | Self::Slow);
        if is_sound { QueueOptions::new().claim(Duration::from_secs(3)) } else { QueueOptions::new() }
    }

    /// Whether it breaks what faults do to a client, rather than the store behind them.
    fn is_before_the_faults(self) -> bool {
        matches!(self, Self::HidesBreaks | Self::UnknownIsLoss | Self::OneAtATime)
    }

    fn sends(self, renewal: &Renewal) -> Renewal {
        let mut renewal = renewal.clone();
        if let (Self::DeadHeadBlocks, RenewalSubject::Ticket(ticket)) = (self, &mut renewal.subject) {
            *ticket = for_ages(*ticket);
        }
        renewal
    }

    fn answers(self, renewal: &Renewal, answer: Result<Standing>) -> Result<Standing> {
        let is_ticket = matches!(renewal.subject, RenewalSubject::Ticket(_));
        match (self, answer) {
            (
                Self::Silent | Self::HidesBreaks | Self::TakesItsPlaceLate,
                Ok(Standing::Held { .. } | Standing::Gone(_)),
            ) if is_ticket => Ok(Standing::Waiting(still_first())),
            (Self::UnknownIsLoss, Err(error)) if !is_ticket && error.is_outcome_unknown() => {
                Ok(Standing::Gone(Loss::Gone))
            }
            (_, answer) => answer,
        }
    }

    fn pushes(self, event: Result<StoreEvent>) -> Option<Result<StoreEvent>> {
        match (self, event) {
            (Self::Silent, Ok(StoreEvent::Granted { .. })) | (Self::HidesBreaks, Err(_)) => None,
            (Self::TakesItsPlaceLate, Ok(StoreEvent::Freed { .. })) => None,
            (Self::LiesAboutExpiry, Ok(StoreEvent::Granted { key, id, grant, expires_at })) => {
                let origin = StoreTime::since_origin(Duration::ZERO);
                let later = expires_at.saturating_since(origin) + Duration::from_secs(3600);
                Some(Ok(StoreEvent::Granted { key, id, grant, expires_at: StoreTime::since_origin(later) }))
            }
            (_, event) => Some(event),
        }
    }
}

/// A ticket that nobody has to refresh, and a claim that nobody has to take up.
fn for_ages(ticket: Ticket) -> Ticket {
    Ticket::new(AGES, AGES, ticket.capacity)
}

/// What a waiter hears that shall not ask again.
fn still_first() -> BusyReply {
    BusyReply::new().with_holder_remaining(AGES).with_standing(QueueStanding::Queued { ahead: 0 })
}

#[derive(Debug)]
struct BrokenQueue {
    next: Arc<dyn LeaseStore>,
    memory: MemoryStore,
    broken: Queue,
    seen: Arc<Seen>,
}

#[derive(Debug, Default)]
struct Seen {
    /// Held by whoever makes several steps of one.
    alone: tokio::sync::Mutex<()>,
    book: Mutex<Book>,
}

#[derive(Debug, Default)]
struct Book {
    attempts: HashMap<AcquisitionId, Attempt>,
    busy: HashSet<AcquisitionId>,
    granted: HashSet<AcquisitionId>,
    released: HashSet<AcquisitionId>,
}

impl BrokenQueue {
    fn book(&self) -> MutexGuard<'_, Book> {
        self.seen.book.lock().unwrap()
    }

    /// What a request has to wait for.
    async fn begin(&self) -> Option<tokio::sync::MutexGuard<'_, ()>> {
        match self.broken {
            Queue::Slow => tokio::time::sleep(SLOW).await,
            Queue::OneAtATime | Queue::LastInFirstOut => return Some(self.seen.alone.lock().await),
            _ => {}
        }
        None
    }

    fn holds(&self, claim: &Claim) -> bool {
        self.memory.peek(claim.key()).is_some_and(|lock| lock.id.as_ref() == Some(claim.id()))
    }

    async fn take_place_late(&self, attempt: &Attempt) -> Result<Reply> {
        let mut look = attempt.clone();
        look.ticket = None;
        let reply = self.next.try_acquire(&look).await?;
        if attempt.ticket.is_none() || matches!(reply, Reply::Granted(_)) {
            return Ok(reply);
        }
        tokio::time::sleep(LATE).await;
        Ok(match self.next.try_acquire(attempt).await? {
            Reply::Granted(_) => {
                self.next.withdraw(&attempt.claim, attempt.timeout).await?;
                Reply::Busy(still_first())
            }
            busy => busy,
        })
    }

    /// All but the last waiter stand aside meanwhile.
    async fn release_to_the_last(&self, release: &Release) -> Result<ReleaseOutcome> {
        let mut waiting = self.memory.waiting(release.claim.key());
        waiting.pop();
        let overtaken: Vec<Attempt> = {
            let book = self.book();
            waiting.iter().filter_map(|id| book.attempts.get(id).cloned()).collect()
        };
        for attempt in &overtaken {
            self.next.withdraw(&attempt.claim, attempt.timeout).await?;
        }
        let outcome = self.next.release(release).await;
        for attempt in &overtaken {
            self.next.try_acquire(attempt).await?;
        }
        outcome
    }

    /// The store of those who know nothing of a queue.
    fn without_queue(&self) -> MemoryStore {
        let mut poorer = LeaseStore::capabilities(&self.memory);
        poorer.queue = false;
        self.memory.clone().with_capabilities(poorer)
    }
}

#[async_trait]
impl LeaseStore for BrokenQueue {
    fn capabilities(&self) -> StoreCapabilities {
        self.next.capabilities()
    }

    fn name(&self) -> &str {
        "broken"
    }

    async fn try_acquire(&self, attempt: &Attempt) -> Result<Reply> {
        let _alone = self.begin().await;
        let id = attempt.claim.id();
        self.book().attempts.insert(id.clone(), attempt.clone());
        let reply = match self.broken {
            Queue::FirstToAsk => self.next.try_acquire(&attempt.clone().with_turn_window(Duration::ZERO)).await?,
            Queue::DeadHeadBlocks => {
                let mut attempt = attempt.clone();
                attempt.ticket = attempt.ticket.map(for_ages);
                self.next.try_acquire(&attempt).await?
            }
            Queue::TakesItsPlaceLate => self.take_place_late(attempt).await?,
            Queue::BusyWithItself if self.book().granted.contains(id) => Reply::Busy(BusyReply::new()),
            _ => self.next.try_acquire(attempt).await?,
        };
        let mut book = self.book();
        Ok(match reply {
            Reply::Granted(_) if self.broken == Queue::BusyForEver && book.busy.contains(id) => {
                Reply::Busy(BusyReply::new())
            }
            Reply::Granted(grant) => {
                book.granted.insert(id.clone());
                Reply::Granted(grant)
            }
            busy => {
                book.busy.insert(id.clone());
                busy
            }
        })
    }

    async fn renew(&self, renewal: &Renewal) -> Result<Standing> {
        let _alone = self.begin().await;
        let sent = self.broken.sends(renewal);
        self.broken.answers(renewal, self.next.renew(&sent).await)
    }

    async fn renew_many(&self, renewals: &[Renewal]) -> Vec<Result<Standing>> {
        let _alone = self.begin().await;
        let sent: Vec<_> = renewals.iter().map(|renewal| self.broken.sends(renewal)).collect();
        let answers = self.next.renew_many(&sent).await;
        renewals.iter().zip(answers).map(|(renewal, answer)| self.broken.answers(renewal, answer)).collect()
    }

    async fn release(&self, release: &Release) -> Result<ReleaseOutcome> {
        let _alone = self.begin().await;
        let again = !self.book().released.insert(release.claim.id().clone());
        let outcome = match self.broken {
            Queue::LastInFirstOut => self.release_to_the_last(release).await?,
            Queue::FirstToAsk => self.without_queue().release(release).await?,
            _ => self.next.release(release).await?,
        };
        let key = release.claim.key();
        match self.broken {
            Queue::WakesAll => self.memory.push(StoreEvent::Freed { key: key.clone() }),
            Queue::ReleasesTheNext if again => drop(self.memory.force_release(key)),
            Queue::ForgetsReleases if again => return Ok(ReleaseOutcome::AlreadyLost),
            _ => {}
        }
        Ok(outcome)
    }

    async fn withdraw(&self, claim: &Claim, timeout: Duration) -> Result<()> {
        let _alone = self.begin().await;
        match self.broken {
            Queue::WithdrawalLies => return Ok(()),
            Queue::Ghosts if !self.holds(claim) => return Ok(()),
            Queue::EverybodyLeaves if !self.holds(claim) => drop(self.memory.drop_tickets(claim.key())),
            _ => {}
        }
        self.next.withdraw(claim, timeout).await
    }

    async fn waiters(&self, claim: &Claim, timeout: Duration) -> Result<u32> {
        let _alone = self.begin().await;
        self.next.waiters(claim, timeout).await
    }

    async fn subscribe(&self, watch: &Watch) -> Result<EventStream> {
        let broken = self.broken;
        let events = self.next.subscribe(watch).await?.filter_map(move |event| ready(broken.pushes(event)));
        Ok(if broken == Queue::HidesBreaks { Box::pin(events.chain(stream::pending())) } else { Box::pin(events) })
    }

    fn admin(&self) -> Option<&dyn LockAdmin> {
        self.next.admin()
    }

    async fn close(&self) -> Result<()> {
        self.next.close().await
    }
}
