//! The one task per runtime that renews leases, refreshes tickets, and notices missed deadlines.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::Poll;
use std::time::Duration;

use distlock_api::{ErrorKind, LockError, Phase, Result, contained};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::runtime::{self, Handle};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until, timeout};

use crate::log::log;
use crate::run::call::guarded;
use crate::run::clock;
use crate::run::core::Engine;
use crate::run::transit::InTransit;
use crate::state::batch::{self, Room};
use crate::state::claim::RefreshAnswer;
use crate::state::lease::Renewed;
use crate::store::{Lane, Lanes, LeaseStore, Permit, PermitReply, Standing, StoreCapabilities};

type Item = batch::Item<InTransit>;
type Batch = batch::Batch<InTransit>;

/// Calls are repeated only while fewer than this many are under way.
const CALLS_AGAIN: usize = 256;

struct BatchAnswer {
    sent: Instant,
    items: Vec<Item>,
    standings: Vec<Result<Standing>>,
}

type RenewalCall = Pin<Box<dyn Future<Output = BatchAnswer> + Send>>;

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

    fn record_answers(self: &Arc<Self>, BatchAnswer { sent, items, standings }: BatchAnswer) {
        if standings.iter().any(Result::is_ok) {
            self.ledger().call_answered(Instant::now());
        }
        let missing = || {
            let message = "the store answered fewer renewals than the batch has: a backend must answer each of them";
            Err(LockError::new(ErrorKind::Corrupt, message))
        };
        let standings = standings.into_iter().chain(std::iter::repeat_with(missing));
        for (item, standing) in items.iter().zip(standings) {
            contained(|| self.record_answer(sent, item, standing));
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
                log!(warn, lock.key = %lease.key(), lock.token = %lease.token(), %error, "renewal failed");
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
    let mut calls = FuturesUnordered::<RenewalCall>::new();
    let mut rooms = Rooms::default();
    let Some(gone) = guard.engine.upgrade().map(|engine| engine.gone.clone()) else { return };
    loop {
        let slept = clock::noticed();
        let next = {
            let Some(engine) = guard.engine.upgrade() else { return };
            let (batch, lanes) = bounds(engine.store.as_ref());
            let again = CALLS_AGAIN.saturating_sub(calls.len());
            let now = clock::now();
            let due = engine.ledger().take_due(guard.home, &now, batch, again, |lane| rooms.room(lanes.as_ref(), lane));
            rooms.wait_for(lanes.as_ref(), &due.full);
            for lease in due.over {
                contained(|| {
                    engine.check_loss(&lease, &now);
                    lease.pass_turn();
                });
            }
            calls.extend(due.batches.into_iter().map(|batch| renew(&engine, batch)));
            let next = engine.ledger().plan(guard.home);
            // What has found no permit is due now, and is sent when there is one.
            if due.full.is_empty() { next } else { next.map(|next| next.max(now.instant() + LOOKS_WHILE_FULL)) }
        };
        // In a fixed order, so that a simulation repeats exactly. Each branch leads to the same
        // look at what is due, so the order does not matter otherwise.
        tokio::select! {
            biased;
            () = gone.cancelled() => return,
            () = rooms.some() => {}
            Some(answer) = calls.next() => {
                let Some(engine) = guard.engine.upgrade() else { return };
                engine.record_answers(answer);
            }
            // The machine has slept, and the timers with it.
            () = slept => {
                let Some(engine) = guard.engine.upgrade() else { return };
                engine.ledger().make_all_due(&clock::now());
            }
            () = wake.notified() => {}
            () = async { sleep_until(next.expect("guarded")).await }, if next.is_some() => {}
        }
    }
}

/// Returns how many renewals a call may carry, and the lanes. A store that panics here (C14) still
/// gets its renewals, within the defaults.
fn bounds(store: &dyn LeaseStore) -> (usize, Option<Lanes>) {
    let (mut capabilities, mut lanes) = (StoreCapabilities::default(), None);
    contained(|| capabilities = store.capabilities());
    contained(|| lanes = store.lanes());
    (capabilities.renew_batch.get(), lanes)
}

/// How often the keeper looks for leases past their deadline while the store has no room.
const LOOKS_WHILE_FULL: Duration = Duration::from_millis(200);

/// The keeper's permits for calls to the store, and its positions in the lines.
#[derive(Default)]
struct Rooms {
    positions: Vec<(Lane, PendingPermit)>,
    permits: Vec<(Lane, Permit)>,
}

type PendingPermit = Pin<Box<dyn Future<Output = Option<Permit>> + Send>>;

impl Rooms {
    /// Returns the permission for one call.
    fn room(&mut self, lanes: Option<&Lanes>, lane: Lane) -> Option<Room> {
        let Some(lanes) = lanes else { return Some(Room::Unbounded) };
        let came = self.permits.iter().position(|(of, _)| *of == lane);
        let permit = match came {
            Some(at) => self.permits.swap_remove(at).1,
            None => lanes.try_enter(lane)?,
        };
        Some(Room::Permitted(permit))
    }

    /// Joins the lines of these lanes, and leaves all others.
    fn wait_for(&mut self, lanes: Option<&Lanes>, full: &[Lane]) {
        self.permits.clear();
        self.positions.retain(|(lane, _)| full.contains(lane));
        for lane in full {
            if self.positions.iter().any(|(of, _)| of == lane) {
                continue;
            }
            match lanes.map(|lanes| lanes.enter(*lane, None, false)) {
                Some(PermitReply::Later(in_line)) => self.positions.push((*lane, Box::pin(in_line.permit()))),
                Some(PermitReply::Now(permit)) => {
                    self.positions.push((*lane, Box::pin(std::future::ready(Some(permit)))));
                }
                Some(PermitReply::Refused(_)) | None => {}
            }
        }
    }

    /// Waits until a permit comes; for ever if it is in no line.
    async fn some(&mut self) {
        let came = std::future::poll_fn(|context| {
            let came = self.positions.iter_mut().enumerate().find_map(|(at, (_, position))| {
                match position.as_mut().poll(context) {
                    Poll::Ready(permit) => Some((at, permit)),
                    Poll::Pending => None,
                }
            });
            came.map_or(Poll::Pending, Poll::Ready)
        });
        let (at, permit) = came.await;
        let (lane, _) = self.positions.swap_remove(at);
        self.permits.extend(permit.map(|permit| (lane, permit)));
    }
}

/// Makes one call. Its answer counts however late it comes: a lease that is still held then is
/// extended from when the call was sent.
fn renew(engine: &Engine, Batch { mut items, again, room }: Batch) -> RenewalCall {
    let (store, bound) = (engine.store.clone(), engine.options.request_timeout);
    Box::pin(async move {
        let sent = clock::sending();
        // C12: leaves out leases that were released since the batch was planned. Also those in
        // transit to the next guard: a lease that never arrives must not stay closed for ever.
        items.retain(|item| !matches!(item, Item::Lease(lease) if !lease.is_kept()));
        let now = clock::now();
        let patience = items.iter().map(|item| item.patience(&now)).min().unwrap_or(bound);
        // A call that has failed before makes room for others soon. Not at once, because cutting a
        // call off costs a connection.
        let bound = if again { bound.min(patience.max(bound / 4)) } else { bound };
        let renewals: Vec<_> = items.iter().map(|item| item.renewal(bound)).collect();
        let call =
            guarded(async { if renewals.is_empty() { Ok(Vec::new()) } else { Ok(store.renew_many(&renewals).await) } });
        let failed = |error: LockError| items.iter().map(|_| Err(error.clone())).collect();
        let standings = match timeout(bound + bound / 2, call).await {
            Ok(answer) => answer.unwrap_or_else(failed),
            Err(_) => failed(LockError::timeout(Phase::Request, "no answer to a renewal")),
        };
        drop(room);
        BatchAnswer { sent, items, standings }
    })
}
