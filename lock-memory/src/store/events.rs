//! What the store pushes.

use std::future::ready;

use distlock_api::store::{EventStream, ProviderId, StoreEvent};
use distlock_api::{LockEvent, LockEvents};
use futures_util::{Stream, StreamExt, stream};
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::broadcast::{Receiver, Sender, channel as broadcast};

/// How many events a watcher may be behind before it hears of a gap.
const KEPT: usize = 256;

pub(crate) fn channel<T: Clone>() -> Sender<T> {
    broadcast(KEPT).0
}

/// What one provider hears: every key that may be free, its own losses, and gaps.
pub(super) fn stream(events: Receiver<StoreEvent>, provider: ProviderId) -> EventStream {
    let own = format!("{provider}-");
    let received = received(events, StoreEvent::Gap);
    let heard = received.filter(move |event| {
        ready(match event {
            StoreEvent::Gone { id, .. } | StoreEvent::Granted { id, .. } => id.as_str().starts_with(&own),
            _ => true,
        })
    });
    Box::pin(heard.map(Ok))
}

/// What an operator hears.
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
