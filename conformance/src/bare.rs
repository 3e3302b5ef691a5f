//! A client below the lease engine: a bare store, as one process opens it.

use std::collections::HashMap;
use std::fmt;
use std::future::ready;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use distlock_api::{AcquisitionId, ErrorKind, FencingToken, LockAdmin, LockError, LockKey, Mode, ReleaseOutcome};
use distlock_engine::LeaseStore;
use distlock_engine::store::{
    Attempt, BusyReply, Claim, EventStream, Grant, ProviderId, QueueStanding, Release, Renewal, Reply, Standing,
    StoreEvent, Ticket, Watch,
};
use futures_util::stream::BoxStream;
use futures_util::{StreamExt, TryStreamExt, stream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::bounded::{LIVENESS, SOON, within};
use crate::failure::{Failure, FailureKind, Verdict, located_at_caller};
use crate::recorder::{RENEWAL, Recorder};

/// How many claims are given up at once.
const AT_ONCE: usize = 16;
/// How many tokens a check asks for where a store gives blocks.
const BLOCK: NonZeroU32 = NonZeroU32::new(3).expect("not zero");

/// A bare store, and the provider id of the claims that it makes.
#[derive(Clone, Debug)]
pub(crate) struct BareStore {
    store: Arc<dyn LeaseStore>,
    provider: ProviderId,
    /// The claims that may have a lease or a ticket.
    open: Arc<Mutex<HashMap<AcquisitionId, Claim>>>,
    recorder: Recorder,
    number: usize,
}

impl BareStore {
    /// Connects the store, as the engine does before its first attempt.
    #[track_caller]
    pub(crate) fn connected(
        store: Arc<dyn LeaseStore>,
        recorder: &Recorder,
    ) -> impl Future<Output = Result<Self, Failure>> {
        located_at_caller(async move {
            if let Some(connecting) = store.extras().remote.and_then(|remote| remote.ensure_connected(LIVENESS)) {
                connecting.await?;
            }
            let (provider, number) = (ProviderId::random(), recorder.client());
            Ok(Self { store, provider, open: Arc::default(), recorder: recorder.clone(), number })
        })
    }

    /// Returns the store itself, for requests whose errors are checked.
    pub(crate) fn inner(&self) -> &Arc<dyn LeaseStore> {
        &self.store
    }

    /// Sends a request, and records it with its answer.
    async fn sent<T: fmt::Debug>(
        &self,
        key: &LockKey,
        request: &str,
        call: impl Future<Output = distlock_api::Result<T>>,
    ) -> distlock_api::Result<T> {
        let asked = Instant::now();
        let answer = call.await;
        let said = match &answer {
            Ok(answer) => format!("{answer:?}"),
            Err(error) => format!("error: {error}"),
        };
        self.recorder.sent(self.number, key, request, asked, Some((Instant::now(), said)));
        answer
    }

    /// Gives up the leases and tickets of all its claims.
    pub(crate) async fn leave(&self) {
        let open = std::mem::take(&mut *self.open.lock().expect("not poisoned"));
        let leaving = open.values().map(|claim| self.store.withdraw(claim, SOON));
        stream::iter(leaving).buffer_unordered(AT_ONCE).for_each(|_| ready(())).await;
    }

    /// Makes a claim for a new acquisition of the key.
    pub(crate) fn claim(&self, key: &LockKey) -> Claim {
        Claim::new(key.clone(), self.provider.acquisition_id())
    }

    /// Makes a claim for a new acquisition of the key in a mode.
    pub(crate) fn claim_as(&self, key: &LockKey, mode: Mode) -> Claim {
        self.claim(key).with_mode(mode)
    }

    /// Makes an attempt, for a block of tokens if the store grants blocks.
    pub(crate) fn attempt(&self, claim: &Claim, ttl: Duration) -> Attempt {
        let attempt = Attempt::new(claim.clone(), ttl);
        if self.gives_blocks() { attempt.with_tokens(BLOCK) } else { attempt }
    }

    pub(crate) fn gives_blocks(&self) -> bool {
        self.store.capabilities().token_blocks
    }

    /// Sends one attempt, and returns the store's answer or error.
    #[track_caller]
    pub(crate) fn ask(&self, attempt: &Attempt) -> impl Future<Output = Result<distlock_api::Result<Reply>, Failure>> {
        located_at_caller(async move {
            let claim = &attempt.claim;
            self.open.lock().expect("not poisoned").insert(claim.id().clone(), claim.clone());
            let reply = self.sent(claim.key(), "attempt", self.store.try_acquire(attempt));
            let reply = within(LIVENESS, "an attempt to return", reply).await?;
            if let Ok(Reply::Busy(busy)) = &reply
                && busy.standing == QueueStanding::NotQueued
            {
                self.settled(claim);
            }
            Ok(reply)
        })
    }

    /// Sends any number of attempts, in batches of the store's size.
    #[track_caller]
    pub(crate) fn ask_all(
        &self,
        attempts: &[Attempt],
    ) -> impl Future<Output = Result<Vec<distlock_api::Result<Reply>>, Failure>> {
        located_at_caller(async move {
            let mut answers = Vec::new();
            let Some(store) = self.store.extras().batch else {
                for attempt in attempts {
                    answers.push(self.ask(attempt).await?);
                }
                return Ok(answers);
            };
            for batch in attempts.chunks(store.acquire_batch().get()) {
                let claims = batch.iter().map(|attempt| (attempt.claim.id().clone(), attempt.claim.clone()));
                self.open.lock().expect("not poisoned").extend(claims);
                answers.extend(within(LIVENESS, "a batch to return", store.try_acquire_many(batch)).await?);
            }
            Ok(answers)
        })
    }

    /// Records that the claim has neither a lease nor a ticket.
    fn settled(&self, claim: &Claim) {
        self.open.lock().expect("not poisoned").remove(claim.id());
    }

    /// Sends an attempt that must be granted.
    #[track_caller]
    pub(crate) fn granted(&self, attempt: &Attempt, why: &str) -> impl Future<Output = Result<Grant, Failure>> {
        located_at_caller(async move {
            match self.ask(attempt).await?? {
                Reply::Granted(grant) => Ok(grant),
                busy => Err(Failure::new(format!("{why}, and the attempt was answered {busy:?}"))),
            }
        })
    }

    /// Acquires a key that is free.
    #[track_caller]
    pub(crate) fn take(&self, claim: &Claim, ttl: Duration) -> impl Future<Output = Result<Grant, Failure>> {
        located_at_caller(async move { self.granted(&self.attempt(claim, ttl), "the key is free").await })
    }

    /// Sends an attempt that must not be granted.
    #[track_caller]
    pub(crate) fn busy(&self, attempt: &Attempt, why: &str) -> impl Future<Output = Result<BusyReply, Failure>> {
        located_at_caller(async move {
            match self.ask(attempt).await?? {
                Reply::Busy(busy) => Ok(busy),
                granted => Err(Failure::new(format!("{why}, and the attempt was answered {granted:?}"))),
            }
        })
    }

    /// Sends an attempt with a ticket that must wait, with `ahead` tickets before it.
    #[track_caller]
    pub(crate) fn queued(
        &self,
        claim: &Claim,
        ticket: Ticket,
        ahead: u32,
    ) -> impl Future<Output = Result<BusyReply, Failure>> {
        located_at_caller(async move {
            let attempt = self.attempt(claim, LEASE).with_ticket(ticket);
            let busy = self.busy(&attempt, "another claim holds the key").await?;
            match busy.standing {
                QueueStanding::Queued { ahead: seen } if seen == ahead => Ok(busy),
                other => Err(Failure::new(format!("a waiter with {ahead} before it was answered {other:?}"))),
            }
        })
    }

    #[track_caller]
    pub(crate) fn renew(&self, renewal: &Renewal) -> impl Future<Output = Result<Standing, Failure>> {
        located_at_caller(async move {
            let renewing = self.sent(renewal.claim.key(), RENEWAL, self.store.renew(renewal));
            Ok(within(LIVENESS, "a renewal to return", renewing).await??)
        })
    }

    /// Renews a lease, by the last token of its block.
    #[track_caller]
    pub(crate) fn extend(
        &self,
        claim: &Claim,
        grant: &Grant,
        ttl: Duration,
    ) -> impl Future<Output = Result<Standing, Failure>> {
        located_at_caller(async move { self.renew(&Renewal::lease(claim.clone(), last(grant), ttl)).await })
    }

    /// Sends any number of renewals, in batches of the store's size.
    #[track_caller]
    pub(crate) fn extend_all(
        &self,
        renewals: &[Renewal],
    ) -> impl Future<Output = Result<Vec<distlock_api::Result<Standing>>, Failure>> {
        located_at_caller(async move {
            let mut standings = Vec::new();
            let Some(store) = self.store.extras().batch_renew else {
                for renewal in renewals {
                    standings.push(within(LIVENESS, "a renewal to return", self.store.renew(renewal)).await?);
                }
                return Ok(standings);
            };
            for batch in renewals.chunks(store.renew_batch().get()) {
                standings.extend(within(LIVENESS, "a batch to return", store.renew_many(batch)).await?);
            }
            Ok(standings)
        })
    }

    /// Fails unless the claim holds the lease, which is not extended.
    #[track_caller]
    pub(crate) fn ensure_held(&self, claim: &Claim, grant: &Grant, why: &str) -> impl Future<Output = Verdict> {
        located_at_caller(async move {
            match self.extend(claim, grant, Duration::from_millis(1)).await? {
                Standing::Held { .. } => Ok(()),
                other => Err(Failure::new(format!("{why}, and a renewal of the lease was answered {other:?}"))),
            }
        })
    }

    /// Fails unless the lease, or the ticket's claim, has ended.
    #[track_caller]
    pub(crate) fn ensure_gone(&self, renewal: &Renewal, why: &str) -> impl Future<Output = Verdict> {
        located_at_caller(async move {
            match self.renew(renewal).await? {
                Standing::Gone(_) => Ok(()),
                other => Err(Failure::new(format!("{why}, and a renewal was answered {other:?}"))),
            }
        })
    }

    #[track_caller]
    pub(crate) fn release(&self, claim: &Claim) -> impl Future<Output = Result<ReleaseOutcome, Failure>> {
        located_at_caller(async move { self.release_as(&Release::new(claim.clone())).await })
    }

    #[track_caller]
    pub(crate) fn release_as(&self, release: &Release) -> impl Future<Output = Result<ReleaseOutcome, Failure>> {
        located_at_caller(async move {
            let outcome = self.sent(release.claim.key(), "release", self.store.release(release));
            let outcome = within(LIVENESS, "a release to return", outcome).await??;
            self.settled(&release.claim);
            Ok(outcome)
        })
    }

    /// Sends any number of releases, in batches of the store's size.
    #[track_caller]
    pub(crate) fn release_all(
        &self,
        releases: &[Release],
    ) -> impl Future<Output = Result<Vec<distlock_api::Result<ReleaseOutcome>>, Failure>> {
        located_at_caller(async move {
            let mut outcomes = Vec::new();
            let Some(store) = self.store.extras().batch else {
                for release in releases {
                    outcomes.push(within(LIVENESS, "a release to return", self.store.release(release)).await?);
                }
                return Ok(outcomes);
            };
            for batch in releases.chunks(store.acquire_batch().get()) {
                outcomes.extend(within(LIVENESS, "a batch to return", store.release_many(batch)).await?);
            }
            Ok(outcomes)
        })
    }

    /// Releases a lease that must be held.
    #[track_caller]
    pub(crate) fn give_back(&self, claim: &Claim) -> impl Future<Output = Verdict> {
        located_at_caller(async move {
            match self.release(claim).await? {
                ReleaseOutcome::Released => Ok(()),
                other => Err(Failure::new(format!("the release of a held lease said {other:?}"))),
            }
        })
    }

    #[track_caller]
    pub(crate) fn withdraw(&self, claim: &Claim) -> impl Future<Output = Verdict> {
        located_at_caller(async move {
            let withdrawing = self.sent(claim.key(), "withdrawal", self.store.withdraw(claim, SOON));
            within(LIVENESS, "a withdrawal to return", withdrawing).await??;
            self.settled(claim);
            Ok(())
        })
    }

    /// Withdraws any number of claims, in batches of the store's size.
    #[track_caller]
    pub(crate) fn withdraw_all(
        &self,
        claims: &[Claim],
        timeout: Duration,
    ) -> impl Future<Output = Result<Vec<distlock_api::Result<()>>, Failure>> {
        located_at_caller(async move {
            let mut answers = Vec::new();
            let Some(store) = self.store.extras().batch else {
                for claim in claims {
                    let withdrawing = self.store.withdraw(claim, timeout);
                    answers.push(within(LIVENESS, "a withdrawal to return", withdrawing).await?);
                }
                return Ok(answers);
            };
            for batch in claims.chunks(store.acquire_batch().get()) {
                let withdrawing = store.withdraw_many(batch, timeout);
                answers.extend(within(LIVENESS, "a batch to return", withdrawing).await?);
            }
            Ok(answers)
        })
    }

    /// Returns the number of waiters, if the store reports it.
    #[track_caller]
    pub(crate) fn waiters(&self, claim: &Claim) -> impl Future<Output = Result<Option<u32>, Failure>> {
        located_at_caller(async move {
            let Some(queue) = self.store.extras().queue else { return Ok(None) };
            Ok(Some(within(LIVENESS, "a query for waiters to return", queue.waiters(claim, SOON)).await??))
        })
    }

    /// Returns how long the key stays closed, from a busy answer or the administration; `None` if
    /// neither reports it.
    #[track_caller]
    pub(crate) fn left(&self, key: &LockKey) -> impl Future<Output = Result<Option<Duration>, Failure>> {
        located_at_caller(async move {
            let attempt = Attempt::new(self.claim(key), LEASE);
            let busy = self.busy(&attempt, "another claim holds the key").await?;
            if busy.holder_remaining.is_some() {
                return Ok(busy.holder_remaining);
            }
            let Some(admin) = self.store.extras().admin else { return Ok(None) };
            Ok(admin.inspect(key).await?.map(|info| info.remaining))
        })
    }

    pub(crate) fn admin(&self) -> Result<&dyn LockAdmin, Failure> {
        let message = "the profile declares administration, but the store has none";
        self.store.extras().admin.ok_or_else(|| Failure::of(FailureKind::Fixture, message))
    }

    /// Opens a stream of its events from now on.
    #[track_caller]
    pub(crate) fn watch(&self) -> impl Future<Output = Result<EventStream, Failure>> {
        located_at_caller(async move {
            let opened = within(LIVENESS, "the stream of events to open", self.subscribe()).await??;
            Ok(read_at_once(opened))
        })
    }

    /// Makes one request for such a stream.
    pub(crate) async fn subscribe(&self) -> distlock_api::Result<EventStream> {
        match self.store.extras().events {
            Some(events) => events.subscribe(&Watch::provider(self.provider)).await,
            None => Err(LockError::new(ErrorKind::Unsupported, "the store pushes no events")),
        }
    }
}

/// Receives events as they come, whatever their reader does meanwhile. A store may report a gap to
/// a watcher that is slow, and the checks beside this one cause events, too.
pub(crate) fn read_at_once<T: Send + 'static>(mut stream: BoxStream<'static, T>) -> BoxStream<'static, T> {
    let (sender, mut receiver) = mpsc::unbounded_channel();
    let mut reader = JoinSet::new();
    reader.spawn(async move {
        while let Some(event) = stream.next().await {
            if sender.send(event).is_err() {
                break;
            }
        }
    });
    Box::pin(stream::poll_fn(move |cx| {
        let _until_dropped = &reader;
        receiver.poll_recv(cx)
    }))
}

/// A ttl that is longer than any check, and not a whole number of seconds.
pub(crate) const LEASE: Duration = Duration::from_millis(120_250);

/// Returns the last token of a grant's block, by which the lease is renewed.
pub(crate) fn last(grant: &Grant) -> FencingToken {
    FencingToken::new(grant.token.get() + u64::from(grant.tokens.get()) - 1)
}

/// Waits for the first event for which `wanted` returns a value.
#[track_caller]
pub(crate) fn event<T>(
    events: &mut EventStream,
    what: &str,
    wanted: impl Fn(StoreEvent) -> Option<T>,
) -> impl Future<Output = Result<T, Failure>> {
    located_at_caller(async move {
        within(SOON, what, async {
            while let Some(event) = events.try_next().await? {
                if event == StoreEvent::Gap {
                    return Err(Failure::of_gap());
                }
                if let Some(wanted) = wanted(event) {
                    return Ok(wanted);
                }
            }
            Err(Failure::new(format!("the stream of events ended before {what}")))
        })
        .await?
    })
}
