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
use crate::state::claim::Told;
use crate::state::lease::Renewed;
use crate::store::{Entered, Lane, Lanes, Permit, Standing};

type Item = batch::Item<InTransit>;
type Batch = batch::Batch<InTransit>;

/// Calls are repeated only while fewer than this many are under way.
const CALLS_AGAIN: usize = 256;

struct Answer {
    sent: Instant,
    items: Vec<Item>,
    standings: Vec<Result<Standing>>,
}

type RenewalCall = Pin<Box<dyn Future<Output = Answer> + Send>>;

/// Records the end of a keeper, also by the end of its runtime, so that the next lease there starts
/// another one.
struct Kept {
    engine: Weak<Engine>,
    home: runtime::Id,
}

impl Drop for Kept {
    fn drop(&mut self) {
        if let Some(engine) = self.engine.upgrade() {
            engine.ledger().unkept(self.home);
        }
    }
}

impl Engine {
    /// Starts the keeper of a runtime.
    pub(crate) fn keep(self: &Arc<Self>, home: &Handle, wake: Arc<Notify>) {
        let kept = Kept { engine: Arc::downgrade(self), home: home.id() };
        drop(home.spawn(keep(kept, wake)));
    }

    fn note(self: &Arc<Self>, Answer { sent, items, standings }: Answer) {
        if standings.iter().any(Result::is_ok) {
            self.ledger().answered(Instant::now());
        }
        let missing = || Err(LockError::new(ErrorKind::Corrupt, "no answer in the batch"));
        let standings = standings.into_iter().chain(std::iter::repeat_with(missing));
        for (item, standing) in items.iter().zip(standings) {
            contained(|| self.note_one(sent, item, standing));
        }
    }

    fn note_one(self: &Arc<Self>, sent: Instant, item: &Item, standing: Result<Standing>) {
        match (item, standing) {
            (Item::Lease(lease), Ok(standing)) => match lease.renewed(sent, standing, clock::now) {
                Renewed::Extended => self.ledger().settled(lease, sent, &clock::now()),
                Renewed::Lost(loss) => self.record_loss(lease, loss),
                Renewed::TooLate => {}
            },
            // C13: an error is not a loss.
            (Item::Lease(lease), Err(error)) => {
                log!(warn, lock.key = %lease.key(), lock.token = %lease.token(), %error, "renewal failed");
                self.ledger().failed(lease, &clock::now());
            }
            (Item::Ticket(seat), Ok(standing)) => {
                let wake = self.ledger().told(seat, Told { sent, standing });
                wake.iter().for_each(|wake| wake.notify_one());
            }
            (Item::Ticket(seat), Err(error)) => {
                log!(debug, lock.key = %item.key(), %error, "refresh of a ticket failed");
                self.ledger().not_told(seat, Instant::now());
            }
        }
    }
}

/// Runs as long as the engine and its runtime. It owns nothing of the engine, so it does not keep a
/// provider alive.
async fn keep(kept: Kept, wake: Arc<Notify>) {
    let mut calls = FuturesUnordered::<RenewalCall>::new();
    let mut rooms = Rooms::default();
    let Some(gone) = kept.engine.upgrade().map(|engine| engine.gone.clone()) else { return };
    loop {
        let slept = clock::noticed();
        let next = {
            let Some(engine) = kept.engine.upgrade() else { return };
            let batch = engine.store.capabilities().renew_batch.get();
            let again = CALLS_AGAIN.saturating_sub(calls.len());
            let lanes = engine.store.lanes();
            let now = clock::now();
            let due = engine.ledger().take_due(kept.home, &now, batch, again, |lane| rooms.room(lanes.as_ref(), lane));
            rooms.wait_for(lanes.as_ref(), &due.full);
            for lease in due.over {
                contained(|| {
                    engine.look(&lease, &now);
                    lease.pass_turn();
                });
            }
            calls.extend(due.batches.into_iter().map(|batch| renew(&engine, batch)));
            let next = engine.ledger().plan(kept.home);
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
                let Some(engine) = kept.engine.upgrade() else { return };
                engine.note(answer);
            }
            // The machine has slept, and the timers with it.
            () = slept => {
                let Some(engine) = kept.engine.upgrade() else { return };
                engine.ledger().all_due(&clock::now());
            }
            () = wake.notified() => {}
            () = async { sleep_until(next.expect("guarded")).await }, if next.is_some() => {}
        }
    }
}

/// How often the keeper looks for leases past their deadline while the store has no room.
const LOOKS_WHILE_FULL: Duration = Duration::from_millis(200);

/// The keeper's permits for calls to the store, and its positions in the lines.
#[derive(Default)]
struct Rooms {
    places: Vec<(Lane, PendingPermit)>,
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
        self.places.retain(|(lane, _)| full.contains(lane));
        for lane in full {
            if self.places.iter().any(|(of, _)| of == lane) {
                continue;
            }
            match lanes.map(|lanes| lanes.enter(*lane, None, false)) {
                Some(Entered::Later(in_line)) => self.places.push((*lane, Box::pin(in_line.permit()))),
                Some(Entered::Now(permit)) => self.places.push((*lane, Box::pin(std::future::ready(Some(permit))))),
                Some(Entered::Refused(_)) | None => {}
            }
        }
    }

    /// Waits until a permit comes; for ever if it is in no line.
    async fn some(&mut self) {
        let came = std::future::poll_fn(|context| {
            let came =
                self.places.iter_mut().enumerate().find_map(|(at, (_, place))| match place.as_mut().poll(context) {
                    Poll::Ready(permit) => Some((at, permit)),
                    Poll::Pending => None,
                });
            came.map_or(Poll::Pending, Poll::Ready)
        });
        let (at, permit) = came.await;
        let (lane, _) = self.places.swap_remove(at);
        self.permits.extend(permit.map(|permit| (lane, permit)));
    }
}

/// Makes one call. Its answer counts however late it comes: a lease that is still held then is
/// extended from when the call was sent.
fn renew(engine: &Engine, Batch { mut items, again, room }: Batch) -> RenewalCall {
    let (store, bound) = (engine.store.clone(), engine.config.request_timeout);
    Box::pin(async move {
        let sent = clock::sending();
        // C12: leaves out leases that were released since the batch was planned. Also those in
        // transit to the next guard: a lease that never arrives must not stay closed for ever.
        items.retain(|item| !matches!(item, Item::Lease(lease) if !lease.is_in_hand()));
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
        Answer { sent, items, standings }
    })
}
