//! One subscriber of a change stream: a collection, a provider, and a bounded buffer of events.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use distlock_api::Result;
use distlock_engine::store::{EventStream, StoreEvent};
use futures_util::Stream;
use tokio::sync::Notify;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::mpsc::{self, Receiver, Sender};

use crate::lease::{EventDecoder, ReportedChange, Subject};

/// How many events are buffered for a subscriber. If there are more, it gets a gap instead.
const BUFFER: usize = 4096;

/// The stream's side of a subscriber.
#[derive(Debug)]
pub(super) struct Subscriber {
    pub(super) subject: Subject,
    decoder: EventDecoder,
    /// The request timeout of its store.
    pub(super) limit: Duration,
    events: Sender<Result<StoreEvent>>,
    /// Whether events did not fit into the buffer.
    missed: bool,
    /// Whether the reader waits for the next event.
    asks: Arc<AtomicBool>,
}

/// The events of a subscriber, before its stream is open.
pub(super) struct Subscription {
    events: Receiver<Result<StoreEvent>>,
    asks: Arc<AtomicBool>,
}

pub(super) fn subscriber(subject: Subject, limit: Duration) -> (Subscriber, Subscription) {
    let (events, receiver) = mpsc::channel(BUFFER);
    let decoder = subject.decoder();
    let asks = Arc::new(AtomicBool::new(false));
    let subscription = Subscription { events: receiver, asks: Arc::clone(&asks) };
    (Subscriber { subject, decoder, limit, events, missed: false, asks }, subscription)
}

impl Subscriber {
    pub(super) fn has_left(&self) -> bool {
        self.events.is_closed()
    }

    /// Returns whether the reader has read everything and waits for more.
    pub(super) fn asks(&self) -> bool {
        self.asks.load(Ordering::Acquire)
    }

    /// Reads a change, and returns whether others can follow.
    pub(super) fn receive(&mut self, change: &ReportedChange) -> bool {
        for event in self.decoder.read(change) {
            self.send(Ok(event));
        }
        !change.ends()
    }

    pub(super) fn send(&mut self, event: Result<StoreEvent>) {
        self.report_missed();
        if self.missed {
            return;
        }
        self.missed = !self.try_send(event);
    }

    /// Puts an event into the buffer, and returns whether it fits. The reader asks again when it
    /// has read it.
    fn try_send(&self, event: Result<StoreEvent>) -> bool {
        // Cleared before the event is sent, because the reader may set it again once it has it.
        self.asks.store(false, Ordering::Release);
        !matches!(self.events.try_send(event), Err(TrySendError::Full(_)))
    }

    /// Reports that events did not fit into the buffer, as soon as there is room.
    pub(super) fn report_missed(&mut self) {
        self.missed = self.missed && !self.try_send(Ok(StoreEvent::Gap));
    }
}

impl Subscription {
    /// Returns the events of an open stream, which is notified when the reader waits for the next
    /// one, and when it leaves.
    pub(super) fn stream(self, signals: Signals) -> EventStream {
        Box::pin(Events { subscription: self, signals })
    }
}

/// The events of an open stream. The fields are dropped in this order: the stream is notified when
/// the buffer is closed.
struct Events {
    subscription: Subscription,
    signals: Signals,
}

impl Stream for Events {
    type Item = Result<StoreEvent>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let event = self.subscription.events.poll_recv(context);
        if event.is_pending() && !self.subscription.asks.swap(true, Ordering::AcqRel) {
            self.signals.0.notify_one();
        }
        event
    }
}

/// Notifies the stream when its subscriber leaves, or waits for events.
#[derive(Debug)]
pub(super) struct Signals(pub(super) Arc<Notify>);

impl Drop for Signals {
    fn drop(&mut self) {
        self.0.notify_one();
    }
}
