//! The interface between the lease engine and a backend.

use std::any::Any;
use std::fmt;
use std::num::{NonZeroU32, NonZeroUsize};
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use futures_core::Stream;
use uuid::Uuid;

use crate::admin::LockAdmin;
use crate::error::{ErrorKind, LockError, Result};
use crate::guard::{Loss, ReleaseOutcome};
use crate::holder::Holder;
use crate::key::LockKey;
use crate::token::FencingToken;

/// What a backend author writes: single operations on one lease record per key. The
/// [`LeaseProvider`](crate::LeaseProvider) turns any store into a full [`LockProvider`](crate::LockProvider).
///
/// # Contract
/// Three methods are required. A store has **no loops, no timers, no tasks**: waiting, renewal, loss detection, retries and
/// clean-up are the engine's. Every method is one atomic step at the store, and between the steps of one key there is a single order.
///
/// ## Time
/// * Only the store's own clock decides whether a lease has expired (C2). No method receives a client's wall-clock time, and none may look at it.
/// * Durations that a store returns are differences of two readings of **its** clock in the same step ("expires at" minus "now").
///   The engine adds them to a monotonic instant that it took before it called.
/// * A lease is held while `now < expires_at`, and free from `expires_at` on.
///
/// ## Identity
/// * A [`Claim`] is one acquisition: its [id](Claim::id) is never used for another (C7). Who holds a key is decided by that id alone.
/// * All calls are idempotent per claim: the engine repeats a call whose reply was lost.
/// * Calls of one claim never overlap, except renewals with anything else. A call that the engine gave up on may still take
///   effect later. If the store can see to it that such a straggler is refused once a later call of the same claim has been
///   answered, it declares [`ordered_claims`](StoreCapabilities::ordered_claims).
///
/// ## Tokens
/// * Each *new* grant of a key gets a fencing token greater than any token granted for that key before: across release, expiry, force-release, restart and
///   removal of the record (C5). A repeated `try_acquire` of a claim that holds the lease returns the token of the first grant (C6, C10).
///
/// ## Errors
/// * Contention is an answer, not an error.
/// * An error whose operation **certainly did not** happen is [retryable](crate::Disposition::Retryable) or
///   [permanent](crate::Disposition::Permanent); if it may have happened the disposition is
///   [outcome unknown](crate::Disposition::OutcomeUnknown). When in doubt: unknown. A wrong "did not happen" makes leases nobody owns.
/// * Errors never contain a connection string.
///
/// ## Bounds and cancellation
/// * Every request carries a `timeout`. A store ends its call soon after that, with a retryable or unknown-outcome error, and
///   passes the bound on to the server where it can. The engine protects itself from a store that does not.
/// * A caller that leaves earlier does not end the call: the engine lets it finish in the background.
/// * The engine may drop the future of a call at any await. The effect may then come or not; nothing else may break.
///
/// # Testing
/// Run the conformance suite (`distlock-conformance`): it names the clause that a store breaks.
#[async_trait]
pub trait LeaseStore: fmt::Debug + Send + Sync + 'static {
    /// What the store can do beyond the required. Asked afresh with each use: it may grow when the store has met its server, and never shrinks.
    /// Defaults to nothing.
    fn capabilities(&self) -> StoreCapabilities {
        StoreCapabilities::default()
    }

    /// A name for logs and metrics, such as `mongodb`. Contains no secret.
    fn name(&self) -> &str;

    /// Tries once to take the lease `attempt.claim.key()` for the claim.
    ///
    /// In one step:
    /// 1. the claim holds the lease already, unexpired: its expiry becomes the later of what it is and now + ttl; answer
    ///    [`Granted`](Reply::Granted) with the **same** token;
    /// 2. otherwise the lease is free (nobody's, released, or expired – and no minimum hold is running): it is granted for `ttl` with a new token;
    /// 3. otherwise nothing changes, except that a store with [`queue`](StoreCapabilities::queue) adds or refreshes the claim's
    ///    ticket when `attempt.ticket` asks for it; answer [`Busy`](Reply::Busy).
    ///
    /// Two claims that race for a free lease: one is granted, the other is told busy – never an error.
    ///
    /// # Errors
    /// See the trait's *Errors*.
    async fn try_acquire(&self, attempt: &Attempt) -> Result<Reply>;

    /// Extends a held lease, or refreshes a ticket; grants nothing, ever.
    ///
    /// A lease is extended only if it is held by exactly this claim **with this token** and has not expired by the store's clock: its expiry
    /// becomes the later of what it is and now + ttl. Otherwise nothing changes and the answer is [`Standing::Gone`]: a renewal never revives
    /// an expired lease, not even one that nobody has taken since (C12).
    ///
    /// A ticket is refreshed only if it is there; [`Standing::Gone`] if it is not, and [`Standing::Held`] if the claim has been granted meanwhile.
    ///
    /// # Errors
    /// See the trait's *Errors*. An error is not a loss: the engine tries again until the deadline (C13).
    async fn renew(&self, renewal: &Renewal) -> Result<Standing>;

    /// Gives up whatever the claim has: its lease, if it still holds it unexpired, and its ticket.
    ///
    /// * [`Released`](ReleaseOutcome::Released): this call, or an earlier one of the same claim, ended a lease that the claim held.
    /// * [`AlreadyLost`](ReleaseOutcome::AlreadyLost): the claim holds nothing (expired, taken over, force-released, never granted); nobody else is affected (C8).
    ///
    /// With `hold_at_least` the key stays closed to everybody until the lease's start + that duration by the store's clock (C25), if the store declares
    /// [`minimum_hold`](StoreCapabilities::minimum_hold); otherwise the engine never asks for it.
    ///
    /// # Errors
    /// See the trait's *Errors*.
    async fn release(&self, release: &Release) -> Result<ReleaseOutcome>;

    /// Renews many leases and tickets: answers in the same order, one for each. Each one's failure is its own.
    ///
    /// The engine sends at most [`renew_batch`](StoreCapabilities::renew_batch) at once, all with one `timeout`; an answer that is missing counts as an error. Defaults to [`renew`](Self::renew) for each, concurrently.
    async fn renew_many(&self, renewals: &[Renewal]) -> Vec<Result<Standing>> {
        futures_util::future::join_all(renewals.iter().map(|renewal| self.renew(renewal))).await
    }

    /// Leaves nothing of the claim behind: neither a lease nor a ticket. For attempts that were cancelled or whose outcome is unknown.
    /// Defaults to [`release`](Self::release) without a minimum hold.
    ///
    /// # Errors
    /// See the trait's *Errors*.
    async fn withdraw(&self, claim: &Claim, timeout: Duration) -> Result<()> {
        self.release(&Release::new(claim.clone()).with_timeout(timeout)).await.map(|_| ())
    }

    /// Hints about what changes at the store, so that waiters need not poll and losses are heard at once.
    ///
    /// A hint may come late, twice, or never: the engine asks the store before it believes one, except for a loss that concerns an own claim and a
    /// [`Granted`](StoreEvent::Granted) whose times it can check. After a break the stream says [`StoreEvent::Gap`] or ends; the engine then wakes all its waiters once and opens it again.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] by default, and whenever the deployment has no push.
    async fn watch(&self, watch: &Watch) -> Result<EventStream> {
        let _ = watch;
        Err(LockError::new(ErrorKind::Unsupported, format!("{} has no push", self.name())))
    }

    /// Administration of the leases in this store. Defaults to none.
    fn admin(&self) -> Option<&dyn LockAdmin> {
        None
    }

    /// Called once when the provider has been shut down and every lease is settled: close what the store opened. Defaults to nothing.
    ///
    /// # Errors
    /// Whatever could not be closed; the provider reports it.
    async fn close(&self) -> Result<()> {
        Ok(())
    }
}

/// The changes that a store pushes. See [`LeaseStore::watch`].
pub type EventStream = Pin<Box<dyn Stream<Item = Result<StoreEvent>> + Send + 'static>>;

/// What a store can do beyond the required methods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoreCapabilities {
    /// Keeps tickets, and grants in their order (C15).
    pub queue: bool,
    /// Supports [`LeaseStore::watch`].
    pub push: bool,
    /// Grants blocks of more than one token for in-process hand-off.
    pub token_blocks: bool,
    /// Supports [`Release::hold_at_least`] (C25).
    pub minimum_hold: bool,
    /// A call of a claim that was given up cannot take effect after a later call of the same claim has been answered, be it only with "busy".
    /// Without it the engine never uses a claim again after a call of unknown outcome: it cleans it up and starts afresh with a new id.
    pub ordered_claims: bool,
    /// How many renewals one [`LeaseStore::renew_many`] may carry. Defaults to 100.
    pub renew_batch: NonZeroUsize,
}

impl Default for StoreCapabilities {
    fn default() -> Self {
        Self {
            queue: false,
            push: false,
            token_blocks: false,
            minimum_hold: false,
            ordered_claims: false,
            renew_batch: NonZeroUsize::new(100).expect("not zero"),
        }
    }
}

/// One provider instance: the first half of all its acquisition ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ProviderId(u64);

impl ProviderId {
    /// A new random one.
    #[must_use]
    pub fn random() -> Self {
        Self(Uuid::new_v4().as_u64_pair().1)
    }
}

impl fmt::Display for ProviderId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// The identity of one acquisition: text of 49 bytes, [`ProviderId`] first, so that a store can filter its events by prefix.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AcquisitionId(Arc<str>);

impl AcquisitionId {
    /// A new one. Random for every acquisition, so that not even a cloned virtual machine uses one twice (C7).
    #[must_use]
    pub fn random(provider: ProviderId) -> Self {
        let mut buffer = Uuid::encode_buffer();
        let acquisition = Uuid::new_v4();
        let acquisition = acquisition.simple().encode_lower(&mut buffer);
        Self(format!("{provider}-{acquisition}").into())
    }

    /// One that came back from a store.
    pub fn new(text: impl Into<Arc<str>>) -> Self {
        Self(text.into())
    }

    /// The id as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for AcquisitionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for AcquisitionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// One acquisition of one key, from its first attempt until it is settled. Clones are the same claim.
#[derive(Clone)]
pub struct Claim {
    key: LockKey,
    id: AcquisitionId,
    state: Arc<OnceLock<Box<dyn Any + Send + Sync>>>,
}

impl Claim {
    /// A claim. The engine makes them; a store's own tests do too.
    #[must_use]
    pub fn new(key: LockKey, id: AcquisitionId) -> Self {
        Self { key, id, state: Arc::default() }
    }

    /// The key it is about.
    #[must_use]
    pub fn key(&self) -> &LockKey {
        &self.key
    }

    /// Its identity.
    #[must_use]
    pub fn id(&self) -> &AcquisitionId {
        &self.id
    }

    /// Something the store keeps for the claim's life, such as a database session: made on first use, dropped when the
    /// engine has settled the claim and the guard is gone – on whatever thread that happens, with a runtime or without.
    ///
    /// # Panics
    /// If the same claim is asked for two different types.
    pub fn state<T: Any + Send + Sync>(&self, make: impl FnOnce() -> T) -> &T {
        self.state.get_or_init(|| Box::new(make())).downcast_ref().expect("a store keeps one type of state per claim")
    }
}

impl fmt::Debug for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Claim").field("key", &self.key).field("id", &self.id).finish_non_exhaustive()
    }
}

/// The bound of a request when nobody sets one: 5 s.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(5);

/// A request to take a lease. See [`LeaseStore::try_acquire`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Attempt {
    /// Who asks for what.
    pub claim: Claim,
    /// How long the lease shall last without a renewal; whole milliseconds, at least one.
    pub ttl: Duration,
    /// How many tokens the grant shall carry; 1 unless the store declares [`token_blocks`](StoreCapabilities::token_blocks).
    pub tokens: NonZeroU32,
    /// The ticket to queue up with if busy; none if the caller does not wait, or the store has no
    /// [`queue`](StoreCapabilities::queue).
    pub ticket: Option<Ticket>,
    /// For people; to be stored with the lease.
    pub holder: Holder,
    /// The bound of this call.
    pub timeout: Duration,
}

impl Attempt {
    /// An attempt for one token, without a ticket.
    #[must_use]
    pub fn new(claim: Claim, ttl: Duration) -> Self {
        Self { claim, ttl, tokens: NonZeroU32::MIN, ticket: None, holder: Holder::default(), timeout: DEFAULT_TIMEOUT }
    }

    /// With a ticket.
    #[must_use]
    pub fn with_ticket(mut self, ticket: Ticket) -> Self {
        self.ticket = Some(ticket);
        self
    }

    /// With a block of tokens.
    #[must_use]
    pub fn with_tokens(mut self, tokens: NonZeroU32) -> Self {
        self.tokens = tokens;
        self
    }

    /// With remarks for people.
    #[must_use]
    pub fn with_holder(mut self, holder: Holder) -> Self {
        self.holder = holder;
        self
    }

    /// With another bound.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }
}

/// A place in a store's queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Ticket {
    /// A ticket that has not been refreshed for this long is dropped.
    pub ttl: Duration,
    /// The ttl of a lease that a releaser grants to this waiter, until the waiter's first renewal.
    pub claim_ttl: Duration,
    /// How many live tickets the queue may hold; one more is refused with [`QueueStanding::Full`].
    pub capacity: u32,
}

impl Ticket {
    /// A ticket.
    #[must_use]
    pub const fn new(ttl: Duration, claim_ttl: Duration, capacity: u32) -> Self {
        Self { ttl, claim_ttl, capacity }
    }
}

/// The answer to an [`Attempt`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reply {
    /// The claim holds the lease.
    Granted(Grant),
    /// Somebody else does, or it is somebody else's turn.
    Busy(BusyReply),
}

/// A granted lease.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Grant {
    /// The first token of the block.
    pub token: FencingToken,
    /// The length of the block.
    pub tokens: NonZeroU32,
    /// Expiry minus now, both by the store's clock, both in the granting step.
    pub remaining: Duration,
}

impl Grant {
    /// A grant of one token.
    #[must_use]
    pub const fn new(token: FencingToken, remaining: Duration) -> Self {
        Self { token, tokens: NonZeroU32::MIN, remaining }
    }

    /// A grant of a block that starts with [`token`](Self::token).
    #[must_use]
    pub const fn with_tokens(mut self, tokens: NonZeroU32) -> Self {
        self.tokens = tokens;
        self
    }
}

/// Why an attempt was not granted. Everything in it is optional knowledge.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct BusyReply {
    /// How long the key stays closed if nobody renews or releases, by the store's clock.
    pub holder_remaining: Option<Duration>,
    /// What became of the ticket.
    pub standing: QueueStanding,
    /// The store's clock in this step, to be compared with the times of later events of the same store (R18).
    pub now: Option<StoreTime>,
    /// The last token that was granted for this key.
    pub token: Option<FencingToken>,
}

impl BusyReply {
    /// Busy, and nothing else is known.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// With the time until the key opens at the latest.
    #[must_use]
    pub fn with_holder_remaining(mut self, remaining: Duration) -> Self {
        self.holder_remaining = Some(remaining);
        self
    }

    /// With what became of the ticket.
    #[must_use]
    pub fn with_standing(mut self, standing: QueueStanding) -> Self {
        self.standing = standing;
        self
    }

    /// With the store's clock and the last granted token.
    #[must_use]
    pub fn with_anchor(mut self, now: StoreTime, token: FencingToken) -> Self {
        self.now = Some(now);
        self.token = Some(token);
        self
    }
}

/// A waiter's place in the store's queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum QueueStanding {
    /// Not in the queue: none was asked for, or the store has none.
    #[default]
    NotQueued,
    /// Waiting, with this many live tickets before it.
    Queued {
        /// Tickets ahead.
        ahead: u32,
    },
    /// There was no room.
    Full,
}

/// A reading of the store's clock. Opaque: only the difference of two readings of one store means something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct StoreTime(Duration);

impl StoreTime {
    /// A reading, as the time since an origin of the store's choice.
    #[must_use]
    pub const fn since_origin(elapsed: Duration) -> Self {
        Self(elapsed)
    }

    /// How much later this is than the other reading; zero if it is not.
    #[must_use]
    pub fn saturating_since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

/// A request to extend a lease or to refresh a ticket. See [`LeaseStore::renew`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Renewal {
    /// Whose.
    pub claim: Claim,
    /// What.
    pub subject: RenewalSubject,
    /// The bound of this call.
    pub timeout: Duration,
}

/// What a [`Renewal`] is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RenewalSubject {
    /// A held lease.
    Lease {
        /// The **last** token of the grant's block; a lease with another one is not this one.
        token: FencingToken,
        /// The lease shall last at least this long from now on.
        ttl: Duration,
    },
    /// A ticket in the queue.
    Ticket(Ticket),
}

impl Renewal {
    /// A renewal of a lease.
    #[must_use]
    pub fn lease(claim: Claim, token: FencingToken, ttl: Duration) -> Self {
        Self { claim, subject: RenewalSubject::Lease { token, ttl }, timeout: DEFAULT_TIMEOUT }
    }

    /// A refresh of a ticket.
    #[must_use]
    pub fn ticket(claim: Claim, ticket: Ticket) -> Self {
        Self { claim, subject: RenewalSubject::Ticket(ticket), timeout: DEFAULT_TIMEOUT }
    }

    /// With another bound.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }
}

/// Where a claim stands after a renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Standing {
    /// It holds the lease for at least this long, counted from the step by the store's clock.
    Held {
        /// Expiry minus now; a lower bound will do.
        remaining: Duration,
    },
    /// Its ticket is in the queue.
    Waiting {
        /// The store's clock in this step and the last token that was granted for the key (R18), if the store knows them.
        anchor: Option<(StoreTime, FencingToken)>,
    },
    /// It has neither.
    Gone(Loss),
}

/// A request to give a lease up. See [`LeaseStore::release`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Release {
    /// Whose.
    pub claim: Claim,
    /// Keep the key closed until the lease's start + this.
    pub hold_at_least: Option<Duration>,
    /// The bound of this call.
    pub timeout: Duration,
}

impl Release {
    /// A release without a minimum hold.
    #[must_use]
    pub fn new(claim: Claim) -> Self {
        Self { claim, hold_at_least: None, timeout: DEFAULT_TIMEOUT }
    }

    /// With a minimum hold.
    #[must_use]
    pub fn with_hold_at_least(mut self, duration: Duration) -> Self {
        self.hold_at_least = Some(duration);
        self
    }

    /// With another bound.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }
}

/// What a watcher wants to hear about. See [`LeaseStore::watch`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Watch {
    /// Whose grants and losses: claims whose id starts with this provider's.
    pub provider: ProviderId,
}

impl Watch {
    /// What concerns one provider.
    #[must_use]
    pub const fn provider(provider: ProviderId) -> Self {
        Self { provider }
    }
}

/// A change at the store.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreEvent {
    /// A key may be free: whoever waits for it shall ask.
    Freed {
        /// Which.
        key: LockKey,
    },
    /// A releaser granted the key to a waiter.
    Granted {
        /// Which key.
        key: LockKey,
        /// To whom.
        id: AcquisitionId,
        /// What; `remaining` is meaningless here, `expires_at` counts.
        grant: Grant,
        /// The store's clock at the lease's expiry.
        expires_at: StoreTime,
    },
    /// A claim has lost its lease.
    Gone {
        /// Which key.
        key: LockKey,
        /// Whose.
        id: AcquisitionId,
        /// How.
        loss: Loss,
    },
    /// Something may have been missed: everybody shall ask.
    Gap,
}
