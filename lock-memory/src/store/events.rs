//! The event streams of the store.

use std::future::ready;
use std::time::Duration;

use distlock_api::style::contained;
use distlock_api::{LockError, LockEvent, LockEvents, Result};
use distlock_engine::store::{EventStream, ProviderId, StoreEvent};
use futures_util::{FutureExt, Stream, StreamExt, stream};
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::broadcast::{Receiver, Sender, channel as broadcast};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

/// How many events a watcher may be behind before it gets a gap.
const KEPT: usize = 256;

pub(crate) fn channel<T: Clone>() -> Sender<T> {
    broadcast(KEPT).0
}

/// All streams of one kind of event.
pub(super) struct Streams<T> {
    events: Sender<SentEvent<T>>,
    /// Ends the streams, with an error if one is given.
    broken: watch::Sender<Option<LockError>>,
}

/// An event in transit.
#[derive(Clone)]
struct SentEvent<T> {
    event: T,
    /// When it arrives, if not at once.
    due: Option<Instant>,
}

impl<T: Clone + Send + 'static> Streams<T> {
    pub(super) fn new() -> Self {
        Self { events: channel(), broken: watch::channel(None).0 }
    }

    pub(super) fn send(&self, event: T, delay: Duration) {
        let due = Some(delay).filter(|delay| !delay.is_zero()).map(|delay| Instant::now() + delay);
        // A waker of a watcher that panics must not end the step half way. An error means that no
        // watcher is left.
        contained(|| drop(self.events.send(SentEvent { event, due })));
    }

    /// Ends the streams that are open, with an error if one is given. Events that have not been
    /// received by then are lost.
    pub(super) fn end(&mut self, error: Option<LockError>) {
        contained(|| drop(self.broken.send_replace(error)));
        *self = Self::new();
    }

    fn stream(&self, gap: T) -> impl Stream<Item = Result<T>> + Send + use<T> {
        let arrived = received(self.events.subscribe(), SentEvent { event: gap, due: None }).then(|push| async move {
            if let Some(due) = push.due {
                sleep_until(due).await;
            }
            Ok(push.event)
        });
        let error = stream::once(broken(self.broken.subscribe())).filter_map(|error| ready(error.map(Err)));
        arrived.take_until(broken(self.broken.subscribe()).map(drop)).chain(error)
    }
}

/// Waits for the end of a stream.
async fn broken(mut broken: watch::Receiver<Option<LockError>>) -> Option<LockError> {
    // Without a sender the stream ended without an error.
    broken.wait_for(Option::is_some).await.ok().and_then(|error| error.clone())
}

/// Returns the stream of one provider: every key that may be free, its own grants and losses, and
/// gaps.
pub(super) fn stream(events: &Streams<StoreEvent>, provider: ProviderId) -> EventStream {
    let own = format!("{provider}-");
    Box::pin(events.stream(StoreEvent::Gap).filter(move |event| {
        ready(match event {
            Ok(StoreEvent::Gone { id, .. } | StoreEvent::Granted { id, .. }) => id.as_str().starts_with(&own),
            _ => true,
        })
    }))
}

/// Returns the stream of an operator of the store.
pub(super) fn operator_stream(events: &Streams<LockEvent>) -> LockEvents {
    Box::pin(events.stream(LockEvent::Gap))
}

/// Returns the stream of an operator of a provider.
pub(crate) fn lock_events(events: Receiver<LockEvent>) -> LockEvents {
    Box::pin(received(events, LockEvent::Gap).map(Ok))
}

fn received<T: Clone + Send + 'static>(events: Receiver<T>, gap: T) -> impl Stream<Item = T> + Send {
    stream::unfold((events, gap), |(mut events, gap)| async {
        match events.recv().await {
            Ok(event) => Some((event, (events, gap))),
            Err(RecvError::Lagged(_)) => Some((gap.clone(), (events, gap))),
            Err(RecvError::Closed) => None,
        }
    })
}
