//! One subscriber of a change stream: a collection, a provider, and a bounded buffer of events.

use std::sync::Arc;
use std::time::Duration;

use distlock_api::Result;
use distlock_engine::store::{EventStream, StoreEvent};
use futures_util::stream;
use tokio::sync::Notify;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::mpsc::{self, Receiver, Sender};

use crate::lease::{Hints, ReportedChange, Subject};

/// How many events are buffered for a subscriber. If there are more, it gets a gap instead.
const BUFFER: usize = 4096;

/// The stream's side of a subscriber.
#[derive(Debug)]
pub(super) struct Subscriber {
    pub(super) subject: Subject,
    hints: Hints,
    /// The request timeout of its store.
    pub(super) limit: Duration,
    events: Sender<Result<StoreEvent>>,
    /// Whether events did not fit into the buffer.
    missed: bool,
}

/// The events of a subscriber, before its stream is open.
pub(super) struct Subscription(Receiver<Result<StoreEvent>>);

pub(super) fn subscriber(subject: Subject, limit: Duration) -> (Subscriber, Subscription) {
    let (events, receiver) = mpsc::channel(BUFFER);
    let hints = subject.reader();
    (Subscriber { subject, hints, limit, events, missed: false }, Subscription(receiver))
}

impl Subscriber {
    pub(super) fn has_left(&self) -> bool {
        self.events.is_closed()
    }

    /// Reads a change, and returns whether others can follow.
    pub(super) fn receive(&mut self, change: &ReportedChange) -> bool {
        for event in self.hints.read(change) {
            self.send(Ok(event));
        }
        !change.ends()
    }

    pub(super) fn send(&mut self, event: Result<StoreEvent>) {
        self.report_missed();
        if self.missed {
            return;
        }
        if let Err(TrySendError::Full(_)) = self.events.try_send(event) {
            self.missed = true;
        }
    }

    /// Reports that events did not fit into the buffer, as soon as there is room.
    pub(super) fn report_missed(&mut self) {
        if self.missed && self.events.try_send(Ok(StoreEvent::Gap)).is_ok() {
            self.missed = false;
        }
    }
}

impl Subscription {
    /// Returns the events of an open stream. Dropping them notifies the stream.
    pub(super) fn stream(self, leaving: Leaving) -> EventStream {
        // The fields are dropped in this order: the notified stream finds the buffer closed.
        let subscription = (self.0, leaving);
        Box::pin(stream::unfold(subscription, async |mut subscription| {
            let event = subscription.0.recv().await?;
            Some((event, subscription))
        }))
    }
}

/// Notifies the stream when its subscriber leaves.
#[derive(Debug)]
pub(super) struct Leaving(pub(super) Arc<Notify>);

impl Drop for Leaving {
    fn drop(&mut self) {
        self.0.notify_one();
    }
}
