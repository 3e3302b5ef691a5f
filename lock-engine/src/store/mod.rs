//! The interface between the lease engine and a backend.

mod answer;
mod capabilities;
mod claim;
mod event;
mod lanes;
mod request;
mod style;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use async_trait::async_trait;

use distlock_api::{ErrorKind, LockAdmin, LockError, ReleaseOutcome, Result};

pub use self::answer::{BusyReply, Grant, QueueStanding, Reply, Standing, StoreTime};
pub use self::capabilities::StoreCapabilities;
pub use self::claim::{Claim, ProviderId, Used};
pub use self::event::{EventStream, StoreEvent, Watch};
pub(crate) use self::lanes::{Entered, InLine, Lane, Overload, Permit, Place};
pub use self::lanes::{Lanes, SetAside};
pub use self::request::{Attempt, Release, Renewal, RenewalSubject, Ticket};
pub use self::style::{AcquireOp, Write, WriteOp, Written};

/// What a backend author writes: single operations on one lease record per key. The
/// [`LeaseProvider`](crate::LeaseProvider) turns any store into a full
/// [`LockProvider`](distlock_api::LockProvider).
///
/// # Contract
/// Three methods are required. A store has **no loops, no timers, no tasks** but those of its
/// driver's connections: waiting, renewal, loss detection, retries and clean-up are the engine's.
/// Every method is one atomic step at the store, and between the steps of one key there is a single
/// order.
///
/// ## Time
/// * Only the store's own clock decides whether a lease has expired ([C2]). No method receives a
///   client's wall-clock time, and none may look at it.
/// * Durations that a store returns are differences of two readings of **its** clock in the same
///   step ("expires at" minus "now"). The engine adds them to a monotonic instant that it took
///   before it called.
/// * A lease is held while `now < expires_at`, and free from `expires_at` on.
/// * The clock is read in the step itself. A reading from before a wait, say for a lock of the
///   store's, may revive what has expired meanwhile.
/// * A store without a server – a file, shared memory – takes a clock that all its clients have in
///   common, such as the monotonic clock of the kernel under them, and documents how far that
///   reaches. A `now()` that a library evaluates in the process that asks is a client's clock.
///
/// ## Identity
/// * A [`Claim`] is one acquisition: its [id](Claim::id) is never used for another ([C7]). Who
///   holds a key is decided by that id alone.
/// * All calls are idempotent per claim: the engine repeats a call whose reply was lost.
/// * Calls of one claim never overlap, except renewals with anything else. A call that the engine
///   gave up on may still take effect later. If the store can see to it that such a straggler is
///   refused once a later call of the same claim has been answered, it declares
///   [`ordered_claims`](StoreCapabilities::ordered_claims).
///
/// ## Tokens
/// * Each *new* grant of a key gets a fencing token greater than any token granted for that key
///   before: across release, expiry, force-release, restart and removal of the record ([C5]). A
///   repeated `try_acquire` of a claim that holds the lease returns the token of the first grant
///   ([C6], [C10]).
///
/// ## Errors
/// * Contention is an answer, not an error.
/// * An error whose operation **certainly did not** happen is
///   [retryable](distlock_api::Disposition::Retryable) or
///   [permanent](distlock_api::Disposition::Permanent); if it may have happened the disposition is
///   [outcome unknown](distlock_api::Disposition::OutcomeUnknown). When in doubt: unknown. A wrong
///   "did not happen" makes leases nobody owns.
/// * Errors never contain a connection string.
///
/// ## Requests that grow
/// * Requests are `#[non_exhaustive]`. A later version may add a field, whose default is what the
///   store does without it, and a store need not know it.
/// * It may add a variant of [`RenewalSubject`], for a new capability. The engine sends a variant
///   to stores that declare its capability only, as it sends tickets to stores with a queue only;
///   what a store answers to any other is never used.
///
/// ## Bounds and cancellation
/// * Every request carries a `timeout`. A store ends its call soon after that, with a retryable or
///   unknown-outcome error, and passes the bound on to the server where it can. The engine protects
///   itself from a store that does not.
/// * A caller that leaves earlier does not end the call: the engine lets it finish in the
///   background.
/// * The engine may drop the future of a call at any await. The effect may then come or not;
///   nothing else may break.
///
/// # Testing
/// Run the conformance suite (`distlock-conformance`): it names the clause that a store breaks. Its
/// `tutorial` goes from an empty crate to a store that passes.
///
/// [C2]: distlock_api::contract#c2
/// [C5]: distlock_api::contract#c5
/// [C6]: distlock_api::contract#c6
/// [C7]: distlock_api::contract#c7
/// [C10]: distlock_api::contract#c10
#[async_trait]
pub trait LeaseStore: fmt::Debug + Send + Sync + 'static {
    /// What the store can do beyond the required. Asked afresh with each use: it may grow when the
    /// store has met its server, and never shrinks. Defaults to nothing.
    fn capabilities(&self) -> StoreCapabilities {
        StoreCapabilities::default()
    }

    /// A name for logs and metrics, such as `mongodb`. Contains no secret.
    fn name(&self) -> &str;

    /// How many calls the store takes at once: the engine holds back the others, renewals first and
    /// acquisitions last. Queried afresh with each call, so that a store may know it only after it
    /// has met its server. Stores that share connections return clones of one.
    ///
    /// Counted are calls whose future has not ended. A store with lanes therefore ends each call
    /// with its `timeout`, and then has nothing of it in flight.
    ///
    /// Defaults to `None`: every call is made at once.
    fn lanes(&self) -> Option<Lanes> {
        None
    }

    /// Gets into a state in which requests can be sent, within `limit`; `None` if the store is in
    /// it already. The engine awaits it before each attempt to acquire, and drops it when the
    /// caller leaves: nothing of the request has been sent by then, so a failure is never of
    /// unknown outcome.
    ///
    /// For stores that learn with the first request whether their server can be reached, what it
    /// is, and whether it takes the credentials. The error says what was found.
    ///
    /// Defaults to `None`.
    fn ensure_connected(&self, limit: Duration) -> Option<Connecting<'_>> {
        let _ = limit;
        None
    }

    /// Tries once to take the lease `attempt.claim.key()` for the claim.
    ///
    /// In one step:
    /// 1. the claim holds the lease already, unexpired: its expiry becomes the later of what it is
    ///    and now + ttl; answer [`Granted`](Reply::Granted) with the **same** token, and as many of
    ///    them;
    /// 2. otherwise the lease is free (nobody's, released, or expired – and no minimum hold is
    ///    running) and it is the claim's turn, see below: it is granted for `ttl` with a new token,
    ///    and the claim's ticket is removed;
    /// 3. otherwise nothing changes, except that a store with [`queue`](StoreCapabilities::queue)
    ///    adds the claim's ticket at the end, or refreshes it where it is, when `attempt.ticket`
    ///    asks for it and there is room; answer [`Busy`](Reply::Busy).
    ///
    /// Without a queue it is everybody's turn. With one, tickets that have not been refreshed for
    /// their own ttl are dropped first. The claim's *place* is the number of tickets before its
    /// own, or of all if it has none; it is its turn `place` ×
    /// [`turn_window`](Attempt::turn_window) after the lease became free. So nobody overtakes the
    /// queue, and one dead waiter at its head costs the others one window, not a ttl ([C15], R8). A
    /// key that has no record has been free for ever.
    ///
    /// A ticket keeps what the grant by a [`release`](Self::release) needs of this attempt: its
    /// [`tokens`](Attempt::tokens), its [`holder`](Attempt::holder), and the ticket's
    /// [`claim_ttl`](Ticket::claim_ttl).
    ///
    /// Two claims that race for a free lease: one is granted, the other is told busy – never an
    /// error.
    ///
    /// # Errors
    /// See the trait's *Errors*.
    ///
    /// [C15]: distlock_api::contract#c15
    async fn try_acquire(&self, attempt: &Attempt) -> Result<Reply>;

    /// Extends a held lease, or refreshes a ticket; grants nothing, ever.
    ///
    /// A lease is extended only if it is held by exactly this claim **with this token** and has not
    /// expired by the store's clock: its expiry becomes the later of what it is and now + ttl.
    /// Otherwise nothing changes and the answer is [`Standing::Gone`]: a renewal never revives an
    /// expired lease, not even one that nobody has taken since ([C12]).
    ///
    /// A ticket is refreshed only if it is there, and never added again (R15) – one whose time is
    /// up and that nobody has dropped yet may count as either. If it is there the answer is
    /// [`Standing::Waiting`]. If it is not, the answer is [`Standing::Gone`], or [`Standing::Held`]
    /// if the claim has been granted meanwhile; after either the engine asks by
    /// [`try_acquire`](Self::try_acquire).
    ///
    /// # Errors
    /// See the trait's *Errors*. An error is not a loss: the engine tries again until the deadline
    /// ([C13]).
    ///
    /// [C12]: distlock_api::contract#c12
    /// [C13]: distlock_api::contract#c13
    async fn renew(&self, renewal: &Renewal) -> Result<Standing>;

    /// Gives up whatever the claim has: its lease, and its ticket. An expired lease that nobody has
    /// taken yet is given up, too, where a renewal that the store has begun with an earlier reading
    /// of its clock could still extend it; that is [`AlreadyLost`](ReleaseOutcome::AlreadyLost) all
    /// the same.
    ///
    /// * [`Released`](ReleaseOutcome::Released): this call, or an earlier one of the same claim,
    ///   ended a lease that the claim held.
    /// * [`AlreadyLost`](ReleaseOutcome::AlreadyLost): the claim holds nothing (expired, taken
    ///   over, force-released, never granted); nobody else is affected ([C8]).
    ///
    /// That a claim has released is remembered, also if others have held the key meanwhile: the
    /// engine repeats a release whose reply was lost, until the lease would have ended ([C10]). The
    /// last four of a key, at least.
    ///
    /// A store with a [`queue`](StoreCapabilities::queue) removes the claim's own ticket, then – if
    /// the claim held the lease – grants it to the first live ticket **in the same step** (R12): a
    /// new token, as many as [that ticket asked for](Attempt::tokens), for
    /// [`claim_ttl`](Ticket::claim_ttl) from now; the ticket is removed. Nobody waits: the lease is
    /// free. So a hand-over is one write, and nobody can come between.
    ///
    /// With `hold_at_least` the key stays closed to everybody until the lease's start + that
    /// duration by the store's clock ([C25]), if the store declares
    /// [`minimum_hold`](StoreCapabilities::minimum_hold); otherwise the engine never asks for it.
    /// While that lasts nobody is granted anything (R13); afterwards the waiters go on by asking.
    ///
    /// # Errors
    /// See the trait's *Errors*.
    ///
    /// [C8]: distlock_api::contract#c8
    /// [C10]: distlock_api::contract#c10
    /// [C25]: distlock_api::contract#c25
    async fn release(&self, release: &Release) -> Result<ReleaseOutcome>;

    /// Renews many leases and tickets: answers in the same order, one for each. Each one's failure
    /// is its own.
    ///
    /// The engine sends at most [`renew_batch`](StoreCapabilities::renew_batch) at once, all with
    /// one `timeout`; an answer that is missing counts as an error. Defaults to
    /// [`renew`](Self::renew) for each, concurrently.
    async fn renew_many(&self, renewals: &[Renewal]) -> Vec<Result<Standing>> {
        futures_util::future::join_all(renewals.iter().map(|renewal| self.renew(renewal))).await
    }

    /// Leaves nothing of the claim behind: neither a lease nor a ticket. For attempts that were
    /// cancelled or whose outcome is unknown. Defaults to [`release`](Self::release) without a
    /// minimum hold.
    ///
    /// # Errors
    /// See the trait's *Errors*.
    async fn withdraw(&self, claim: &Claim, timeout: Duration) -> Result<()> {
        self.release(&Release::new(claim.clone()).with_timeout(timeout)).await.map(|_| ())
    }

    /// How many live tickets wait for the claim's key. A holder asks while it hands its lease on
    /// within its process, so that it does so without end only as long as no other process waits.
    /// Defaults to an error; then the engine takes it that somebody does.
    ///
    /// # Errors
    /// See the trait's *Errors*.
    async fn waiters(&self, claim: &Claim, timeout: Duration) -> Result<u32> {
        let _ = (claim, timeout);
        Err(LockError::new(ErrorKind::Unsupported, format!("{} cannot tell who waits", self.name())))
    }

    /// Hints about what changes at the store, so that waiters need not poll and losses are heard at
    /// once.
    ///
    /// A hint may come late, twice, or never: the engine asks the store before it believes one,
    /// except for a loss that concerns an own claim and a [`Granted`](StoreEvent::Granted) whose
    /// times it can check. After a break the stream says [`StoreEvent::Gap`] or ends; the engine
    /// then wakes all its waiters once and opens it again.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] by default, and whenever the deployment has no push.
    async fn subscribe(&self, watch: &Watch) -> Result<EventStream> {
        let _ = watch;
        Err(LockError::new(ErrorKind::Unsupported, format!("{} has no push", self.name())))
    }

    /// Administration of the leases in this store. Defaults to none.
    ///
    /// A [release by force](LockAdmin::force_release) is one step at the store, too:
    /// * The holder's lease ends, and so does a minimum hold. The key's token advances: the
    ///   [`Gone`](StoreEvent::Gone) that a store with push sends carries a token above all those of
    ///   the lease.
    /// * The tickets stay, and the step grants the lease to no waiter. Waiters learn of it by
    ///   [`Freed`](StoreEvent::Freed), or by polling, and the first of them takes the lease.
    /// * The victim's claim has ended: a renewal finds [`Gone`](Standing::Gone), a release says
    ///   [`AlreadyLost`](ReleaseOutcome::AlreadyLost), and another attempt of the claim is an
    ///   attempt like any other.
    fn admin(&self) -> Option<&dyn LockAdmin> {
        None
    }

    /// Called once by each provider when it has been shut down and every lease is settled: close
    /// what the store opened for it. What several providers of one store share must go on working
    /// for the others. Defaults to nothing.
    ///
    /// # Errors
    /// Whatever could not be closed; the provider reports it.
    async fn close(&self) -> Result<()> {
        Ok(())
    }
}

/// What [`LeaseStore::ensure_connected`] returns.
pub type Connecting<'a> = Pin<Box<dyn Future<Output = Result<()>> + Send + 'a>>;
