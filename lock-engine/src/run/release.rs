//! Giving a lease back.

use std::sync::Arc;
use std::time::Duration;

use distlock_api::{LockError, Loss, Phase, ReleaseOutcome, Result};
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep, timeout_at};
use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::log::log;
use crate::run::call::Call;
use crate::run::clock;
use crate::run::core::Engine;
use crate::run::transit::Lease;
use crate::state::backoff;
use crate::state::ledger::End;
use crate::store::{Lane, Release};

/// A release that has begun and must come to an end: dropped in the foreground it goes on in the background of the runtime that acquired the
/// lease, dropped there on the one that is current, and dropped there – with all runtimes gone – the lease is left to its ttl and counted as abandoned (C11, C23).
pub(crate) struct ReleaseJob(Option<Job>);

struct Job {
    engine: Arc<Engine>,
    lease: Arc<Lease>,
    hold: Option<Duration>,
    /// The call in flight. It is finished, not repeated beside itself (R11).
    call: Option<Call<ReleaseOutcome>>,
    runs_on: RunsOn,
    /// Keeps `close` waiting.
    _open: TaskTrackerToken,
}

#[derive(Clone, Copy)]
enum RunsOn {
    Foreground,
    Home,
    Elsewhere,
}

impl ReleaseJob {
    /// The release of a lease that has been told to [`begin_release`](Lease::begin_release).
    pub(crate) fn new(engine: Arc<Engine>, lease: Arc<Lease>, hold: Option<Duration>) -> Self {
        let _open = engine.tasks.token();
        Self(Some(Job { engine, lease, hold, call: None, runs_on: RunsOn::Foreground, _open }))
    }

    /// The release of a lease that is taken from its guard because the provider is closed; none if it is being released anyway, or lost.
    pub(crate) fn of_closed(engine: &Arc<Engine>, lease: &Arc<Lease>) -> Option<Self> {
        if engine.look(lease).is_some() || !lease.lose(Loss::Closed) {
            return None;
        }
        engine.ledger().releasing(lease, &clock::now());
        Some(Self::new(engine.clone(), lease.clone(), lease.terms().hold_at_least))
    }

    /// In the foreground: for one request timeout, errors retried; then the caller hears that the outcome is unknown (C9), and it goes on in the background.
    pub(crate) async fn run(mut self) -> Result<ReleaseOutcome> {
        let until = Instant::now() + self.job().engine.config.request_timeout;
        match self.job().release_until(until).await {
            Ok(outcome) => {
                self.settle(outcome);
                Ok(outcome)
            }
            Err(error) => Err(error.outcome_unknown().with_key(self.job().lease.key().clone())),
        }
    }

    /// While shutting down: until then, errors retried; whether the store has answered.
    pub(crate) async fn run_until(mut self, until: Instant) -> bool {
        match self.job().release_until(until).await {
            Ok(outcome) => {
                self.settle(outcome);
                true
            }
            Err(error) => {
                log!(warn, lock.key = %self.job().lease.key(), %error, "lease not released while shutting down");
                self.end(End::Abandoned);
                false
            }
        }
    }

    pub(crate) fn run_in_background(mut self) {
        if let Some(job) = self.0.take() {
            job.go_on();
        }
    }

    /// Sends nothing: the lease ends by its ttl.
    pub(crate) fn abandon(mut self) {
        self.end(End::Abandoned);
    }

    fn job(&mut self) -> &mut Job {
        self.0.as_mut().expect("taken only at the end")
    }

    fn settle(&mut self, outcome: ReleaseOutcome) {
        self.end(match outcome {
            ReleaseOutcome::Released => End::Released,
            ReleaseOutcome::AlreadyLost => End::Lost,
        });
    }

    fn end(&mut self, end: End) {
        if let Some(job) = self.0.take() {
            job.end(end);
        }
    }

    /// Until the store has answered, the lease has expired by itself, or `close` has given up.
    async fn background(mut self) {
        let gone = self.job().engine.gone.clone();
        if gone.run_until_cancelled(self.ask_until_settled()).await.is_none() {
            self.end(End::Abandoned);
        }
    }

    async fn ask_until_settled(&mut self) {
        let (clean_ups, request_timeout) = {
            let engine = &self.job().engine;
            (engine.clean_ups.clone(), engine.config.request_timeout)
        };
        let expiry = self.job().lease.expiry(&clock::now());
        let mut failed = 0;
        loop {
            // The first attempt waits for nobody; what is made again is bounded in number, and by the expiry in time.
            let permit = if failed == 0 { None } else { timeout_at(expiry, clean_ups.acquire()).await.ok() };
            let answer = self.job().attempt(Instant::now() + request_timeout).await;
            drop(permit);
            let error = match answer {
                Ok(outcome) => return self.settle(outcome),
                Err(error) => error,
            };
            // Others are not kept waiting for a store that does not answer.
            self.job().lease.pass_turn();
            log!(debug, lock.key = %self.job().lease.key(), %error, "release not confirmed yet");
            if Instant::now() >= expiry {
                return self.end(End::Abandoned);
            }
            // A store that does not end its call is asked again under the same id.
            drop(self.job().call.take_if(|call| call.sent().is_some()));
            sleep(backoff::after_error(failed, fastrand::f64())).await;
            failed += 1;
        }
    }
}

impl Engine {
    /// Releases in the background what was not held when the provider was closed, and is held now.
    pub(crate) fn release_closed(self: &Arc<Self>, lease: &Arc<Lease>) {
        if let Some(job) = ReleaseJob::of_closed(self, lease) {
            job.run_in_background();
        }
    }
}

impl Drop for ReleaseJob {
    fn drop(&mut self) {
        if let Some(job) = self.0.take() {
            job.go_on();
        }
    }
}

impl Job {
    async fn release_until(&mut self, until: Instant) -> Result<ReleaseOutcome> {
        let mut failed = 0;
        loop {
            let error = match self.attempt(until).await {
                Ok(outcome) => return Ok(outcome),
                Err(error) => error,
            };
            let pause = backoff::after_error(failed, fastrand::f64());
            let again = error.is_retryable() || error.is_outcome_unknown();
            if !again || self.call.is_some() || Instant::now() + pause >= until {
                return Err(error);
            }
            sleep(pause).await;
            failed += 1;
        }
    }

    /// One call, or what is left of the one under way: in line for the store until the lease
    /// expires by itself, or in flight.
    async fn attempt(&mut self, until: Instant) -> Result<ReleaseOutcome> {
        let unanswered = || LockError::timeout(Phase::Release, "the store has not answered");
        if self.call.is_none() {
            let bound = self.engine.config.store_timeout();
            let mut release = Release::new(self.lease.claim().clone()).with_timeout(bound);
            release.hold_at_least = self.hold;
            let store = self.engine.store.clone();
            let (lanes, expiry) = (store.lanes(), self.lease.expiry(&clock::now()).max(until));
            let request = async move { store.release(&release).await };
            self.call = Some(Call::new(lanes, Lane::Release, Some(expiry), false, request)?);
        }
        let Some(call) = &mut self.call else { return Err(unanswered()) };
        match call.answer(Some(until), self.engine.config.request_timeout).await {
            Some(answer) => {
                self.call = None;
                answer
            }
            None => Err(unanswered()),
        }
    }

    /// Goes on in the next place.
    fn go_on(mut self) {
        let home = self.lease.home();
        let runtime = match self.runs_on {
            RunsOn::Foreground => Some((RunsOn::Home, home.clone())),
            RunsOn::Home => {
                let current = Handle::try_current().ok().filter(|current| current.id() != home.id());
                current.map(|current| (RunsOn::Elsewhere, current))
            }
            RunsOn::Elsewhere => None,
        };
        match runtime {
            Some((place, runtime)) => {
                self.runs_on = place;
                // A runtime that has ended drops the work at once: then it goes on from there.
                drop(runtime.spawn(ReleaseJob(Some(self)).background()));
            }
            None => self.end(End::Abandoned),
        }
    }

    fn end(self, end: End) {
        let Self { engine, lease, call, .. } = self;
        drop(call);
        if end == End::Abandoned {
            log!(warn, lock.key = %lease.key(), lock.token = %lease.token(), "lease left to its ttl");
        }
        lease.end();
        engine.ledger().end(&lease, end);
        // Whoever has got the turn meanwhile and asked; the next one will ask anyway.
        engine.turns.nudge(lease.key());
        lease.pass_turn();
    }
}
