//! The requests of the lease engine as MongoDB operations, one each.

use std::fmt;
use std::num::{NonZeroU32, NonZeroUsize};
use std::sync::OnceLock;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_trait::async_trait;
use distlock_api::{ErrorKind, FencingToken, LockAdmin, LockError, ReleaseOutcome, Result};
use distlock_engine::store::{
    Attempt, BusyReply, Claim, Connecting, EventStream, Grant, Lanes, LeaseStore, QueueStanding, Release, Renewal,
    Reply, Standing, StoreCapabilities, StoreTime, Watch,
};
use mongodb::bson::{Bson, Document};
use mongodb::options::ReturnDocument;
use mongodb::{Client, ClientSession, Collection, Database};
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use crate::budget::Budget;
use crate::claim::claim_state;
use crate::error::{Effect, is_lost_race, not_a_record, rejection, says, translate, unanswered, unmarked};
use crate::index::Indexes;
use crate::lease::{Acquisition, Clock, Found, Layout, Marked, NOT_A_LOCK, Released, Taken, Waiters, block};
use crate::pool::pool_size;
use crate::recent_use::RecentUse;
use crate::renewal;
use crate::shared::Shared;
use crate::topology::{Deployment, Topology};

/// How many records one update changes: bigger ones hold up everybody else's writes (R14).
pub(crate) const BATCH: NonZeroUsize = NonZeroUsize::new(360).expect("not zero");

/// Leases in a lock collection, one record per key, or in the documents of another one. Under an engine it is a [`MongoProvider`](crate::MongoProvider); by itself it is for those who compose
/// their own. Made by [`MongoProviderBuilder::build_store`](crate::MongoProviderBuilder::build_store) and
/// [`DocumentLocksBuilder::build_store`](crate::DocumentLocksBuilder::build_store).
pub struct MongoStore {
    pub(crate) database: Database,
    pub(crate) records: Collection<Document>,
    pub(crate) layout: Layout,
    pub(crate) absent: Absent,
    /// Whether expired locks of other programs become records.
    pub(crate) adopts_foreign: bool,
    pub(crate) topology: Topology,
    pub(crate) indexes: Indexes,
    /// The bound of what comes without one of its own.
    pub(crate) request_timeout: Duration,
    pub(crate) retryable_writes: bool,
    /// What no token is below; zero for nothing.
    pub(crate) token_floor: i64,
    /// How many calls may be in flight, if the builder was told.
    pub(crate) calls_at_once: Option<NonZeroUsize>,
    /// What it shares with the other stores of its client.
    pub(crate) shared: OnceLock<Shared>,
    pub(crate) recent_use: RecentUse,
}

/// What an acquisition makes of a document that is not there.
#[derive(Clone, Debug)]
pub(crate) enum Absent {
    /// A record: in a lock collection it has nothing else to be.
    Record,
    Default(Document),
    /// An error.
    Nothing,
}

impl MongoStore {
    /// Finds out what the deployment is, tries the privileges `find`, `update` and `insert`, and creates
    /// the indexes, so that a wrong address, credentials or privileges are known early. Not needed
    /// otherwise: the first request finds out the deployment, too, and the indexes are made in the
    /// background.
    ///
    /// # Errors
    /// [`InvalidOptions`](ErrorKind::InvalidOptions) if
    /// [`calls_at_once`](crate::MongoProviderBuilder::calls_at_once) is above the size of the
    /// client's pool, [`Unavailable`](ErrorKind::Unavailable),
    /// [`PermissionDenied`](ErrorKind::PermissionDenied), which names the privilege,
    /// [`Unsupported`](ErrorKind::Unsupported) for a server before MongoDB 6.0, a view, or a collection
    /// with a collation, or what creating the TTL index failed with. Locks work without the indexes, and
    /// after a failure too.
    pub async fn connect(&self) -> Result<()> {
        self.check_calls_at_once()?;
        let budget = Budget::new(self.request_timeout);
        self.deployment_within(budget).await?;
        self.check_privileges(budget).await?;
        self.indexes.create(&self.records, &self.layout, budget.left()).await
    }

    /// More calls than connections would wait in the driver's own line.
    fn check_calls_at_once(&self) -> Result<()> {
        let pool = self.shared().map_or_else(|| pool_size(self.database.client()), |shared| shared.pool.size);
        let Some(calls) = self.calls_at_once.filter(|calls| calls.get() > pool) else { return Ok(()) };
        let message = format!(
            "calls_at_once is {calls}, but the client's pool has {pool} connections (maxPoolSize): the other calls \
             would wait inside the driver, where renewals stand behind acquisitions. Lower calls_at_once, or raise \
             maxPoolSize to more than {calls}, so that the change stream and the application have connections, too"
        );
        Err(LockError::new(ErrorKind::InvalidOptions, message))
    }

    /// What it shares with the other stores of its client; see [`Shared::of`].
    pub(crate) fn shared(&self) -> Option<&Shared> {
        if self.shared.get().is_none() {
            let shared = Shared::of(self.database.client(), self.calls_at_once)?;
            return Some(self.shared.get_or_init(|| shared));
        }
        self.shared.get()
    }

    /// The same, where one may wait.
    pub(crate) async fn shared_within(&self, budget: Budget) -> Result<&Shared> {
        if let Some(shared) = self.shared() {
            return Ok(shared);
        }
        let found = timeout(budget.left(), Shared::wait_for(self.database.client(), self.calls_at_once)).await;
        let shared = found.map_err(|_| unanswered(budget.limit(), Effect::None))?;
        let shared = shared.map_err(|error| translate(&error, Effect::None))?;
        Ok(self.shared.get_or_init(|| shared))
    }

    /// Changes one document, and decodes the answer that the projection computes. None if none matches.
    pub(crate) async fn change<T: DeserializeOwned + Send + Sync + 'static>(
        &self,
        filter: Document,
        pipeline: Vec<Document>,
        projection: Document,
        how: Change<'_>,
    ) -> Result<Option<T>, Failure> {
        let Change { upsert, returning, deployment, session, budget } = how;
        let records = self.records.clone_with_type::<Marked<T>>();
        let session =
            session.filter(|_| self.orders_sessions(deployment)).map(|claim| claim_state(claim).session.clone());
        let call = async move {
            // The next call of the claim waits until this one has ended, also if nobody listens to it any more (R11).
            let mut session = match session {
                Some(session) => Some(session.lock_owned().await),
                None => None,
            };
            let mut action = records
                .find_one_and_update(filter, pipeline)
                .projection(projection)
                .return_document(returning)
                .upsert(upsert)
                .max_time(budget.on_server());
            if let Some(session) = &mut session {
                action = action.session(started(records.client(), session).await?);
            }
            action.await
        };
        match self.attempt(budget, Effect::Write, call).await.map_err(Failure::Known)? {
            Ok(None) => Ok(None),
            Ok(Some(Marked { answer: Some(answer) })) => {
                self.indexes.ensure(&self.records, &self.layout);
                Ok(Some(answer))
            }
            Ok(Some(Marked { answer: None })) => Err(Failure::Known(unmarked())),
            Err(error) => Err(Failure::Driver(error)),
        }
    }
}

async fn started<'s>(
    client: &Client,
    session: &'s mut Option<ClientSession>,
) -> mongodb::error::Result<&'s mut ClientSession> {
    if session.is_none() {
        *session = Some(client.start_session().causal_consistency(false).await?);
    }
    Ok(session.as_mut().expect("set above"))
}

/// How [`MongoStore::change`] goes about it.
pub(crate) struct Change<'a> {
    pub(crate) upsert: bool,
    pub(crate) returning: ReturnDocument,
    pub(crate) deployment: Deployment,
    /// The claim whose writes are numbered.
    pub(crate) session: Option<&'a Claim>,
    pub(crate) budget: Budget,
}

/// Why [`MongoStore::change`] failed.
pub(crate) enum Failure {
    Driver(mongodb::error::Error),
    Known(LockError),
}

impl From<Failure> for LockError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Driver(error) => translate(&error, Effect::Write),
            Failure::Known(error) => error,
        }
    }
}

#[async_trait]
impl LeaseStore for MongoStore {
    fn capabilities(&self) -> StoreCapabilities {
        let mut capabilities = StoreCapabilities::default();
        capabilities.queue = true;
        capabilities.token_blocks = true;
        capabilities.minimum_hold = true;
        // Known with the first answer, and nobody waits before that.
        capabilities.push = self.topology.known().is_some_and(|known| known != Deployment::Standalone)
            && self.shared().is_none_or(|shared| shared.streams.any());
        capabilities.renew_batch = BATCH;
        capabilities.ordered_claims = self.topology.known().is_some_and(|known| self.orders_sessions(known));
        capabilities
    }

    fn name(&self) -> &str {
        "mongodb"
    }

    fn ensure_connected(&self, limit: Duration) -> Option<Connecting<'_>> {
        if self.topology.known().is_some() {
            return None;
        }
        Some(Box::pin(async move { self.deployment_within(Budget::new(limit)).await.map(drop) }))
    }

    fn lanes(&self) -> Option<Lanes> {
        self.shared().map(|shared| shared.pool.lanes.clone())
    }

    async fn try_acquire(&self, attempt: &Attempt) -> Result<Reply> {
        let budget = Budget::new(attempt.timeout);
        if let Some(granted) = self.take(attempt, budget).await? {
            return Ok(granted);
        }
        self.acquire(attempt, &self.absent, false, budget).await
    }

    async fn renew(&self, renewal: &Renewal) -> Result<Standing> {
        let mut answers = self.renew_many(std::slice::from_ref(renewal)).await;
        answers.pop().unwrap_or_else(|| Err(LockError::new(ErrorKind::Other, "a renewal without an answer")))
    }

    async fn release(&self, release: &Release) -> Result<ReleaseOutcome> {
        let Release { claim, hold_at_least, timeout, .. } = release;
        let about = |failure: Failure| LockError::from(failure).with_key(claim.key().clone());
        let identity = self.layout.identity(claim.key())?;
        let budget = Budget::new(*timeout);
        let deployment = self.deployment(claim, &budget).await?;
        let how =
            || Change { upsert: false, returning: ReturnDocument::After, deployment, session: Some(claim), budget };
        if !claim_state(claim).given_up.swap(true, Ordering::Relaxed) {
            let (id, answer) = (claim.id(), Layout::has_been_freed);
            if hold_at_least.is_none() && claim_state(claim).alone.load(Ordering::Relaxed) {
                let (filter, pipeline) = (self.layout.alone(identity.clone(), id), self.layout.free(id, claim.used()));
                if self.change::<Released>(filter, pipeline, answer(), how()).await.map_err(about)?.is_some() {
                    self.recent_use.mark_free(claim.key().as_str());
                    return Ok(ReleaseOutcome::Released);
                }
            }
            let filter = self.layout.held_record(identity.clone(), id);
            let pipeline = self.layout.pass(id, claim.used(), *hold_at_least, self.clock(deployment));
            if self.change::<Released>(filter, pipeline, answer(), how()).await.map_err(about)?.is_some() {
                return Ok(ReleaseOutcome::Released);
            }
        }
        let pipeline = self.layout.release(claim.id(), claim.used(), *hold_at_least, self.clock(deployment));
        let answer = self.change(self.layout.record(identity), pipeline, self.layout.released(claim.id()), how()).await;
        match answer.map_err(about)? {
            Some(Released { released: true }) => Ok(ReleaseOutcome::Released),
            Some(Released { released: false }) | None => Ok(ReleaseOutcome::AlreadyLost),
        }
    }

    async fn withdraw(&self, claim: &Claim, timeout: Duration) -> Result<()> {
        // More likely than a lease it has a ticket.
        claim_state(claim).given_up.store(true, Ordering::Relaxed);
        self.release(&Release::new(claim.clone()).with_timeout(timeout)).await.map(|_| ())
    }

    async fn renew_many(&self, renewals: &[Renewal]) -> Vec<Result<Standing>> {
        renewal::renew_many(self, renewals).await
    }

    async fn waiters(&self, claim: &Claim, timeout: Duration) -> Result<u32> {
        let budget = Budget::new(timeout);
        let records = self.records.clone_with_type::<Marked<Waiters>>();
        let (filter, projection) = (self.layout.record(self.layout.identity(claim.key())?), self.layout.waiters());
        let find = async move { records.find_one(filter).projection(projection).max_time(budget.on_server()).await };
        let found = self.run(budget, Effect::None, find).await;
        let found = found.map_err(|error| error.with_key(claim.key().clone()))?;
        let waiters = found.and_then(|found| found.answer).map_or(0, |Waiters { waiters }| waiters);
        if waiters > 0 {
            claim_state(claim).alone.store(false, Ordering::Relaxed);
        }
        Ok(waiters)
    }

    async fn subscribe(&self, watch: &Watch) -> Result<EventStream> {
        crate::watch::watch(self, watch.provider).await
    }

    fn admin(&self) -> Option<&dyn LockAdmin> {
        Some(self)
    }
}

impl MongoStore {
    /// The short way to a lease that is probably free; none if it turns out to be in use.
    async fn take(&self, attempt: &Attempt, budget: Budget) -> Result<Option<Reply>> {
        let claim = &attempt.claim;
        let about = |error: LockError| error.with_key(claim.key().clone());
        let key = claim.key().as_str();
        let first = !claim_state(claim).attempted.swap(true, Ordering::Relaxed);
        // Who does not wait has one round trip, also if somebody has the lease (C18).
        let may = first && attempt.ticket.is_some() && matches!(self.absent, Absent::Record);
        if !may || !self.recent_use.was_free(key) {
            return Ok(None);
        }
        // Whoever else asks here meanwhile will have to wait, or to be told of the queue.
        self.recent_use.mark_in_use(key);
        let identity = self.layout.identity(claim.key())?;
        let deployment = self.deployment(claim, &budget).await?;
        let pipeline = self.layout.take(attempt, self.clock(deployment));
        let how = Change { upsert: true, returning: ReturnDocument::After, deployment, session: Some(claim), budget };
        match self.change::<Taken>(self.layout.unwanted(identity), pipeline, self.layout.token_taken(), how).await {
            Ok(Some(Taken { token })) => {
                claim_state(claim).alone.store(true, Ordering::Relaxed);
                let grant = grant(token, block(attempt), attempt.ttl).map_err(about)?;
                Ok(Some(Reply::Granted(grant)))
            }
            Ok(None) => Err(about(unmarked())),
            Err(Failure::Driver(error)) if is_lost_race(&error) => Ok(None),
            Err(failure) => Err(about(failure.into())),
        }
    }

    /// One attempt to acquire. If granted and asked for, the document is kept for the claim.
    pub(crate) async fn acquire(
        &self,
        attempt: &Attempt,
        absent: &Absent,
        with_document: bool,
        budget: Budget,
    ) -> Result<Reply> {
        let claim = &attempt.claim;
        let about = |error: LockError| error.with_key(claim.key().clone());
        let identity = self.layout.identity(claim.key())?;
        let deployment = self.deployment(claim, &budget).await?;
        let default = match absent {
            Absent::Default(default) => Some(default),
            Absent::Record | Absent::Nothing => None,
        };
        let mut pipeline = self.layout.beginning(default);
        pipeline.extend(self.layout.acquire(attempt, self.clock(deployment)));
        let upsert = !matches!(absent, Absent::Nothing);
        let how = Change { upsert, returning: ReturnDocument::After, deployment, session: Some(claim), budget };
        let projection = self.layout.acquisition(attempt, with_document);
        // A document that is no record stays: then the insertion collides with it (R22).
        let filter = match absent {
            Absent::Record => self.layout.record(identity.clone()),
            Absent::Default(_) | Absent::Nothing => Layout::document(identity.clone()),
        };
        match self.change::<Acquisition>(filter, pipeline, projection, how).await {
            Ok(Some(mut answer)) => {
                self.recent_use.mark_in_use(claim.key().as_str());
                claim_state(claim).alone.store(answer.granted && answer.waiting == 0, Ordering::Relaxed);
                if with_document && answer.granted {
                    let document = answer.document.take().ok_or_else(|| about(unmarked()))?;
                    *claim_state(claim).document.lock().expect("no code in here panics") = Some(document);
                }
                reply(attempt, &answer).map_err(about)
            }
            Ok(None) if upsert => Err(about(unmarked())),
            Ok(None) => Err(about(LockError::new(ErrorKind::NotFound, "there is no document with this `_id`"))),
            Err(Failure::Driver(error)) if is_lost_race(&error) => match absent {
                Absent::Record => self.after_collision(attempt, identity, deployment, budget).await.map_err(about),
                Absent::Default(_) | Absent::Nothing => Ok(ask_again()),
            },
            Err(Failure::Driver(error)) if says(&error, NOT_A_LOCK) => {
                let message = "the document's field for the lock is something else: name another one for the locks";
                Err(about(LockError::new(ErrorKind::Corrupt, message)))
            }
            // Of a document of the application's own: its validator, or a unique index that the default violates.
            Err(Failure::Driver(error)) if self.layout.is_within() => {
                Err(about(rejection(&error).map_or_else(|| Failure::Driver(error).into(), |(_, rejected)| rejected)))
            }
            Err(failure) => Err(about(failure.into())),
        }
    }

    /// Another acquisition has inserted a record, or there is a document that is none (R22).
    async fn after_collision(
        &self,
        attempt: &Attempt,
        identity: Bson,
        deployment: Deployment,
        budget: Budget,
    ) -> Result<Reply> {
        let Some(found) = self.found(identity.clone(), budget).await?.filter(|found| !found.is_record()) else {
            return Ok(ask_again());
        };
        let respected = found.respected_for().filter(|_| self.adopts_foreign).ok_or_else(not_a_record)?;
        if !respected.is_zero() {
            return Ok(Reply::Busy(BusyReply::new().with_holder_remaining(respected)));
        }
        let (filter, pipeline) =
            (self.layout.expired_foreign(identity), self.layout.adopt(attempt, self.clock(deployment)));
        let claim = Some(&attempt.claim);
        let how = Change { upsert: false, returning: ReturnDocument::After, deployment, session: claim, budget };
        match self.change::<Acquisition>(filter, pipeline, self.layout.acquisition(attempt, false), how).await? {
            Some(answer) => reply(attempt, &answer),
            None => Ok(ask_again()),
        }
    }

    /// What stands where a record would.
    pub(crate) async fn found(&self, identity: Bson, budget: Budget) -> Result<Option<Found>> {
        let records = self.records.clone_with_type::<Marked<Found>>();
        let (filter, projection) = (Layout::document(identity), self.layout.found());
        let find = async move { records.find_one(filter).projection(projection).max_time(budget.on_server()).await };
        Ok(self.run(budget, Effect::None, find).await?.and_then(|found| found.answer))
    }

    /// Where tokens come from in a deployment.
    pub(crate) fn clock(&self, deployment: Deployment) -> Clock {
        Clock { source: deployment.clock(), floor: self.token_floor }
    }

    /// Whether the server refuses a call of a claim that comes after its successor (R11).
    fn orders_sessions(&self, deployment: Deployment) -> bool {
        self.retryable_writes && deployment.numbers_writes()
    }

    pub(crate) async fn deployment_within(&self, budget: Budget) -> Result<Deployment> {
        self.topology.of(&self.database, self.records.name(), budget.left()).await
    }

    pub(crate) async fn deployment(&self, claim: &Claim, budget: &Budget) -> Result<Deployment> {
        self.deployment_within(*budget).await.map_err(|error| error.with_key(claim.key().clone()))
    }
}

/// Nothing was done, not even a ticket left, and nothing is known of the winner: worth asking again at
/// once.
fn ask_again() -> Reply {
    Reply::Busy(BusyReply::new().with_holder_remaining(Duration::ZERO))
}

fn reply(attempt: &Attempt, answer: &Acquisition) -> Result<Reply> {
    let remaining = millis(answer.remaining);
    if !answer.granted {
        let now = StoreTime::since_origin(millis(answer.now));
        let standing = match (u32::try_from(answer.at), attempt.ticket) {
            (Ok(ahead), _) => QueueStanding::Queued { ahead },
            (Err(_), Some(_)) => QueueStanding::Full,
            (Err(_), None) => QueueStanding::NotQueued,
        };
        let busy = BusyReply::new().with_holder_remaining(remaining).with_standing(standing);
        return Ok(Reply::Busy(busy.with_anchor(now, FencingToken::new(token(answer.since)?))));
    }
    grant(answer.token, answer.tokens, remaining).map(Reply::Granted)
}

/// A grant of a block that ends with this token.
fn grant(last: i64, tokens: i32, remaining: Duration) -> Result<Grant> {
    let first = last.checked_sub(i64::from(tokens) - 1).ok_or_else(corrupt)?;
    let tokens = u32::try_from(tokens).ok().and_then(NonZeroU32::new).ok_or_else(corrupt)?;
    Ok(Grant::new(FencingToken::new(token(first)?), remaining).with_tokens(tokens))
}

pub(crate) fn token(value: i64) -> Result<u64> {
    u64::try_from(value).map_err(|_| corrupt())
}

pub(crate) fn millis(value: i64) -> Duration {
    Duration::from_millis(u64::try_from(value).unwrap_or(0))
}

fn corrupt() -> LockError {
    LockError::new(ErrorKind::Corrupt, "a lock record holds a token that no grant can have made").outcome_unknown()
}

impl fmt::Debug for MongoStore {
    /// Without the client, whose options hold credentials.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MongoStore")
            .field("collection", &self.records.namespace().to_string())
            .field("deployment", &self.topology.known())
            .finish_non_exhaustive()
    }
}
