//! Calls of the driver, bounded by the time of their request.
//!
//! The driver has no timeout for an answer. A call whose reply was lost hangs as long as its
//! connection, and keeps the connection, its session and its permit. Each operation therefore has a
//! `maxTimeMS` a little below its limit (R2). If a server has not answered by the limit, it is
//! frozen or the connection is half open. The call is then cut off, the driver closes the
//! connection, and the outcome of the call is unknown (R17).
//!
//! No more calls are made at once than the pool has connections. A call that is cut off while it
//! waits for a connection leaves a dead entry in the driver's line. The driver removes one of these
//! per event of the pool, so that live calls behind hundreds of them time out for many seconds.

pub(crate) mod privileges;

use std::future::Future;
use std::num::NonZeroUsize;

use distlock_api::{ErrorKind, LockError, Result};
use distlock_engine::store::{Claim, answered_within};
use futures_util::TryStreamExt;
use mongodb::bson::{Bson, Document, doc};
use mongodb::options::{Acknowledgment, ReturnDocument, WriteConcern};
use mongodb::{Client, ClientSession};
use serde::Deserialize;
use serde::de::{DeserializeOwned, Error as _};
use tokio::time::timeout;

use crate::bson::from_document;
use crate::budget::Budget;
use crate::claim::claim_state;
use crate::error::{Effect, Refusal, failed_with, is_answer, refused, replaced, translate, unmarked, unreadable};
use crate::lease::plan::{ConfirmedBy, Step};
use crate::lease::{LATE, Marked, until};
use crate::records::Records;
use crate::topology::{Deployment, ended_before, primary_replaced, unanswered_by, unselected};

/// How many records one update changes. Larger updates delay all other writes (R14).
pub(crate) const BATCH: NonZeroUsize = NonZeroUsize::new(360).expect("not zero");

/// The records of a batch come in one answer of the server, which would divide them by default.
const FOUND_AT_ONCE: u32 = 1_000;

/// The options of [`Records::change`].
#[derive(Clone)]
pub(crate) struct ChangeOptions<'a> {
    pub(crate) returning: ReturnDocument,
    pub(crate) deployment: Deployment,
    /// The claim whose writes are numbered.
    pub(crate) session: Option<&'a Claim>,
    /// Whether the change refuses itself if it begins after its time (R31).
    pub(crate) is_bounded: bool,
    pub(crate) budget: Budget,
}

impl<'a> ChangeOptions<'a> {
    /// Makes the options of a change that returns the changed document.
    pub(crate) fn new(deployment: Deployment, session: Option<&'a Claim>, budget: Budget) -> Self {
        Self { returning: ReturnDocument::After, deployment, session, is_bounded: false, budget }
    }

    /// Makes the options of an attempt to acquire, as [`new`](Self::new) does.
    pub(crate) fn attempt(deployment: Deployment, claim: &'a Claim, budget: Budget) -> Self {
        Self { is_bounded: true, ..Self::new(deployment, Some(claim), budget) }
    }
}

/// Why [`Records::change`] failed.
pub(crate) enum Failure {
    Driver(mongodb::error::Error),
    Known(LockError),
    /// The change began too late, and has done nothing (R31). The clock was read meanwhile.
    Late,
}

impl From<Failure> for LockError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Driver(error) => translate(&error, Effect::Write),
            Failure::Known(error) => error,
            Failure::Late => {
                let message = "MongoDB began the operation after the time for it, and did nothing: its clock was set, \
                               or this machine was suspended";
                Self::new(ErrorKind::Unavailable, message)
            }
        }
    }
}

/// An update of many documents.
pub(crate) struct UpdateMany {
    pub(crate) filter: Document,
    /// A pipeline, or a document of operators.
    pub(crate) change: Bson,
    pub(crate) array_filters: Vec<Document>,
    pub(crate) hint: Option<Document>,
}

impl UpdateMany {
    fn into_statement(self) -> Document {
        let Self { filter, change, array_filters, hint } = self;
        let mut statement = doc! { "q": filter, "u": change, "multi": true };
        if let Some(hint) = hint {
            statement.insert("hint", hint);
        }
        if !array_filters.is_empty() {
            statement.insert("arrayFilters", array_filters);
        }
        statement
    }
}

/// The reply to a write that goes by hand.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct WriteReply {
    /// How many documents an update found. Other writes have none.
    n: Option<usize>,
    #[serde(default)]
    pub(crate) write_errors: Vec<Refusal>,
    /// The primary has done the write.
    pub(crate) write_concern_error: Option<Refusal>,
}

impl WriteReply {
    pub(crate) fn read(reply: Document) -> Result<Self> {
        from_document(reply).map_err(unreadable)
    }

    /// Returns how many documents the update found.
    pub(crate) fn found(&self) -> Result<usize> {
        self.n.ok_or_else(|| unreadable(serde::de::value::Error::missing_field("n")))
    }
}

impl Records {
    /// Makes a call within the budget. The inner result is the driver's.
    pub(crate) async fn attempt<T>(
        &self,
        budget: Budget,
        effect: Effect,
        call: impl Future<Output = mongodb::error::Result<T>>,
    ) -> Result<mongodb::error::Result<T>> {
        // Without an engine there are no lanes, and calls would wait in the driver's own line.
        let resources = self.resources_within(budget).await?;
        let client = self.database.client();
        let connection = timeout(budget.left(), resources.pool.connections.acquire()).await;
        let _connection = connection.map_err(|_| self.unanswered(budget, Effect::None))?;
        // In the last twentieth of its time a call would be cut off before its answer, and leave a
        // dead entry. Many calls that started together also reach their limit together.
        if budget.left() < budget.limit() / 20 {
            return Err(self.unanswered(budget, Effect::None));
        }
        let answer = tokio::select! {
            biased;
            answer = answered_within(budget.left(), call) => answer.ok_or_else(|| self.unanswered(budget, effect)),
            () = primary_replaced(client) => Err(replaced(budget.spent(), effect)),
        };
        match &answer {
            Ok(Ok(_)) => resources.pool.reachability.answered(),
            Ok(Err(error)) if is_answer(error) => resources.pool.reachability.answered(),
            Ok(Err(_)) | Err(_) => resources.pool.reachability.unanswered(),
        }
        match &answer {
            Ok(Err(error)) => ended_before(client, error).map_or(answer, Err),
            _ => answer,
        }
    }

    /// Makes the error of a call that its limit ended.
    fn unanswered(&self, budget: Budget, effect: Effect) -> LockError {
        unanswered_by(self.database.client(), self.topology.known(), budget.limit(), effect)
    }

    /// Returns an error that says more than the driver's: which servers cannot be used, which
    /// privilege is missing, or what the server lacks.
    async fn explained(&self, error: &mongodb::error::Error, budget: Budget) -> Option<LockError> {
        if !is_answer(error) {
            return unselected(self.database.client(), error);
        }
        match privileges::missing(self, &self.if_missing, error, budget).await {
            Some(missing) => Some(missing),
            None => self.topology.lacking(self.kept(), error, budget.left()).await,
        }
    }

    /// Makes a call within the budget, and translates the driver's error.
    pub(crate) async fn run<T>(
        &self,
        budget: Budget,
        effect: Effect,
        call: impl Future<Output = mongodb::error::Result<T>>,
    ) -> Result<T> {
        match self.attempt(budget, effect, call).await? {
            Ok(answer) => Ok(answer),
            Err(error) => {
                Err(Box::pin(self.explained(&error, budget)).await.unwrap_or_else(|| translate(&error, effect)))
            }
        }
    }

    /// Changes one document, and decodes the answer that the projection computes. Returns `None` if
    /// no document matches.
    ///
    /// If the change is bounded and late, the process has read the server's clock since, and the
    /// change can be sent again.
    pub(crate) async fn change<T: DeserializeOwned + Send + Sync + 'static>(
        &self,
        step: Step,
        options: ChangeOptions<'_>,
    ) -> Result<Option<T>, Failure> {
        let Step { filter, pipeline, projection, upsert, confirmed_by } = step;
        let ChangeOptions { returning, deployment, session, is_bounded, budget } = options;
        let pipeline =
            if is_bounded { until(self.bound(budget).await.map_err(Failure::Known)?, pipeline) } else { pipeline };
        let documents = self.collection.clone_with_type::<Marked<T>>();
        let session =
            session.filter(|_| self.orders_sessions(deployment)).map(|claim| claim_state(claim).session.clone());
        let call = async move {
            // The next call of the claim waits for the end of this one, even if its caller has left
            // (R11).
            let mut session = match session {
                Some(session) => Some(session.lock_owned().await),
                None => None,
            };
            let mut action = documents
                .find_one_and_update(filter, pipeline)
                .projection(projection)
                .return_document(returning)
                .upsert(upsert)
                .max_time(budget.on_server());
            if confirmed_by == ConfirmedBy::Primary {
                action = action.write_concern(WriteConcern::from(Acknowledgment::Nodes(1)));
            }
            if let Some(session) = &mut session {
                action = action.session(started(documents.client(), session).await?);
            }
            action.await
        };
        match self.attempt(budget, Effect::Write, call).await.map_err(Failure::Known)? {
            Ok(None) => Ok(None),
            Ok(Some(Marked { answer: Some(answer) })) => {
                self.ensure_indexes();
                Ok(Some(answer))
            }
            Ok(Some(Marked { answer: None })) => Err(Failure::Known(unmarked())),
            Err(error) if failed_with(&error, LATE) => {
                self.read_server_clock(budget).await.map_err(Failure::Known)?;
                Err(Failure::Late)
            }
            Err(error) => match Box::pin(self.explained(&error, budget)).await {
                Some(explained) => Err(Failure::Known(explained)),
                None => Err(Failure::Driver(error)),
            },
        }
    }

    /// Finds one document, and decodes the answer that the projection computes. Returns `None` if
    /// no document matches.
    pub(crate) async fn find_one<T: DeserializeOwned + Send + Sync>(
        &self,
        filter: Document,
        projection: Document,
        budget: Budget,
    ) -> Result<Option<Marked<T>>> {
        let documents = self.collection.clone_with_type::<Marked<T>>();
        let find = async { documents.find_one(filter).projection(projection).max_time(budget.on_server()).await };
        self.run(budget, Effect::None, find).await
    }

    /// Finds all documents that match.
    pub(crate) async fn find_all<T: DeserializeOwned + Send + Sync>(
        &self,
        filter: Document,
        projection: Document,
        budget: Budget,
    ) -> Result<Vec<T>> {
        let documents = self.collection.clone_with_type::<T>();
        let find = async {
            let found = documents.find(filter).projection(projection).batch_size(FOUND_AT_ONCE);
            found.max_time(budget.on_server()).await?.try_collect().await
        };
        self.run(budget, Effect::None, find).await
    }

    /// Runs a write that the driver neither numbers nor retries. The inner error is a server's
    /// answer.
    pub(crate) async fn run_once(
        &self,
        command: Document,
        budget: Budget,
    ) -> Result<std::result::Result<Document, LockError>> {
        let effect = Effect::Write;
        let call = async { self.database.run_command(command).await };
        match self.attempt(budget, effect, call).await? {
            Ok(reply) => Ok(Ok(reply)),
            Err(error) if is_answer(&error) => Ok(Err(translate(&error, effect))),
            Err(error) => Err(unselected(self.database.client(), &error).unwrap_or_else(|| translate(&error, effect))),
        }
    }

    /// Updates many documents by one command, and returns how many matched. The command is built
    /// here, because the driver's `update_many` has no `maxTimeMS` (R2). Neither is retried.
    pub(crate) async fn update_many(&self, update: UpdateMany, budget: Budget) -> Result<u64> {
        self.update_all(vec![update], budget).await
    }

    /// The same by several statements of one command, of which each is tried.
    pub(crate) async fn update_all(&self, updates: Vec<UpdateMany>, budget: Budget) -> Result<u64> {
        let are_several = updates.len() > 1;
        let statements: Vec<Document> = updates.into_iter().map(UpdateMany::into_statement).collect();
        let mut command = doc! {
            "update": self.collection.name(),
            "updates": statements,
            "writeConcern": { "w": "majority" },
            "maxTimeMS": budget.max_time_ms(),
        };
        if are_several {
            command.insert("ordered", false);
        }
        let call = async { self.database.run_command(command).await };
        let reply = self.run(budget, Effect::Write, call).await?;
        let reply = WriteReply::read(reply)?;
        // A write error comes first: not even the primary has done everything.
        match reply.write_errors.first().or(reply.write_concern_error.as_ref()) {
            Some(refusal) => Err(refused(refusal, reply.write_errors.is_empty())),
            None => Ok(reply.found()? as u64),
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
