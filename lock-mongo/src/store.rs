//! The requests of the lease engine as MongoDB operations, one each.

use std::fmt;
use std::num::{NonZeroU32, NonZeroUsize};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use distlock_api::store::{
    Attempt, BusyReply, Claim, EventStream, Grant, LeaseStore, QueueStanding, Release, Renewal, Reply, Standing,
    StoreCapabilities, StoreTime, Watch,
};
use distlock_api::{ErrorKind, FencingToken, LockAdmin, LockError, ReleaseOutcome, Result};
use mongodb::bson::Document;
use mongodb::options::ReturnDocument;
use mongodb::{Client, ClientSession, Collection, Database};
use serde::de::DeserializeOwned;
use tokio::sync::Mutex;

use crate::calls::{Budget, Calls};
use crate::error::{Effect, is_lost_race, translate, unmarked};
use crate::index::Indexes;
use crate::lease::{Acquisition, Layout, Marked, Released, Waiters, by_key};
use crate::renewal;
use crate::topology::{Deployment, Topology};

/// How many leases or tickets one update renews: bigger ones hold up everybody else's writes (R14).
const RENEW_BATCH: NonZeroUsize = NonZeroUsize::new(250).expect("not zero");

/// Leases in a lock collection, one record per key. Under an engine it is a [`MongoProvider`](crate::MongoProvider); by itself it is for those who compose
/// their own. Made by [`MongoProviderBuilder::build_store`](crate::MongoProviderBuilder::build_store).
pub struct MongoStore {
    pub(crate) database: Database,
    pub(crate) records: Collection<Document>,
    pub(crate) layout: Layout,
    pub(crate) topology: Topology,
    pub(crate) indexes: Indexes,
    /// The bound of what comes without one of its own.
    pub(crate) request_timeout: Duration,
    pub(crate) retryable_writes: bool,
    pub(crate) calls: Calls,
}

/// What the store keeps for a claim: the session that numbers its writes (R11).
type Session = Arc<Mutex<Option<ClientSession>>>;

impl MongoStore {
    /// Finds out what the deployment is and creates the indexes, so that a wrong address, credentials or privileges are known early. Not needed
    /// otherwise: the first request does the same, except that it does not wait for the indexes.
    ///
    /// # Errors
    /// [`Unavailable`](ErrorKind::Unavailable), [`PermissionDenied`](ErrorKind::PermissionDenied), [`Unsupported`](ErrorKind::Unsupported) for a server before
    /// MongoDB 6.0, or what creating the TTL index failed with. Locks work without the indexes, and after a failure too.
    pub async fn connect(&self) -> Result<()> {
        let budget = Budget::new(self.request_timeout);
        self.topology.of(&self.database, budget.left()).await?;
        self.indexes.create(&self.records, &self.layout, budget.left()).await
    }

    /// Changes one record, and decodes the answer that the projection computes. None if there is no record.
    pub(crate) async fn change<T: DeserializeOwned + Send + Sync + 'static>(
        &self,
        key: &str,
        pipeline: Vec<Document>,
        projection: Document,
        how: Change<'_>,
    ) -> Result<Option<T>, Failure> {
        let Change { upsert, returning, deployment, session, budget } = how;
        let records = self.records.clone_with_type::<Marked<T>>();
        let (filter, session) = (by_key(key), session.filter(|_| self.orders_sessions(deployment)).cloned());
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
        match self.calls.attempt(budget, Effect::Write, call).await.map_err(Failure::Known)? {
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
    pub(crate) session: Option<&'a Session>,
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
        capabilities.push = self.topology.known().is_some_and(|known| known != Deployment::Standalone);
        capabilities.renew_batch = RENEW_BATCH;
        capabilities.ordered_claims = self.topology.known().is_some_and(|known| self.orders_sessions(known));
        capabilities
    }

    fn name(&self) -> &str {
        "mongodb"
    }

    async fn try_acquire(&self, attempt: &Attempt) -> Result<Reply> {
        let claim = &attempt.claim;
        let budget = Budget::new(attempt.timeout);
        let deployment = self.deployment(claim, &budget).await?;
        let pipeline = self.layout.acquire(attempt, deployment.clock());
        let how = Change {
            upsert: true,
            returning: ReturnDocument::After,
            deployment,
            session: Some(claim.state(Session::default)),
            budget,
        };
        match self.change(claim.key().as_str(), pipeline, self.layout.acquisition(attempt), how).await {
            Ok(Some(answer)) => reply(attempt, &answer).map_err(|error| error.with_key(claim.key().clone())),
            Ok(None) => Err(unmarked().with_key(claim.key().clone())),
            // Nothing was done, not even a ticket left, and nothing is known of the winner: worth asking again at once.
            Err(Failure::Driver(error)) if is_lost_race(&error) => {
                Ok(Reply::Busy(BusyReply::new().with_holder_remaining(Duration::ZERO)))
            }
            Err(failure) => Err(LockError::from(failure).with_key(claim.key().clone())),
        }
    }

    async fn renew(&self, renewal: &Renewal) -> Result<Standing> {
        let mut answers = self.renew_many(std::slice::from_ref(renewal)).await;
        answers.pop().unwrap_or_else(|| Err(LockError::new(ErrorKind::Other, "a renewal without an answer")))
    }

    async fn release(&self, release: &Release) -> Result<ReleaseOutcome> {
        let Release { claim, hold_at_least, timeout, .. } = release;
        let budget = Budget::new(*timeout);
        let deployment = self.deployment(claim, &budget).await?;
        let pipeline = self.layout.release(claim.id(), *hold_at_least, deployment.clock());
        let how = Change {
            upsert: false,
            returning: ReturnDocument::After,
            deployment,
            session: Some(claim.state(Session::default)),
            budget,
        };
        let answer = self.change(claim.key().as_str(), pipeline, self.layout.released(claim.id()), how).await;
        match answer.map_err(|failure| LockError::from(failure).with_key(claim.key().clone()))? {
            Some(Released { released: true }) => Ok(ReleaseOutcome::Released),
            Some(Released { released: false }) | None => Ok(ReleaseOutcome::AlreadyLost),
        }
    }

    async fn renew_many(&self, renewals: &[Renewal]) -> Vec<Result<Standing>> {
        renewal::renew_many(self, renewals).await
    }

    async fn waiters(&self, claim: &Claim, timeout: Duration) -> Result<u32> {
        let budget = Budget::new(timeout);
        let records = self.records.clone_with_type::<Marked<Waiters>>();
        let (filter, projection) = (by_key(claim.key().as_str()), self.layout.waiters());
        let find = async move { records.find_one(filter).projection(projection).max_time(budget.on_server()).await };
        let found = self.calls.run(budget, Effect::None, find).await;
        let found = found.map_err(|error| error.with_key(claim.key().clone()))?;
        Ok(found.and_then(|found| found.answer).map_or(0, |Waiters { waiters }| waiters))
    }

    async fn watch(&self, watch: &Watch) -> Result<EventStream> {
        crate::watch::watch(self, watch.provider).await
    }

    fn admin(&self) -> Option<&dyn LockAdmin> {
        Some(self)
    }
}

impl MongoStore {
    /// Whether the server refuses a call of a claim that comes after its successor (R11).
    fn orders_sessions(&self, deployment: Deployment) -> bool {
        self.retryable_writes && deployment.numbers_writes()
    }

    async fn deployment(&self, claim: &Claim, budget: &Budget) -> Result<Deployment> {
        let deployment = self.topology.of(&self.database, budget.left()).await;
        deployment.map_err(|error| error.with_key(claim.key().clone()))
    }
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
        return Ok(Reply::Busy(busy.with_anchor(now, FencingToken::new(token(answer.token)?))));
    }
    let tokens = u32::try_from(answer.tokens).ok().and_then(NonZeroU32::new).ok_or_else(corrupt)?;
    let first = answer.token.checked_sub(i64::from(answer.tokens) - 1).ok_or_else(corrupt)?;
    Ok(Reply::Granted(Grant::new(FencingToken::new(token(first)?), remaining).with_tokens(tokens)))
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
