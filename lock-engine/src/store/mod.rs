//! The interface between the lease engine and a backend.

mod answer;
pub(crate) mod answer_timeout;
mod capabilities;
mod claim;
mod event;
mod outbox;
mod request;
mod style;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use async_trait::async_trait;

use distlock_api::{ErrorKind, LockAdmin, LockError, ReleaseOutcome, Result};

pub use self::answer::{BusyReply, Grant, QueueStanding, Reply, Standing, StoreTime};
pub use self::answer_timeout::answered_within;
pub use self::capabilities::StoreCapabilities;
pub use self::claim::{Claim, ProviderId, Used};
pub use self::event::{EventStream, StoreEvent, Watch};
pub(crate) use self::outbox::{Entered, Entry, Home, InLine, Job, Lane, Overload, Permit};
pub use self::outbox::{Lanes, SetAside};
pub use self::request::{Attempt, Release, Renewal, RenewalSubject, Ticket};
pub use self::style::{AcquireOp, Write, WriteOp, Written};

/// The interface that a backend author implements: single operations on one lease record per key.
/// The [`LeaseProvider`](crate::LeaseProvider) turns any store into a full
/// [`LockProvider`](distlock_api::LockProvider).
///
/// # Contract
/// A name and three methods are required. A store has **no loops, no timers, no tasks** except
/// those of its driver's connections. The engine does the waiting, renewal, loss detection, retries
/// and clean-up. Each method is one atomic step at the store, and the steps of one key have a
/// single order. The rules that are cited as R8 or R12 are those of distlock-mongo's PROTOCOL.
///
/// ## Time
/// * Only the store's own clock decides whether a lease has expired ([C2]). No method receives a
///   client's wall-clock time, and none may read it.
/// * Durations that a store returns are differences of two readings of **its** clock in the same
///   step ("expires at" minus "now"). The engine adds them to a monotonic instant that it took
///   before it called.
/// * A lease is held while `now < expires_at`, and free from `expires_at` on.
/// * The clock is read in the step itself. A reading from before a wait, such as for a lock of the
///   store, may revive what has expired meanwhile.
/// * A store without a server (a file, shared memory) uses a clock that all its clients share, such
///   as the monotonic clock of their kernel. It documents how far that clock reaches. A `now()`
///   that a library evaluates in the calling process is a client's clock.
///
/// ## Identity
/// * A [`Claim`] is one acquisition: its [id](Claim::id) is never used for another ([C7]). That id
///   alone decides which claim holds a key.
/// * All calls are idempotent per claim: the engine repeats a call whose reply was lost.
/// * Calls of one claim never overlap, except that a renewal may overlap with any other call. A
///   call that the engine gave up on may still take effect later. A store that refuses such a
///   straggler once a later call of the same claim has been answered declares
///   [`ordered_claims`](StoreCapabilities::ordered_claims).
///
/// ## Tokens
/// * Each *new* grant of a key gets a fencing token greater than all tokens granted for that key
///   before: across release, expiry, force-release, restart and removal of the record ([C5]). A
///   repeated `try_acquire` of a claim that holds the lease returns the token of the first grant
///   ([C6], [C10]).
///
/// ## Modes
/// A store that declares [`shared`](StoreCapabilities::shared) or
/// [`permits`](StoreCapabilities::permits) gets claims with another [`mode`](Claim::mode) than
/// exclusive. A key may then have several *holders*: live leases of different claims, each with its
/// own tokens and expiry. What the methods say of *the* lease of a claim is said of its own.
///
/// * A claim that holds nothing is granted beside holders only if no ticket is before it, and its
///   mode [fits](distlock_api::Mode::fits) them ([C26], [C27], [C28]).
/// * When a claim gives up its lease, or leaves the queue while others hold the key, the first
///   tickets are granted one after the other. This continues as long as the mode of the next one
///   fits. All are granted in the same step, with tokens in the order of the queue, one
///   [`Granted`](StoreEvent::Granted) each.
/// * `holder_remaining` of a busy answer is the time until the first holder's lease ends: the
///   others may have been given up by then ([C29]). If only tickets are ahead, it counts the turn
///   windows alone.
/// * A renewal changes the lease of its claim and no other ([C29]).
/// * With a minimum hold, the lease of a claim that is not exclusive stays until then, without its
///   claim: others that fit are granted beside it ([C25]).
///
/// ## Errors
/// * Contention is an answer, not an error.
/// * If the operation **certainly did not** happen, the error is
///   [retryable](distlock_api::Disposition::Retryable) or
///   [permanent](distlock_api::Disposition::Permanent). If it may have happened, the disposition is
///   [outcome unknown](distlock_api::Disposition::OutcomeUnknown). When in doubt, use unknown: a
///   wrong "did not happen" leaves leases without an owner.
/// * Errors never contain a connection string.
///
/// ## Requests that grow
/// * Requests are `#[non_exhaustive]`. A later version may add a field. Its default means what the
///   store does without the field, so a store may ignore it.
/// * It may add a variant of [`RenewalSubject`], for a new capability. The engine sends it only to
///   stores that declare the capability, as it sends tickets only to stores with a queue. It never
///   uses what a store answers to a variant that it does not know.
///
/// ## Bounds and cancellation
/// * Every request carries a `timeout`. A store ends its call soon after that, with a retryable
///   error or one of unknown outcome. It passes the bound on to the server where it can. The engine
///   protects itself from a store that does not.
/// * If the caller leaves earlier, the engine lets the call finish in the background.
/// * The engine may drop the future of a call at any await. The effect may then happen or not;
///   nothing else may break.
///
/// # Testing
/// Run the conformance suite (`distlock-conformance`): it names the clause that a store breaks. Its
/// `tutorial` leads from an empty crate to a store that passes.
///
/// [C2]: distlock_api::contract#c2
/// [C5]: distlock_api::contract#c5
/// [C6]: distlock_api::contract#c6
/// [C7]: distlock_api::contract#c7
/// [C10]: distlock_api::contract#c10
/// [C25]: distlock_api::contract#c25
/// [C26]: distlock_api::contract#c26
/// [C27]: distlock_api::contract#c27
/// [C28]: distlock_api::contract#c28
/// [C29]: distlock_api::contract#c29
#[async_trait]
pub trait LeaseStore: fmt::Debug + Send + Sync + 'static {
    /// Returns what the store can do beyond the required methods. The engine calls this at each
    /// use: the capabilities may grow after the store has met its server, and never shrink.
    /// Defaults to none.
    fn capabilities(&self) -> StoreCapabilities {
        StoreCapabilities::default()
    }

    /// Returns a name for logs and metrics, such as `mongodb`. It contains no secret.
    fn name(&self) -> &str;

    /// Returns the lanes, which bound how many calls the store takes at once. The engine holds back
    /// the others, renewals first and acquisitions last. It calls this for each call, so a store
    /// may know its bound only after it has met its server. Stores that share connections return
    /// clones of one value.
    ///
    /// A call counts until its future has ended. A store with lanes therefore ends each call with
    /// its `timeout`, and then has nothing of it in flight.
    ///
    /// Defaults to `None`: every call is made at once.
    fn lanes(&self) -> Option<Lanes> {
        None
    }

    /// Connects within `limit`, so that requests can be sent; `None` if they can be sent already.
    /// The engine awaits it before each attempt to acquire, and drops it when the caller leaves.
    /// Nothing of the request has been sent by then, so a failure is never of unknown outcome.
    ///
    /// For stores that learn with the first request whether their server can be reached, what it
    /// is, and whether it accepts the credentials. The error describes what was found.
    ///
    /// Defaults to `None`.
    fn ensure_connected(&self, limit: Duration) -> Option<Connecting<'_>> {
        let _ = limit;
        None
    }

    /// Tries once to take the lease `attempt.claim.key()` for the claim.
    ///
    /// In one step:
    /// 1. The claim holds the lease already, unexpired. Its expiry becomes the later of its present
    ///    value and now + ttl. The answer is [`Granted`](Reply::Granted) with the **same** tokens.
    /// 2. Otherwise, if the lease is free and the claim has its turn (see below), it is granted for
    ///    `ttl` with a new token. The claim's ticket is removed. A lease is free if it was never
    ///    granted, released, or has expired, and no minimum hold is running.
    /// 3. Otherwise nothing changes, except that a store with a [`queue`](StoreCapabilities::queue)
    ///    adds the claim's ticket at the end, or refreshes it where it is. It does so only if
    ///    `attempt.ticket` is set and there is room. The answer is [`Busy`](Reply::Busy).
    ///
    /// Without a queue it is always the claim's turn. With one, tickets that were not refreshed for
    /// their own ttl are dropped first. The claim's *position* is the number of tickets before its
    /// own, or of all tickets if it has none. Its turn comes position ×
    /// [`turn_window`](Attempt::turn_window) after the lease became free. So no claim overtakes the
    /// queue, and a dead waiter at its head costs the others one window, not a ttl ([C15], R8). A
    /// key without a record has been free for ever.
    ///
    /// A ticket keeps what a [`release`](Self::release) needs to grant the lease to it: the
    /// attempt's [`tokens`](Attempt::tokens) and [`holder`](Attempt::holder), and the ticket's
    /// [`claim_ttl`](Ticket::claim_ttl).
    ///
    /// If two claims race for a free lease, one is granted and the other is answered busy, never
    /// with an error.
    ///
    /// An attempt that the server begins after its `timeout` does nothing, if the store can ensure
    /// that (R31). Otherwise a frozen server makes a lease without an owner when it continues.
    ///
    /// # Errors
    /// See the trait's *Errors*.
    ///
    /// [C15]: distlock_api::contract#c15
    async fn try_acquire(&self, attempt: &Attempt) -> Result<Reply>;

    /// Tries once to take the leases of several claims. Returns one answer for each, in the same
    /// order; each fails on its own. Defaults to [`try_acquire`](Self::try_acquire) for each,
    /// concurrently.
    ///
    /// For stores that declare an [`acquire_batch`](StoreCapabilities::acquire_batch) above 1. A
    /// store around another one that forwards its capabilities must forward this, too: the default
    /// makes as many calls at once, for one permit of the [`lanes`](Self::lanes).
    ///
    /// While some calls are under way, the engine lets the first attempts of other claims wait for
    /// company, for a fraction of a call's usual duration, and sends them together. An attempt that
    /// would need more than the common step is answered as [undecided](BusyReply::undecided): the
    /// engine then makes it again, by itself.
    ///
    /// # Errors
    /// An answer of unknown outcome is the last one of its claim: the engine withdraws the claim
    /// and continues with a new id. As long as the batch may still take effect, the store answers
    /// [`withdraw`](Self::withdraw) with a retryable error, and [`may_act_for`](Self::may_act_for)
    /// tells the engine when to send the next one (R24).
    async fn try_acquire_many(&self, attempts: &[Attempt]) -> Vec<Result<Reply>> {
        futures_util::future::join_all(attempts.iter().map(|attempt| self.try_acquire(attempt))).await
    }

    /// Returns whether an attempt, the first of its claim, may wait for company. Defaults to true.
    /// For stores that know which attempts would gain nothing.
    fn may_gather(&self, attempt: &Attempt) -> bool {
        let _ = attempt;
        true
    }

    /// Returns how much longer a batch with the claim's attempt may take effect, although it was
    /// not answered. An estimate: only [`withdraw`](Self::withdraw) confirms that it has ended.
    /// Defaults to zero.
    fn may_act_for(&self, claim: &Claim) -> Duration {
        let _ = claim;
        Duration::ZERO
    }

    /// Returns what the store knows about why a call has no answer after this time, such as that no
    /// server can be reached. It is the error of a caller that leaves before the answer, whose
    /// outcome is unknown whatever the error says. Does no I/O. Defaults to `None`.
    fn why_unanswered(&self, waited: Duration) -> Option<LockError> {
        let _ = waited;
        None
    }

    /// Extends a held lease, or refreshes a ticket. It never grants anything.
    ///
    /// A lease is extended only if this claim holds it **with this token** and it has not expired
    /// by the store's clock. Its expiry becomes the later of its present value and now + ttl.
    /// Otherwise nothing changes and the answer is [`Standing::Gone`]: a renewal never revives an
    /// expired lease, not even one that no claim has taken since ([C12]).
    ///
    /// A ticket is refreshed only if it is there, and never added again (R15). An expired ticket
    /// that was not dropped yet may count as either. If it is there, the answer is
    /// [`Standing::Waiting`]. Otherwise the answer is [`Standing::Gone`], or [`Standing::Held`] if
    /// the claim was granted meanwhile. After either, the engine sends an attempt by
    /// [`try_acquire`](Self::try_acquire).
    ///
    /// # Errors
    /// See the trait's *Errors*. An error is not a loss: the engine tries again until the deadline
    /// ([C13]).
    ///
    /// [C12]: distlock_api::contract#c12
    /// [C13]: distlock_api::contract#c13
    async fn renew(&self, renewal: &Renewal) -> Result<Standing>;

    /// Gives up what the claim has: its lease, and its ticket. If a renewal that began with an
    /// earlier reading of the store's clock could still extend an expired lease, such a lease is
    /// given up, too. The answer is [`AlreadyLost`](ReleaseOutcome::AlreadyLost) all the same.
    ///
    /// * [`Released`](ReleaseOutcome::Released): this call, or an earlier one of the same claim,
    ///   ended a lease that the claim held.
    /// * [`AlreadyLost`](ReleaseOutcome::AlreadyLost): the claim holds nothing (expired, taken
    ///   over, force-released, never granted). No other claim is affected ([C8]).
    ///
    /// The store remembers that a claim has released, even if others have held the key since: of
    /// each key at least the last four. The engine repeats a release whose reply was lost until the
    /// lease would have ended ([C10]).
    ///
    /// A store with a [`queue`](StoreCapabilities::queue) removes the claim's own ticket. If the
    /// claim held the lease, it then grants it to the first live ticket **in the same step** (R12)
    /// and removes that ticket. The grant has a new token, as many tokens as [that ticket's attempt
    /// requested](Attempt::tokens), and lasts [`claim_ttl`](Ticket::claim_ttl) from now. Without a
    /// waiter the lease becomes free. So a hand-over is one write, and no other claim can come
    /// between.
    ///
    /// With `hold_at_least` the key stays closed to all claims until the lease's start + that
    /// duration by the store's clock ([C25]). The engine sends it only if the store declares
    /// [`minimum_hold`](StoreCapabilities::minimum_hold). During that time nothing is granted
    /// (R13); afterwards the waiters continue by polling.
    ///
    /// # Errors
    /// See the trait's *Errors*.
    ///
    /// [C8]: distlock_api::contract#c8
    /// [C10]: distlock_api::contract#c10
    /// [C25]: distlock_api::contract#c25
    async fn release(&self, release: &Release) -> Result<ReleaseOutcome>;

    /// Gives up what several claims have. Returns one answer for each, in the same order; each
    /// fails on its own. Defaults to [`release`](Self::release) for each, concurrently.
    ///
    /// For stores that declare an [`acquire_batch`](StoreCapabilities::acquire_batch) above 1. The
    /// engine repeats a release that has no answer by itself, with `release`. It does so at once if
    /// the error is retryable and the outcome known: that is the answer for a release that needs
    /// more than the common step, because the claim's key has a waiter or another holder.
    async fn release_many(&self, releases: &[Release]) -> Vec<Result<ReleaseOutcome>> {
        futures_util::future::join_all(releases.iter().map(|release| self.release(release))).await
    }

    /// Returns whether a release, the first of its claim, may wait for company. Defaults to true. A
    /// release that hands the lease to a waiter should not.
    fn may_gather_release(&self, release: &Release) -> bool {
        let _ = release;
        true
    }

    /// Renews many leases and tickets. Returns one answer for each, in the same order; each fails
    /// on its own.
    ///
    /// The engine sends at most [`renew_batch`](StoreCapabilities::renew_batch) at once, all with
    /// one `timeout`. A missing answer counts as an error. Defaults to [`renew`](Self::renew) for
    /// each, concurrently.
    async fn renew_many(&self, renewals: &[Renewal]) -> Vec<Result<Standing>> {
        futures_util::future::join_all(renewals.iter().map(|renewal| self.renew(renewal))).await
    }

    /// Removes everything that the claim has: a lease, and a ticket. For attempts that were
    /// cancelled or whose outcome is unknown. Defaults to [`release`](Self::release) without a
    /// minimum hold.
    ///
    /// # Errors
    /// See the trait's *Errors*.
    async fn withdraw(&self, claim: &Claim, timeout: Duration) -> Result<()> {
        self.release(&Release::new(claim.clone()).with_timeout(timeout)).await.map(|_| ())
    }

    /// Removes everything that several claims have, all with one `timeout`. Returns one answer for
    /// each, in the same order; each fails on its own. Defaults to [`withdraw`](Self::withdraw) for
    /// each, concurrently.
    ///
    /// For stores that declare an [`acquire_batch`](StoreCapabilities::acquire_batch) above 1.
    /// Unlike a batch of attempts or of releases it does all that the single withdrawal does: it
    /// removes tickets, too, and grants the lease to a waiter. The engine repeats a withdrawal that
    /// has no answer.
    async fn withdraw_many(&self, claims: &[Claim], timeout: Duration) -> Vec<Result<()>> {
        futures_util::future::join_all(claims.iter().map(|claim| self.withdraw(claim, timeout))).await
    }

    /// Returns whether a withdrawal may wait for company. Defaults to true. A withdrawal of a claim
    /// whose stragglers the store refuses only after a call of that claim alone should not
    /// ([`ordered_claims`](StoreCapabilities::ordered_claims)).
    fn may_gather_withdrawal(&self, claim: &Claim) -> bool {
        let _ = claim;
        true
    }

    /// Returns the number of live tickets for the claim's key. The engine queries it while it hands
    /// a lease on within its process, which has no limit only while no other process waits.
    /// Defaults to an error; the engine then assumes that another process waits.
    ///
    /// # Errors
    /// See the trait's *Errors*.
    async fn waiters(&self, claim: &Claim, timeout: Duration) -> Result<u32> {
        let _ = (claim, timeout);
        Err(LockError::new(ErrorKind::Unsupported, format!("the store {} does not count waiters", self.name())))
    }

    /// Opens a stream of events, so that waiters need not poll and losses are noticed at once.
    ///
    /// An event may come late, twice, or never, so the engine treats it as a hint and queries the
    /// store. It believes two events: a loss of its own claim, and a
    /// [`Granted`](StoreEvent::Granted) whose times it can check. After an interruption the stream
    /// sends [`StoreEvent::Gap`] or ends. The engine then wakes all its waiters once; if the stream
    /// ended, it opens a new one.
    ///
    /// The engine may leave the stream unpolled for up to 5 s, while no event is needed: a waiter
    /// whose turn is unlikely to be near needs none, nor does a lease in its first second. A store
    /// may request events only while the stream is polled. It then sends the changes since the last
    /// poll, or [`StoreEvent::Gap`].
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] by default, and whenever the deployment has no push.
    async fn subscribe(&self, watch: &Watch) -> Result<EventStream> {
        let _ = watch;
        Err(LockError::new(ErrorKind::Unsupported, format!("the store {} pushes no events", self.name())))
    }

    /// Returns the administration of the leases in this store. Defaults to `None`.
    ///
    /// A [release by force](LockAdmin::force_release) is one step at the store, too:
    /// * The holder's lease ends, and so does a minimum hold. The key's token advances. The
    ///   [`Gone`](StoreEvent::Gone) that a store with push sends carries a token above all those of
    ///   the lease.
    /// * The tickets stay, and the step grants the lease to no waiter. Waiters learn of it by
    ///   [`Freed`](StoreEvent::Freed), or by polling, and the first of them takes the lease.
    /// * The victim's claim has ended: a renewal is answered [`Gone`](Standing::Gone), a release
    ///   [`AlreadyLost`](ReleaseOutcome::AlreadyLost), and another attempt of the claim is an
    ///   attempt like any other.
    fn admin(&self) -> Option<&dyn LockAdmin> {
        None
    }

    /// Closes what the store opened for one provider. Called once by each provider, when it has
    /// been shut down and every lease is settled. What several providers of one store share must
    /// continue to work for the others. Defaults to nothing.
    ///
    /// # Errors
    /// If something could not be closed; the provider reports the error.
    async fn close(&self) -> Result<()> {
        Ok(())
    }
}

/// What [`LeaseStore::ensure_connected`] returns.
pub type Connecting<'a> = Pin<Box<dyn Future<Output = Result<()>> + Send + 'a>>;
