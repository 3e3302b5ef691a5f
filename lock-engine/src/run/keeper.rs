//! The one task per runtime that renews leases, refreshes tickets, and notices missed deadlines.

use std::any::Any;
use std::sync::{Arc, Weak};
use std::time::Duration;

use distlock_api::style::contained;
use distlock_api::{ErrorKind, LockError, Phase, Result};
use futures_util::future::join_all;
use tokio::runtime::{self, Handle};
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use crate::log::log;
use crate::run::call::guarded;
use crate::run::clock;
use crate::run::core::Engine;
use crate::run::transit::{InTransit, Lease};
use crate::state::batch;
use crate::state::claim::RefreshAnswer;
use crate::state::lease::Renewed;
use crate::store::answer_timeout::{ON_TIME, answered_within};
use crate::store::{Entered, Entry, Home, InLine, Job, Lane, Lanes, LeaseStore, Permit, Renewal, Standing};

type Item = batch::Item<InTransit>;
type Batch = batch::Batch<InTransit>;

/// Calls are repeated only while fewer than this many are under way.
const CALLS_AGAIN: usize = 256;

/// Records the end of a keeper, also by the end of its runtime, so that the next lease there starts
/// another one.
struct KeeperGuard {
    engine: Weak<Engine>,
    home: runtime::Id,
}

impl Drop for KeeperGuard {
    fn drop(&mut self) {
        if let Some(engine) = self.engine.upgrade() {
            engine.ledger().keeper_ended(self.home);
        }
    }
}

impl Engine {
    /// Starts the keeper of a runtime.
    pub(crate) fn start_keeper(self: &Arc<Self>, home: &Handle, wake: Arc<Notify>) {
        let guard = KeeperGuard { engine: Arc::downgrade(self), home: home.id() };
        drop(home.spawn(run_keeper(guard, wake)));
    }

    fn record_answers(self: &Arc<Self>, sent: Instant, items: &[Item], standings: Vec<Result<Standing>>) {
        if standings.iter().any(Result::is_ok) {
            self.ledger().call_answered(Instant::now());
        }
        let missing = || {
            let message = "the store answered fewer renewals than the batch has: a backend must answer each of them";
            Err(LockError::new(ErrorKind::Corrupt, message))
        };
        let standings = standings.into_iter().chain(std::iter::repeat_with(missing));
        let standings: Vec<_> = standings.take(items.len()).collect();
        self.warn_of_failures(items, &standings);
        for (item, standing) in items.iter().zip(standings) {
            contained(|| self.record_answer(sent, item, standing));
        }
    }

    /// Warns of the leases whose renewal has failed: once for each cause, however many they are.
    fn warn_of_failures(&self, items: &[Item], standings: &[Result<Standing>]) {
        let mut failures = Vec::<(&Lease, &LockError, u64)>::new();
        for (item, standing) in items.iter().zip(standings) {
            let (Item::Lease(lease), Err(error)) = (item, standing) else { continue };
            match failures.iter_mut().find(|(_, other, _)| other.kind() == error.kind()) {
                Some((_, _, count)) => *count += 1,
                None => failures.push((lease, error, 1)),
            }
        }
        for (lease, error, count) in failures {
            if let Some(count) = self.warns("renewal", error, count) {
                log!(warn, lock.key = %lease.key(), leases = count, %error, "renewals failed; the first is shown");
            }
        }
    }

    fn record_answer(self: &Arc<Self>, sent: Instant, item: &Item, standing: Result<Standing>) {
        match (item, standing) {
            (Item::Lease(lease), Ok(standing)) => match lease.renewed(sent, standing, clock::now) {
                Renewed::Extended => self.ledger().renewal_succeeded(lease, sent, &clock::now()),
                Renewed::Lost(loss) => self.record_loss(lease, loss),
                Renewed::TooLate => {}
            },
            // C13: an error is not a loss.
            (Item::Lease(lease), Err(error)) => {
                log!(debug, lock.key = %lease.key(), lock.token = %lease.token(), %error, "renewal failed");
                self.ledger().renewal_failed(lease, &clock::now());
            }
            (Item::Ticket(queued), Ok(standing)) => {
                let wake = self.ledger().refresh_answered(queued, RefreshAnswer { sent, standing });
                wake.iter().for_each(|wake| wake.notify_one());
            }
            (Item::Ticket(queued), Err(error)) => {
                log!(debug, lock.key = %item.key(), %error, "refresh of a ticket failed");
                self.ledger().refresh_failed(queued, Instant::now());
            }
        }
    }
}

/// Runs as long as the engine and its runtime. It owns nothing of the engine, so it does not keep a
/// provider alive.
async fn run_keeper(guard: KeeperGuard, wake: Arc<Notify>) {
    let Some(engine) = guard.engine.upgrade() else { return };
    let (gone, mut permits) = (engine.gone.clone(), Permits::new(engine.outbox.keeper_home(guard.home)));
    drop(engine);
    // Each call is a task, which records its answers. They end with the keeper.
    let mut calls = JoinSet::new();
    let (mut is_late, mut gave_time) = (false, false);
    loop {
        let slept = clock::noticed();
        let next = {
            let Some(engine) = guard.engine.upgrade() else { return };
            let (lanes, batch) = (engine.outbox.lanes(), renew_batch(engine.outbox.store.as_ref()));
            // If this process got no CPU, answers may be there that no task has read. Before calls
            // are repeated, they are given a moment.
            gave_time = is_late && !gave_time;
            let again = if gave_time { 0 } else { CALLS_AGAIN.saturating_sub(calls.len()) };
            let now = clock::now();
            let due = engine.ledger().take_due(guard.home, &now, batch, again, |lane| permits.take(&lanes, lane));
            permits.wait_for(&lanes, &due.full);
            for lease in due.over {
                contained(|| {
                    engine.check_loss(&lease, &now);
                    lease.pass_turn();
                });
            }
            for batch in due.batches {
                calls.spawn(renew(
                    guard.engine.clone(),
                    engine.outbox.store.clone(),
                    engine.options.request_timeout,
                    batch,
                ));
            }
            let next = engine.ledger().plan(guard.home);
            // What has found no permit is due now, and is sent when there is one.
            if due.full.is_empty() { next } else { next.map(|next| next.max(now.instant() + LOOKS_WHILE_FULL)) }
        };
        is_late = false;
        // In a fixed order, so that a simulation repeats exactly. Each branch leads to the same
        // look at what is due, so the order does not matter otherwise.
        tokio::select! {
            biased;
            () = gone.cancelled() => return,
            () = permits.came() => {}
            Some(_) = calls.join_next() => {}
            // The machine has slept, and the timers with it.
            () = slept => {
                let Some(engine) = guard.engine.upgrade() else { return };
                engine.ledger().make_all_due(&clock::now());
            }
            () = wake.notified() => {}
            late = async {
                let next = next.expect("guarded");
                sleep_until(next).await;
                next.elapsed()
            }, if next.is_some() => is_late = late > ON_TIME,
        }
    }
}

/// Returns how many renewals a call may carry. A store that panics here (C14) still gets its
/// renewals.
fn renew_batch(store: &dyn LeaseStore) -> usize {
    let mut most = 1;
    contained(|| most = store.extras().batch_renew.map_or(1, |batch| batch.renew_batch().get()));
    most
}

/// Sends renewals in one call, or one by one to a store that makes no batches, or panics here.
async fn send(store: &dyn LeaseStore, renewals: &[Renewal]) -> Vec<Result<Standing>> {
    let mut batch = None;
    contained(|| batch = store.extras().batch_renew);
    match batch {
        Some(batch) => batch.renew_many(renewals).await,
        None => join_all(renewals.iter().map(|renewal| store.renew(renewal))).await,
    }
}

/// How often the keeper looks for leases past their deadline while the store has no room.
const LOOKS_WHILE_FULL: Duration = Duration::from_millis(200);

/// The keeper's permits for calls to the store. It stands in line for a permit, and decides what to
/// send when it has one.
struct Permits {
    home: Home,
    in_line: Vec<(Lane, InLine)>,
    unused: Vec<(Lane, Permit)>,
    sender: mpsc::UnboundedSender<(Lane, Permit)>,
    receiver: mpsc::UnboundedReceiver<(Lane, Permit)>,
}

impl Permits {
    fn new(home: Home) -> Self {
        let (sender, receiver) = mpsc::unbounded_channel();
        Self { home, in_line: Vec::new(), unused: Vec::new(), sender, receiver }
    }

    /// Returns the permission for one call.
    fn take(&mut self, lanes: &Lanes, lane: Lane) -> Option<Permit> {
        let came = self.unused.iter().position(|(of, _)| *of == lane);
        came.map(|at| self.unused.swap_remove(at).1).or_else(|| lanes.try_permit(lane, self.home))
    }

    /// Stands in these lanes, and leaves all others.
    fn wait_for(&mut self, lanes: &Lanes, full: &[Lane]) {
        self.unused.clear();
        self.in_line.retain(|(lane, _)| full.contains(lane));
        for &lane in full {
            if self.in_line.iter().any(|(of, _)| *of == lane) {
                continue;
            }
            let entry = Entry { lane, home: self.home, most: 1, deadline: None, is_refusable: false, in_group: false };
            let sender = self.sender.clone();
            match lanes.enter(entry, || Job { request: Box::new((lane, sender)), send: send_permit }) {
                Entered::InLine(in_line) => self.in_line.push((lane, in_line)),
                Entered::Start(permit) => drop(self.sender.send((lane, permit))),
                Entered::Refused(_) => {}
            }
        }
    }

    /// Waits until a permit comes; for ever if it is in no line.
    async fn came(&mut self) {
        if let Some((lane, permit)) = self.receiver.recv().await {
            self.in_line.retain(|(of, _)| *of != lane);
            self.unused.push((lane, permit));
        }
    }
}

/// Gives a permit to the keeper that stands in line for it.
fn send_permit(mut requests: Vec<Box<dyn Any + Send>>, permit: Permit) {
    let request = requests.pop().and_then(|request| request.downcast::<(Lane, mpsc::UnboundedSender<_>)>().ok());
    if let Some((lane, sender)) = request.map(|request| *request) {
        // If the keeper has ended, the permit comes back.
        drop(sender.send((lane, permit)));
    }
}

/// Makes one call. Its answer counts however late it comes: a lease that is still held then is
/// extended from when the call was sent.
async fn renew(engine: Weak<Engine>, store: Arc<dyn LeaseStore>, bound: Duration, batch: Batch) {
    let Batch { mut items, again, permit } = batch;
    let sent = clock::sending();
    // C12: leaves out leases that were released since the batch was planned. Also those in transit
    // to the next guard: a lease that never arrives must not stay closed for ever.
    items.retain(|item| !matches!(item, Item::Lease(lease) if !lease.needs_renewal()));
    if items.is_empty() {
        return;
    }
    let now = clock::now();
    let retry_after = items.iter().map(|item| item.retry_after(&now)).min().unwrap_or(bound);
    // A call that has failed before makes room for others soon. Not at once, because cutting a call
    // off costs a connection.
    let bound = if again { bound.min(retry_after.max(bound / 4)) } else { bound };
    let renewals: Vec<_> = items.iter().map(|item| item.renewal(bound)).collect();
    let call = guarded(async { Ok(send(&*store, &renewals).await) });
    let failed = |error: LockError| items.iter().map(|_| Err(error.clone())).collect();
    let standings = match answered_within(bound + bound / 2, call).await {
        Some(answer) => answer.unwrap_or_else(failed),
        None => failed(LockError::timeout(Phase::Request, "no answer to a renewal")),
    };
    permit.answered();
    if let Some(engine) = engine.upgrade() {
        engine.record_answers(sent, &items, standings);
    }
}
