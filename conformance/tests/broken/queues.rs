//! Stores with a queue and pushes that break a rule of [`LeaseStore`].

use std::collections::{HashMap, HashSet};
use std::future::ready;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use distlock_api::{AcquisitionId, Loss, ReleaseOutcome, Result, async_trait};
use distlock_conformance::{Client, DisturbedStore, Profile, Slowness};
use distlock_engine::store::{
    Attempt, BatchRenewStore, BusyReply, Claim, EventStore, EventStream, QueueStanding, QueueStore, Release, Renewal,
    RenewalSubject, Reply, Standing, StoreCapabilities, StoreEvent, StoreExtras, StoreTime, Ticket, Watch,
};
use distlock_engine::{LeaseProvider, LeaseStore, QueueOptions};
use distlock_memory::MemoryStore;
use futures_util::{StreamExt, stream};

use crate::promised;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Queue {
    /// Nothing is broken.
    Sound,
    /// Nothing is broken; the store is slow.
    Slow,
    /// A release hands the lease to the last waiter.
    LastInFirstOut,
    /// A release leaves the key to the first attempt, queued or not.
    FirstAttempt,
    /// A ticket stays when its waiter leaves.
    Ghosts,
    /// A waiter that leaves the queue removes all other tickets.
    WithdrawalEmpties,
    /// A withdrawal returns `Ok` and does nothing.
    WithdrawalDoesNothing,
    /// The head of the queue is granted the lease, and answered that it still waits.
    Silent,
    /// As `Silent` for waiters without pushes, and a stream that breaks looks alive.
    HidesBreaks,
    /// An attempt reads the lease in one step and takes its ticket in another. A lease that became
    /// free in between is not reported.
    TakesTicketLate,
    /// A waiter that is granted the lease and does not claim it keeps it from the others.
    DeadHeadBlocks,
    /// A claim that was answered busy once is answered busy for ever.
    BusyForEver,
    /// A release wakes all waiters.
    WakesAll,
    /// A pushed grant has an expiry an hour too late.
    PushesLateExpiry,
    /// A repeated attempt is answered busy because of its own first grant.
    BusyWithItself,
    /// A repeated release frees the key, whichever claim holds it.
    ReleasesTheNext,
    /// A repeated release is answered `AlreadyLost`.
    ForgetsReleases,
    /// A renewal whose reply is lost reports the lease as gone.
    UnknownIsLoss,
    /// A request waits for the answer to the previous one.
    OneAtATime,
}

/// The remaining time that wrong answers report for the present holder's lease.
const AGES: Duration = Duration::from_secs(120);
/// How late [`Queue::TakesTicketLate`] takes its ticket.
const LATE: Duration = Duration::from_millis(250);

impl Queue {
    pub(crate) fn profile() -> Profile {
        Profile::new(promised::exclusive()).admin().disturbed()
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
                return Client::new(Arc::new(provider(store))).disturbed_by(disturbed);
            }
            let disturbed = DisturbedStore::new(around(sound, Arc::clone(&seen)));
            let disturbed = if self == Self::Slow { disturbed.slowed(Slowness::PerClient) } else { disturbed };
            Client::new(Arc::new(provider(Arc::new(disturbed.clone())))).disturbed_by(disturbed)
        };
        (0..count).map(|_| client()).collect()
    }

    /// Where nothing may be caught, claim windows are longer than busy machines stall: a waiter
    /// that misses its window goes to the end of the queue.
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
                Self::Silent | Self::HidesBreaks | Self::TakesTicketLate,
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
            (Self::TakesTicketLate, Ok(StoreEvent::Freed { .. })) => None,
            (Self::PushesLateExpiry, Ok(StoreEvent::Granted { key, id, grant, expires_at })) => {
                let origin = StoreTime::since_origin(Duration::ZERO);
                let later = expires_at.saturating_since(origin) + Duration::from_secs(3600);
                Some(Ok(StoreEvent::Granted { key, id, grant, expires_at: StoreTime::since_origin(later) }))
            }
            (_, event) => Some(event),
        }
    }
}

/// Returns a ticket that needs no refresh, with a claim window that does not pass.
fn for_ages(ticket: Ticket) -> Ticket {
    Ticket::new(AGES, AGES, ticket.capacity)
}

/// Returns the answer that keeps a waiter from trying again.
fn still_first() -> BusyReply {
    BusyReply::new().with_holder_remaining(AGES).with_standing(QueueStanding::Queued { ahead: 0 })
}

const SOUND: &str = "the memory store has it";

#[derive(Debug)]
struct BrokenQueue {
    next: Arc<dyn LeaseStore>,
    memory: MemoryStore,
    broken: Queue,
    seen: Arc<Seen>,
}

#[derive(Debug, Default)]
struct Seen {
    /// Held while several steps are made of one.
    step: tokio::sync::Mutex<()>,
    records: Mutex<Records>,
}

#[derive(Debug, Default)]
struct Records {
    attempts: HashMap<AcquisitionId, Attempt>,
    busy: HashSet<AcquisitionId>,
    granted: HashSet<AcquisitionId>,
    released: HashSet<AcquisitionId>,
}

impl BrokenQueue {
    fn records(&self) -> MutexGuard<'_, Records> {
        self.seen.records.lock().unwrap()
    }

    /// Delays a request, or makes it wait for the previous one.
    async fn begin(&self) -> Option<tokio::sync::MutexGuard<'_, ()>> {
        match self.broken {
            Queue::OneAtATime | Queue::LastInFirstOut => return Some(self.seen.step.lock().await),
            _ => {}
        }
        None
    }

    fn holds(&self, claim: &Claim) -> bool {
        self.memory.peek(claim.key()).is_some_and(|lock| lock.id.as_ref() == Some(claim.id()))
    }

    async fn take_ticket_late(&self, attempt: &Attempt) -> Result<Reply> {
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

    /// Releases to the last waiter: all others are withdrawn for the moment.
    async fn release_to_the_last(&self, release: &Release) -> Result<ReleaseOutcome> {
        let mut waiting = self.memory.waiting(release.claim.key());
        waiting.pop();
        let overtaken: Vec<Attempt> = {
            let records = self.records();
            waiting.iter().filter_map(|id| records.attempts.get(id).cloned()).collect()
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

    /// Returns the store as clients without a queue see it.
    fn without_queue(&self) -> MemoryStore {
        self.memory.clone().with_queue(false)
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
        let _step = self.begin().await;
        let id = attempt.claim.id();
        self.records().attempts.insert(id.clone(), attempt.clone());
        let reply = match self.broken {
            Queue::FirstAttempt => self.next.try_acquire(&attempt.clone().with_turn_window(Duration::ZERO)).await?,
            Queue::DeadHeadBlocks => {
                let mut attempt = attempt.clone();
                attempt.ticket = attempt.ticket.map(for_ages);
                self.next.try_acquire(&attempt).await?
            }
            Queue::TakesTicketLate => self.take_ticket_late(attempt).await?,
            Queue::BusyWithItself if self.records().granted.contains(id) => Reply::Busy(BusyReply::new()),
            _ => self.next.try_acquire(attempt).await?,
        };
        let mut records = self.records();
        Ok(match reply {
            Reply::Granted(_) if self.broken == Queue::BusyForEver && records.busy.contains(id) => {
                Reply::Busy(BusyReply::new())
            }
            Reply::Granted(grant) => {
                records.granted.insert(id.clone());
                Reply::Granted(grant)
            }
            busy => {
                records.busy.insert(id.clone());
                busy
            }
        })
    }

    async fn renew(&self, renewal: &Renewal) -> Result<Standing> {
        let _step = self.begin().await;
        let sent = self.broken.sends(renewal);
        self.broken.answers(renewal, self.next.renew(&sent).await)
    }

    async fn release(&self, release: &Release) -> Result<ReleaseOutcome> {
        let _step = self.begin().await;
        let again = !self.records().released.insert(release.claim.id().clone());
        let outcome = match self.broken {
            Queue::LastInFirstOut => self.release_to_the_last(release).await?,
            Queue::FirstAttempt => self.without_queue().release(release).await?,
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
        let _step = self.begin().await;
        match self.broken {
            Queue::WithdrawalDoesNothing => return Ok(()),
            Queue::Ghosts if !self.holds(claim) => return Ok(()),
            Queue::WithdrawalEmpties if !self.holds(claim) => drop(self.memory.drop_tickets(claim.key())),
            _ => {}
        }
        self.next.withdraw(claim, timeout).await
    }

    fn extras(&self) -> StoreExtras<'_> {
        let mut extras = self.next.extras();
        extras.queue = Some(self);
        extras.events = Some(self);
        extras.batch_renew = Some(self);
        extras
    }
}

#[async_trait]
impl EventStore for BrokenQueue {
    async fn subscribe(&self, watch: &Watch) -> Result<EventStream> {
        let broken = self.broken;
        let events = self
            .next
            .extras()
            .events
            .expect(SOUND)
            .subscribe(watch)
            .await?
            .filter_map(move |event| ready(broken.pushes(event)));
        Ok(if broken == Queue::HidesBreaks { Box::pin(events.chain(stream::pending())) } else { Box::pin(events) })
    }
}

#[async_trait]
impl QueueStore for BrokenQueue {
    async fn waiters(&self, claim: &Claim, timeout: Duration) -> Result<u32> {
        let _step = self.begin().await;
        self.next.extras().queue.expect(SOUND).waiters(claim, timeout).await
    }
}

#[async_trait]
impl BatchRenewStore for BrokenQueue {
    async fn renew_many(&self, renewals: &[Renewal]) -> Vec<Result<Standing>> {
        let _step = self.begin().await;
        let sent: Vec<_> = renewals.iter().map(|renewal| self.broken.sends(renewal)).collect();
        let answers = self.next.extras().batch_renew.expect(SOUND).renew_many(&sent).await;
        renewals.iter().zip(answers).map(|(renewal, answer)| self.broken.answers(renewal, answer)).collect()
    }
}
