//! The interface between the lease engine and a backend.

mod answer;
pub(crate) mod answer_timeout;
mod batch;
mod capabilities;
mod claim;
mod event;
mod extras;
mod outbox;
mod queue;
mod remote;
mod request;
mod style;

use std::any::type_name;
use std::fmt;
use std::time::Duration;

use async_trait::async_trait;

use distlock_api::{ReleaseOutcome, Result};

pub use self::answer::{BusyReply, Grant, QueueStanding, Reply, Standing, StoreTime};
pub use self::answer_timeout::answered_within;
pub use self::batch::{BatchRenewStore, BatchStore};
pub use self::capabilities::StoreCapabilities;
pub use self::claim::{Claim, ProviderId, Used};
pub use self::event::{EventStore, EventStream, StoreEvent, Watch};
pub use self::extras::StoreExtras;
pub(crate) use self::outbox::{Entered, Entry, Home, InLine, Job, Lane, Overload, Permit};
pub use self::outbox::{Lanes, SetAside};
pub use self::queue::QueueStore;
pub use self::remote::{Connecting, RemoteStore};
pub use self::request::{Attempt, Release, Renewal, RenewalSubject, Ticket};
pub use self::style::{AcquireOp, Write, WriteOp, Written};

/// The interface that a backend author implements: single operations on one lease record per key.
/// The [`LeaseProvider`](crate::LeaseProvider) turns any store into a full
/// [`LockProvider`](distlock_api::LockProvider).
///
/// [`try_acquire`](Self::try_acquire), [`renew`](Self::renew) and [`release`](Self::release) make a
/// working backend. What else a store can do is declared by two methods:
///
/// | method | declares |
/// |---|---|
/// | [`capabilities`](Self::capabilities) | what the three requests support, such as shared locks or a minimum hold |
/// | [`extras`](Self::extras) | the other traits that the store implements: a queue, events, batches, administration, connections |
///
/// # Contract
/// A store has **no loops, no timers, no tasks** except those of its driver's connections. The
/// engine does the waiting, renewal, loss detection, retries and clean-up. Each method is one
/// atomic step at the store, and the steps of one key have a single order.
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
/// * Tokens start above 0, and stay below 2^53 for as long as the store may live. Readers that turn
///   numbers into doubles then compare them exactly. A counter per key starts at 1. A clock that
///   counts, and a floor, leave room for the largest block, of 16,777,216 tokens. A store that
///   cannot keep them below says so to its users. None is above `i64::MAX`: a
///   [`Record`](crate::record::Record) that contains such a token is refused when it is read.
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
///   stores that declare the capability, as it sends tickets only to a [`QueueStore`]. It never
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
#[async_trait]
pub trait LeaseStore: fmt::Debug + Send + Sync + 'static {
    /// Tries once to take the lease `attempt.claim.key()` for the claim.
    ///
    /// In one step:
    /// 1. The claim holds the lease already, unexpired. Its expiry becomes the later of its present
    ///    value and now + ttl. The answer is [`Granted`](Reply::Granted) with the **same** tokens.
    /// 2. Otherwise, if the lease is free, it is granted for `ttl` with a new token. A lease is
    ///    free if it was never granted, released, or has expired, and no minimum hold is running.
    /// 3. Otherwise nothing changes. The answer is [`Busy`](Reply::Busy).
    ///
    /// What a [`QueueStore`] does with tickets in these steps is described there.
    ///
    /// If two claims race for a free lease, one is granted and the other is answered busy, never
    /// with an error.
    ///
    /// An attempt that the server begins after its `timeout` does nothing, if the store can ensure
    /// that. Otherwise a frozen server makes a lease without an owner when it continues.
    ///
    /// # Errors
    /// See the trait's *Errors*.
    async fn try_acquire(&self, attempt: &Attempt) -> Result<Reply>;

    /// Extends a held lease. It never grants anything.
    ///
    /// A lease is extended only if this claim holds it **with this token** and it has not expired
    /// by the store's clock. Its expiry becomes the later of its present value and now + ttl.
    /// Otherwise nothing changes and the answer is [`Standing::Gone`]: a renewal never revives an
    /// expired lease, not even one that no claim has taken since ([C12]).
    ///
    /// With a [`QueueStore`] it also refreshes tickets, which is described there.
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
    /// What a [`QueueStore`] grants in the same step is described there.
    ///
    /// With `hold_at_least` the key stays closed to all claims until the lease's start + that
    /// duration by the store's clock ([C25]). The engine sends it only if the store declares
    /// [`minimum_hold`](StoreCapabilities::minimum_hold). During that time nothing is granted, not
    /// even to waiters; afterwards they continue by polling.
    ///
    /// # Errors
    /// See the trait's *Errors*.
    ///
    /// [C8]: distlock_api::contract#c8
    /// [C10]: distlock_api::contract#c10
    /// [C25]: distlock_api::contract#c25
    async fn release(&self, release: &Release) -> Result<ReleaseOutcome>;

    /// Returns a name for logs, metrics and errors, such as `mongodb`. It contains no secret.
    /// Defaults to the name of the type.
    fn name(&self) -> &str {
        let path = type_name::<Self>().split('<').next().unwrap_or_default();
        path.rsplit("::").next().unwrap_or_default()
    }

    /// Returns what the store supports in the three requests. The engine calls this at each use:
    /// the capabilities may grow after the store has met its server, and never shrink. Defaults to
    /// none.
    fn capabilities(&self) -> StoreCapabilities {
        StoreCapabilities::default()
    }

    /// Returns the other traits that the store implements. The engine calls this at each use, as it
    /// does [`capabilities`](Self::capabilities). Defaults to none.
    ///
    /// A store around another one that changes nothing about an extra returns the other's.
    fn extras(&self) -> StoreExtras<'_> {
        StoreExtras::default()
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
}
