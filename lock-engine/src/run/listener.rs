//! The event stream of the store: its events wake waiters and report losses at once. They are only
//! hints (rule R20 of distlock-mongo's PROTOCOL).

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use distlock_api::style::contained;
use distlock_api::{ErrorKind, LockError, Result};
use futures_util::StreamExt;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::log::log;
use crate::run::call::guarded;
use crate::run::clock;
use crate::run::core::{Engine, Listening};
use crate::state::backoff;
use crate::state::claim::PushedGrant;
use crate::store::{EventStream, LeaseStore, StoreEvent, Watch};

/// How old a lease is when the stream is opened for it. A stream costs the server something with
/// every change, and a process that only takes free locks for a moment needs no events.
const LISTENS_AFTER: Duration = Duration::from_secs(1);

/// The stream is closed after this long without leases and pending claims.
const CLOSES_AFTER: Duration = Duration::from_secs(5);
/// How often this is checked.
const CHECKS_EVERY: Duration = Duration::from_secs(1);

impl Engine {
    /// Opens the provider's one event stream because a caller waits, and reopens it if its runtime
    /// has ended.
    pub(crate) fn open_stream(self: &Arc<Self>) {
        if self.may_open_stream() {
            self.listen(&mut self.listening.lock().expect("no code in here panics"));
            self.reader_wake.notify_one();
        }
    }

    /// Opens the event stream for a lease, as soon as one is old enough.
    pub(crate) fn open_stream_soon(self: &Arc<Self>) {
        if !self.may_open_stream() {
            return;
        }
        let mut listening = self.listening.lock().expect("no code in here panics");
        let begins = match &*listening {
            Listening::NotYet => true,
            Listening::Soon(task) => task.is_finished(),
            Listening::Listens(_) => return self.listen(&mut listening),
            Listening::Never => false,
        };
        if begins {
            *listening = Listening::Soon(tokio::spawn(listen_soon(Arc::downgrade(self), self.gone.clone())));
        }
    }

    fn may_open_stream(&self) -> bool {
        self.outbox.store.extras().events.is_some() && !self.gone.is_cancelled()
    }

    fn listen(self: &Arc<Self>, listening: &mut Listening) {
        let needed = match listening {
            Listening::NotYet | Listening::Soon(_) => true,
            Listening::Listens(task) => task.is_finished(),
            Listening::Never => false,
        };
        if needed {
            let request = Watch::provider(self.id);
            let work =
                listen(StreamReader(Arc::downgrade(self)), self.outbox.store.clone(), request, self.gone.clone());
            *listening = Listening::Listens(tokio::spawn(work));
        }
    }

    /// Opens the stream if a lease is old enough. Otherwise returns when the oldest lease will be,
    /// if there is one.
    fn listen_if_old(self: &Arc<Self>) -> Option<Instant> {
        let mut listening = self.listening.lock().expect("no code in here panics");
        let oldest = self.ledger().oldest();
        match (&*listening, oldest) {
            (Listening::Soon(_), Some(since)) if since.elapsed() < LISTENS_AFTER => return Some(since + LISTENS_AFTER),
            (Listening::Soon(_), Some(_)) => self.listen(&mut listening),
            (Listening::Soon(_), None) => *listening = Listening::NotYet,
            _ => {}
        }
        None
    }

    /// Closes the stream if there is still no use for it; a later waiter opens it again. A claim is
    /// registered before its caller calls [`open_stream`](Self::open_stream), so no waiter is left
    /// without a stream.
    fn stop_listening(&self) -> bool {
        let mut listening = self.listening.lock().expect("no code in here panics");
        let stops = self.ledger().is_idle();
        if stops {
            self.stream_open.store(false, Ordering::Relaxed);
            *listening = Listening::NotYet;
        }
        stops
    }

    fn on_event(self: &Arc<Self>, event: StoreEvent) {
        match event {
            StoreEvent::Freed { key } => {
                // The record of a held lease was deleted, or changed by other means (R20).
                let now = clock::now();
                if let Some(holder) = self.local_queues.holder(&key) {
                    self.ledger().renew_soon(&holder, &now);
                }
                self.ledger().renew_shared_soon(&key, &now);
                self.local_queues.nudge(&key);
            }
            StoreEvent::Granted { id, grant, expires_at, .. } => {
                let wake = self.ledger().grant_pushed(&id, PushedGrant { grant, expires_at });
                wake.iter().for_each(|wake| contained(|| wake.notify_one()));
            }
            StoreEvent::Gone { key, id, token, loss } => {
                let (lease, wake) = self.ledger().loss_pushed(&id, token);
                wake.iter().for_each(|wake| contained(|| wake.notify_one()));
                if let Some(lease) = lease
                    && lease.lose(loss)
                {
                    self.record_loss(&lease, loss);
                }
                self.local_queues.nudge(&key);
            }
            StoreEvent::Gap => self.recheck_all(),
        }
    }

    /// Makes up for events that may have been missed: waiters make an attempt, and leases are
    /// renewed.
    fn recheck_all(self: &Arc<Self>) {
        self.wake_waiters();
        self.ledger().make_all_due(&clock::now());
    }

    fn wake_waiters(&self) {
        let wakes = self.ledger().mark_all_missed();
        wakes.iter().for_each(|wake| contained(|| wake.notify_one()));
    }
}

/// The task that reads the event stream. When it ends, even because its runtime shut down, waiters
/// on other runtimes fall back to polling and reopen the stream.
struct StreamReader(Weak<Engine>);

impl StreamReader {
    /// Drops the handle without effect: the stream was closed on purpose, and another task may have
    /// opened one.
    fn disarm(mut self) {
        self.0 = Weak::new();
    }

    fn stream_closed(&self) {
        if let Some(engine) = self.0.upgrade()
            && engine.stream_open.swap(false, Ordering::Relaxed)
        {
            engine.wake_waiters();
        }
    }
}

impl Drop for StreamReader {
    fn drop(&mut self) {
        self.stream_closed();
    }
}

/// Waits until a lease is old enough for a stream, or there is none.
async fn listen_soon(engine: Weak<Engine>, gone: CancellationToken) {
    let mut until = Instant::now() + LISTENS_AFTER;
    loop {
        tokio::select! {
            biased;
            () = gone.cancelled() => return,
            () = sleep_until(until) => {}
        }
        match engine.upgrade().and_then(|engine| engine.listen_if_old()) {
            Some(later) => until = later,
            None => return,
        }
    }
}

async fn subscribe(store: &dyn LeaseStore, request: &Watch) -> Result<EventStream> {
    match store.extras().events {
        Some(events) => events.subscribe(request).await,
        None => Err(LockError::new(ErrorKind::Unsupported, "the store has ceased to push events")),
    }
}

/// Reads events while the engine exists, and reopens the stream when it breaks.
async fn listen(reader: StreamReader, store: Arc<dyn LeaseStore>, request: Watch, gone: CancellationToken) {
    let engine = reader.0.clone();
    let mut failed = 0;
    loop {
        let opened = tokio::select! {
            biased;
            () = gone.cancelled() => return,
            opened = guarded(subscribe(&*store, &request)) => opened,
        };
        let Some(listening) = engine.upgrade() else { return };
        let broken = match opened {
            Ok(mut events) => {
                listening.stream_open.store(true, Ordering::Relaxed);
                // For the events that were missed while there was no stream.
                listening.recheck_all();
                drop(listening);
                tokio::select! {
                    biased;
                    () = gone.cancelled() => return,
                    error = follow(&engine, &mut events, &mut failed) => error,
                    () = unused(&engine) => return reader.disarm(),
                }
            }
            Err(error) if error.kind() == ErrorKind::Unsupported => {
                log!(debug, %error, "the store pushes no events; waiters poll");
                *listening.listening.lock().expect("no code in here panics") = Listening::Never;
                return;
            }
            Err(error) => Some(error),
        };
        reader.stream_closed();
        if let Some(error) = broken {
            log!(warn, %error, "the event stream broke; waiters poll until it is open again");
        }
        tokio::select! {
            biased;
            () = gone.cancelled() => return,
            () = sleep(backoff::after_error(failed, fastrand::f64())) => {}
        }
        failed += 1;
    }
}

/// Returns when the stream was not needed for [`CLOSES_AFTER`], and the engine has closed it.
async fn unused(engine: &Weak<Engine>) {
    let mut idle_since = None;
    loop {
        sleep(CHECKS_EVERY).await;
        let Some(engine) = engine.upgrade() else { return };
        if !engine.ledger().is_idle() {
            idle_since = None;
            continue;
        }
        let since: Instant = *idle_since.get_or_insert_with(Instant::now);
        if since.elapsed() >= CLOSES_AFTER && engine.stop_listening() {
            return;
        }
    }
}

/// Why a pause of the reader has ended.
#[derive(PartialEq, Eq)]
enum PauseEnd {
    EventsNeeded,
    /// No event was needed for [`CLOSES_AFTER`], but leases come and go, so that the stream stays
    /// open.
    TooLong,
}

/// Returns when events are needed. Until then none are requested: each request that is under way
/// costs the store something with every change.
async fn pause(engine: &Weak<Engine>) -> PauseEnd {
    let began = Instant::now();
    loop {
        let now = Instant::now();
        let Some(living) = engine.upgrade() else { return PauseEnd::EventsNeeded };
        let needed = living.ledger().events_needed(now, LISTENS_AFTER);
        if needed.is_some_and(|needed| needed <= now) {
            return PauseEnd::EventsNeeded;
        }
        if now >= began + CLOSES_AFTER {
            return PauseEnd::TooLong;
        }
        // A lease that is added later needs events after this time. A caller that begins to wait
        // notifies.
        let latest = now + LISTENS_AFTER;
        let (until, wake) = (needed.map_or(latest, |needed| needed.min(latest)), living.reader_wake.clone());
        drop(living);
        tokio::select! {
            biased;
            () = wake.notified() => {}
            () = sleep_until(until) => {}
        }
    }
}

/// Handles events until the stream ends, by itself or with an error.
async fn follow(engine: &Weak<Engine>, events: &mut EventStream, failed: &mut u32) -> Option<LockError> {
    // A stream that is never read falls behind, so after a pause that was too long there is none
    // until a waiter has one.
    let mut reads_on = false;
    loop {
        if !reads_on || engine.upgrade()?.ledger().a_waiter_pauses(Instant::now()) {
            reads_on = pause(engine).await == PauseEnd::TooLong;
        }
        let event = match guarded(async { events.next().await.transpose() }).await {
            Ok(event) => event?,
            Err(error) => return Some(error),
        };
        let engine = engine.upgrade()?;
        *failed = 0;
        contained(|| engine.on_event(event));
    }
}
