//! Handlers that a test controls.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::{Semaphore, mpsc};

use super::soon;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    Entered(String),
    Finished(String),
    Dropped(String),
}

/// Handlers enter, wait until the test lets them go, and finish, or are dropped before. A lock must
/// prevent two of them inside at once.
#[derive(Clone)]
pub(crate) struct Stage {
    inside: Arc<AtomicUsize>,
    go: Arc<Semaphore>,
    events: mpsc::UnboundedSender<Event>,
}

pub(crate) struct Events(mpsc::UnboundedReceiver<Event>);

impl Events {
    pub(crate) async fn next(&mut self) -> Event {
        soon("an event", self.0.recv()).await.unwrap()
    }

    pub(crate) async fn entered(&mut self, name: &str) {
        assert_eq!(self.next().await, Event::Entered(name.into()));
    }

    pub(crate) async fn finished(&mut self, name: &str) {
        assert_eq!(self.next().await, Event::Finished(name.into()));
    }

    pub(crate) async fn dropped(&mut self, name: &str) {
        assert_eq!(self.next().await, Event::Dropped(name.into()));
    }

    pub(crate) fn nothing(&mut self) {
        assert!(self.0.try_recv().is_err(), "something happened that must not");
    }
}

impl Stage {
    pub(crate) fn new() -> (Self, Events) {
        let (events, receiver) = mpsc::unbounded_channel();
        let stage = Self { inside: Arc::default(), go: Arc::new(Semaphore::new(0)), events };
        (stage, Events(receiver))
    }

    /// Lets this many handlers finish, now or later.
    pub(crate) fn let_go(&self, handlers: usize) {
        self.go.add_permits(handlers);
    }

    pub(crate) fn inside(&self) -> usize {
        self.inside.load(Ordering::SeqCst)
    }

    pub(crate) fn enter(&self, name: impl Into<String>) -> Visit {
        let visit = Visit { stage: self.clone(), name: name.into(), finished: false };
        self.inside.fetch_add(1, Ordering::SeqCst);
        self.record(Event::Entered(visit.name.clone()));
        visit
    }

    pub(crate) async fn visit(&self, name: impl Into<String>) {
        let mut visit = self.enter(name);
        self.go.acquire().await.unwrap().forget();
        visit.finished = true;
    }

    fn record(&self, event: Event) {
        let _ = self.events.send(event);
    }
}

pub(crate) struct Visit {
    stage: Stage,
    name: String,
    pub(crate) finished: bool,
}

impl Drop for Visit {
    fn drop(&mut self) {
        self.stage.inside.fetch_sub(1, Ordering::SeqCst);
        let name = std::mem::take(&mut self.name);
        self.stage.record(if self.finished { Event::Finished(name) } else { Event::Dropped(name) });
    }
}
