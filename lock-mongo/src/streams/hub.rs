//! The task that reads one change stream and passes its changes to the subscribers.

use std::future::Future;
use std::ops::ControlFlow;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use distlock_api::LockError;
use distlock_engine::store::StoreEvent;
use mongodb::bson::Document;
use mongodb::change_stream::ChangeStream;
use mongodb::change_stream::event::ResumeToken;
use mongodb::options::ReadConcern;
use mongodb::{Collection, Database};
use tokio::sync::Notify;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::{sleep, timeout};

use super::registry::{Join, Slot};
use super::subscriber::{Signals, Subscriber};
use crate::error::{Effect, translate, unanswered, without_streams};
use crate::lease::{ReportedChange, Subject};

/// How long the server waits for changes before it answers that there are none.
const AWAIT: Duration = Duration::from_secs(5);
/// How long the task waits for further subscribers before it opens the stream again for a new one.
const GATHER: Duration = Duration::from_millis(20);

/// The database or the collection that is watched.
pub(super) enum Source {
    Database(Database),
    Collection(Collection<Document>),
}

/// The task of one open stream.
pub(super) struct Hub {
    source: Source,
    joins: UnboundedReceiver<Join>,
    signals: Arc<Notify>,
    subscribers: Vec<Subscriber>,
    /// The subjects that the open stream includes.
    included: Vec<Subject>,
    slot: Slot,
}

/// Why there is no stream, or no longer one.
enum Broken {
    Driver(mongodb::error::Error),
    Unanswered(Duration),
}

impl Broken {
    fn error(&self) -> LockError {
        match self {
            Self::Driver(error) => without_streams(error).unwrap_or_else(|| translate(error, Effect::None)),
            Self::Unanswered(limit) => unanswered(*limit, Effect::None),
        }
    }
}

/// Why the task has stopped reading the stream.
enum Pause {
    /// There are new subscribers.
    Joined(Vec<Join>),
    Ended,
    Broken(Broken),
}

impl Hub {
    pub(super) fn new(source: Source, joins: UnboundedReceiver<Join>, slot: Slot) -> Self {
        let (subscribers, included) = (Vec::new(), Vec::new());
        Self { source, joins, signals: Arc::default(), subscribers, included, slot }
    }

    /// Reads the stream until it has no subscriber left, or has ended for all.
    ///
    /// The driver resumes it after a failure of the network or of a member. It ends when the
    /// database is dropped, with the first error, and when the server has not answered for
    /// [`AWAIT`] and the time of a request.
    pub(super) async fn run(mut self, first: Join) {
        let mut joining = vec![first];
        let mut after = None;
        loop {
            let mut changes = match self.open(joining, after).await {
                Ok(changes) => changes,
                Err(broken) => return self.fail(&broken),
            };
            joining = match self.read(&mut changes).await {
                Pause::Joined(joining) => joining,
                Pause::Ended => return,
                Pause::Broken(broken) => return self.fail(&broken),
            };
            after = changes.resume_token();
        }
    }

    fn fail(&mut self, broken: &Broken) {
        self.subscribers.iter_mut().for_each(|subscriber| subscriber.send(Err(broken.error())));
    }

    fn limit(&self) -> Duration {
        self.subscribers.iter().map(|subscriber| subscriber.limit).max().unwrap_or_default()
    }

    /// Opens the stream for all subscribers, after the last change that has been read.
    async fn open(
        &mut self,
        joining: Vec<Join>,
        after: Option<ResumeToken>,
    ) -> Result<ChangeStream<ReportedChange>, Broken> {
        self.subscribers.retain(|subscriber| !subscriber.has_left());
        let subjects = self.subscribers.iter().chain(joining.iter().map(|join| &join.subscriber));
        let subjects: Vec<Subject> = subjects.map(|subscriber| subscriber.subject.clone()).collect();
        let limits = joining.iter().map(|join| join.subscriber.limit);
        let limit = limits.chain([self.limit()]).max().unwrap_or_default();
        let resumed = match after {
            Some(after) if !self.subscribers.is_empty() => self.attempt(&subjects, Some(after), limit).await.ok(),
            _ => None,
        };
        let opened = match resumed {
            Some(resumed) => Ok(resumed),
            None => {
                let opened = self.attempt(&subjects, None, limit).await;
                if opened.is_ok() {
                    self.subscribers.iter_mut().for_each(|subscriber| subscriber.send(Ok(StoreEvent::Gap)));
                }
                opened
            }
        };
        for Join { subscriber, reply } in joining {
            match &opened {
                Ok(_) => {
                    if reply.send(Ok(Signals(Arc::clone(&self.signals)))).is_ok() {
                        self.subscribers.push(subscriber);
                    }
                }
                Err(broken) => drop(reply.send(Err(broken.error()))),
            }
        }
        self.included = subjects;
        opened
    }

    async fn attempt(
        &self,
        subjects: &[Subject],
        after: Option<ResumeToken>,
        limit: Duration,
    ) -> Result<ChangeStream<ReportedChange>, Broken> {
        let pipeline = Subject::pipeline(subjects);
        let opening = async {
            let _connection = self.slot.pool().connections.acquire().await;
            let opened = match &self.source {
                Source::Database(database) => {
                    let watch = database.watch().pipeline(pipeline).resume_after(after);
                    watch.read_concern(ReadConcern::majority()).max_await_time(AWAIT).await?.with_type()
                }
                Source::Collection(records) => {
                    let watch = records.watch().pipeline(pipeline).resume_after(after);
                    watch.read_concern(ReadConcern::majority()).max_await_time(AWAIT).await?.with_type()
                }
            };
            Ok(opened)
        };
        match timeout(limit, opening).await {
            Ok(opened) => opened.map_err(Broken::Driver),
            Err(_) => Err(Broken::Unanswered(limit)),
        }
    }

    /// Passes changes on until there is a subscriber that the stream does not include.
    async fn read(&mut self, changes: &mut ChangeStream<ReportedChange>) -> Pause {
        loop {
            if let Err(pause) = self.asked().await {
                return pause;
            }
            let silence = AWAIT + self.limit();
            // One answer of the server at a time, because an empty one also shows that it is alive.
            let answer = match self.next(timeout(silence, changes.next_if_any())).await {
                Ok(answer) => answer,
                Err(pause) => return pause,
            };
            match answer {
                Ok(Ok(Some(change))) => self.route(&change),
                Ok(Ok(None)) if changes.is_alive() => {
                    self.subscribers.iter_mut().for_each(Subscriber::report_missed);
                }
                Ok(Ok(None)) => return Pause::Ended,
                Ok(Err(error)) => return Pause::Broken(Broken::Driver(error)),
                Err(_) => return Pause::Broken(Broken::Unanswered(silence)),
            }
        }
    }

    /// Waits for an answer of the server. The future is dropped early only at the end of the
    /// stream, because the driver may be resuming it.
    async fn next<T>(&mut self, answer: impl Future<Output = T>) -> Result<T, Pause> {
        let mut answer = pin!(answer);
        loop {
            let signal = tokio::select! {
                biased;
                signal = self.signal() => signal,
                answer = &mut answer => return Ok(answer),
            };
            self.follow(signal).await?;
        }
    }

    /// Returns when a subscriber waits for events. Until then none are requested: each write to any
    /// collection wakes a request that is under way.
    async fn asked(&mut self) -> Result<(), Pause> {
        while !self.subscribers.iter().any(Subscriber::asks) {
            let signal = self.signal().await;
            self.follow(signal).await?;
        }
        Ok(())
    }

    /// Returns the next subscriber, or `None` if one has left, or waits for events.
    async fn signal(&mut self) -> Option<Join> {
        tokio::select! {
            biased;
            Some(join) = self.joins.recv() => Some(join),
            () = self.signals.notified() => None,
        }
    }

    /// Serves a subscriber that joins, and ends the stream after the last one has left.
    async fn follow(&mut self, signal: Option<Join>) -> Result<(), Pause> {
        let joined = match signal {
            Some(join) => {
                let Some(join) = self.admit(join) else { return Ok(()) };
                sleep(GATHER).await;
                Some(join)
            }
            None => match self.close_if_unused() {
                ControlFlow::Continue(joined) => joined,
                ControlFlow::Break(()) => return Err(Pause::Ended),
            },
        };
        joined.map_or(Ok(()), |join| Err(Pause::Joined(self.gather(join))))
    }

    /// Passes a change to the subscribers of its collection. After a drop of the collection they
    /// are removed, which ends their streams.
    fn route(&mut self, change: &ReportedChange) {
        let before = self.subscribers.len();
        self.subscribers.retain_mut(|subscriber| !change.concerns(&subscriber.subject) || subscriber.receive(change));
        if self.subscribers.len() < before {
            // The loop checks whether any are left.
            self.signals.notify_one();
        }
    }

    /// Serves a new subscriber at once if the open stream includes it. Returns it otherwise.
    fn admit(&mut self, join: Join) -> Option<Join> {
        if !self.included.contains(&join.subscriber.subject) {
            return Some(join);
        }
        if join.reply.send(Ok(Signals(Arc::clone(&self.signals)))).is_ok() {
            self.subscribers.push(join.subscriber);
        }
        None
    }

    fn gather(&mut self, first: Join) -> Vec<Join> {
        let mut joining = vec![first];
        while let Ok(join) = self.joins.try_recv() {
            joining.push(join);
        }
        joining
    }

    /// Gives up the slot if all subscribers have left. Returns one that joins at that moment.
    fn close_if_unused(&mut self) -> ControlFlow<(), Option<Join>> {
        self.subscribers.retain(|subscriber| !subscriber.has_left());
        if !self.subscribers.is_empty() {
            return ControlFlow::Continue(None);
        }
        let joins = &mut self.joins;
        match self.slot.close(|| joins.try_recv().ok()) {
            Some(join) => ControlFlow::Continue(Some(join)),
            None => ControlFlow::Break(()),
        }
    }
}
