//! Two features of a store together: [`crate::pairs`] has the matrix.

pub(super) mod batch;
pub(super) mod events;
pub(super) mod failing;
pub(super) mod hold;
pub(super) mod holders;
pub(super) mod lost_replies;
pub(super) mod purge;
pub(super) mod queue;

use std::time::Duration;

use distlock_api::Mode;
use distlock_engine::store::{Attempt, BusyReply, Claim, QueueStanding, Renewal, Reply, Standing, Ticket};
use tokio::time::{Instant, sleep};

use crate::bare::{BareStore, LEASE};
use crate::bounded::GRAIN;
use crate::context::Context;
use crate::failure::{Failure, Verdict, ensure, located_at_caller};

/// The claim window of a lease that was handed over.
const CLAIM: Duration = Duration::from_millis(20_250);
const TICKET: Ticket = Ticket::new(LEASE, CLAIM, 100);
/// A turn window that no check outlives: only the first waiter has its turn.
const NEVER: Duration = Duration::from_secs(600);
/// A ttl that the check outlives, and how long after its expiry a lease is examined.
const BRIEF: Duration = Duration::from_millis(100);
const AFTER: Duration = Duration::from_millis(50);

const fn permits(take: u32, of: u32) -> Mode {
    Mode::Permits { take, of }
}

/// The modes of the backend.
fn modes(cx: &Context) -> Vec<Mode> {
    let capabilities = cx.profile().capabilities();
    let shared = capabilities.shared.then_some(Mode::Shared);
    [Some(Mode::Exclusive), shared, capabilities.permits.then_some(permits(1, 3))].into_iter().flatten().collect()
}

/// Makes an attempt that leaves its turn only to the first waiter.
fn patient(store: &BareStore, claim: &Claim) -> Attempt {
    store.attempt(claim, LEASE).with_turn_window(NEVER)
}

/// Adds a ticket, with `ahead` before it.
#[track_caller]
fn queued(
    store: &BareStore,
    attempt: &Attempt,
    ticket: Ticket,
    ahead: u32,
) -> impl Future<Output = Result<BusyReply, Failure>> {
    located_at_caller(async move {
        let busy = store.busy(&attempt.clone().with_ticket(ticket), "another claim holds the key").await?;
        let standing = busy.standing;
        ensure!(
            standing == QueueStanding::Queued { ahead },
            "a waiter with {ahead} before it was answered {standing:?}"
        );
        Ok(busy)
    })
}

/// Fails unless the claim's ticket is in the queue, with `ahead` before it.
#[track_caller]
fn ensure_waits(store: &BareStore, claim: &Claim, ahead: u32, why: &str) -> impl Future<Output = Verdict> {
    located_at_caller(async move {
        match store.renew(&Renewal::ticket(claim.clone(), TICKET)).await? {
            Standing::Waiting(busy) if busy.standing == QueueStanding::Queued { ahead } => Ok(()),
            other => Err(Failure::new(format!(
                "{why}, and the refresh of a ticket with {ahead} before it was answered {other:?}"
            ))),
        }
    })
}

/// When something is due: `after` a moment that the store's clock has seen between `begun` and
/// `ended`.
#[derive(Clone, Copy)]
pub(super) struct Due {
    pub(super) begun: Instant,
    pub(super) ended: Instant,
    pub(super) after: Duration,
}

/// Repeats an attempt until it is granted. Fails if that is before it is due, or if an attempt is
/// refused that was sent when it was due: so a slow store is accused of neither. The time that a
/// refused attempt is told must be true to the same bounds.
#[track_caller]
pub(super) fn granted_when_due(
    store: &BareStore,
    attempt: &Attempt,
    due: Due,
    why: &str,
) -> impl Future<Output = Verdict> {
    located_at_caller(async move {
        let Due { begun, ended, after } = due;
        loop {
            let asked = Instant::now();
            let reply = store.ask(attempt).await??;
            let (least, most) = (asked.saturating_duration_since(ended), begun.elapsed());
            match reply {
                Reply::Granted(grant) => {
                    ensure!(
                        most + GRAIN >= after,
                        "{why} for {after:?}, and an attempt was granted {most:?} later: {grant:?}"
                    );
                    return Ok(());
                }
                Reply::Busy(busy) => {
                    ensure!(
                        least <= after + GRAIN,
                        "{why} for {after:?}, and an attempt that was sent {least:?} later was answered {busy:?}"
                    );
                    let left = busy.holder_remaining.unwrap_or(after.saturating_sub(least));
                    ensure!(
                        left <= after.saturating_sub(least) + GRAIN && left + most + GRAIN >= after,
                        "{why} for {after:?}, and an attempt between {least:?} and {most:?} later was told to wait {left:?}"
                    );
                }
                _ => {}
            }
            sleep(GRAIN * 5).await;
        }
    })
}
