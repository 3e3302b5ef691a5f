//! C15: waiters are granted the lock in the order of the queue.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use distlock_api::{LockGuard, LockKey, Wait};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::bounded::{LIVENESS, POLLED, SOON, eventually, within};
use crate::check::checks;
use crate::child::Clock;
use crate::client::{Client, Waiter};
use crate::context::{Context, all_passed};
use crate::disturbed::Pushes;
use crate::failure::{Failure, Verdict, ensure, located_at_caller};
use crate::history::Expected;
use crate::leases::{LONG, renewed};

checks! {
    C15 order_of_arrival Smoke [Fair, Admin]
        "Waiters of different clients are granted the lock in the order in which they arrived. A \
         failure means that a waiter can be overtaken, and can starve.";
    C15 order_without_pushes [Fair, Admin, Faults]
        "Waiters to which no events can be pushed are granted the lock in the order in which they \
         arrived. A failure means that the order depends on pushed events.";
    C15 order_across_a_break [Fair, Admin, Faults]
        "Waiters whose event streams break while they wait are granted the lock in the order in \
         which they arrived. A failure means that the order depends on pushed events.";
    C15 leaving_keeps_the_order [Fair, Admin]
        "A waiter that gives up leaves the queue, and the others keep their order. A failure means \
         that a ticket stays behind, or that others lose theirs.";
    C15 attempts_do_not_barge Smoke [Fair, Admin]
        "Single attempts get nothing while others wait, however often the lock is handed over. A \
         failure means that a newcomer can overtake the queue.";
    C15 even_turns [Fair, SeparateClients]
        "A client that waits for the lock among others that compete for it without a pause waits \
         for about one turn of each of them. A failure means that one of them can starve.";
    C15 cut_off_waiter [Fair, Admin, Faults, SeparateClients]
        "A waiter that is cut off from the store delays those behind it by a moment, not by a ttl. \
         A failure means that a dead head of the queue blocks it.";
    C15 dead_waiter [Fair, Admin, Processes]
        "A killed waiter delays those behind it by a moment, not by a ttl. A failure means that a \
         dead head of the queue blocks it.";
    C15 dead_waiter_without_pushes [Fair, Admin, Processes, Faults]
        "A killed waiter delays those behind it by a moment, not by a ttl, even if no events can \
         be pushed to them. A failure means that a dead head of the queue blocks it.";
}

/// Waits until `waiting` clients have a ticket in the store's queue. Callers of a single provider
/// are counted by its accounting.
#[track_caller]
pub(super) fn until_queued(
    cx: &Context,
    client: &Client,
    key: &LockKey,
    waiting: u32,
) -> impl Future<Output = Verdict> {
    located_at_caller(async move {
        if cx.profile().is_one_provider() {
            return client.until_waiting(u64::from(waiting)).await;
        }
        let admin = cx.admin(client)?;
        let what = format!("{waiting} waiters in the queue");
        eventually(SOON, &what, async || Ok(admin.inspect(key).await?.and_then(|info| info.waiting) == Some(waiting)))
            .await
    })
}

/// Makes the clients wait for the key, one after the other.
#[track_caller]
fn queue_up(cx: &Context, clients: &[Client], key: &LockKey) -> impl Future<Output = Result<Vec<Waiter>, Failure>> {
    located_at_caller(async move {
        let mut waiters = Vec::new();
        for (client, place) in clients.iter().zip(1..) {
            waiters.push(client.spawn_take(key, renewed(LONG)));
            until_queued(cx, client, key, place).await?;
            cx.recorder().queued(client.number(), key);
        }
        Ok(waiters)
    })
}

/// Releases the lock repeatedly: it must go to each of the waiters in turn.
#[track_caller]
fn ensure_order(cx: &Context, held: LockGuard, waiters: Vec<Waiter>) -> impl Future<Output = Verdict> {
    located_at_caller(async move {
        let (mut held, mut waiters) = (held, waiters);
        let (key, grants) = (held.key().clone(), waiters.len() + 1);
        let mut place = 0;
        while !waiters.is_empty() {
            place += 1;
            let outcome = held.release().await?;
            ensure!(outcome.is_released(), "the release of a held lock returned {outcome:?}");
            let others = waiters.split_off(1);
            let next = waiters.pop().expect("there is one");
            // Until any waiter is granted the lock. If it is a wrong one, `next` may never be.
            while !next.is_finished() && !others.iter().any(Waiter::is_finished) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            if let Some(early) = others.iter().position(Waiter::is_finished) {
                // The verdict on the history shows the calls.
                cx.verdict(&[key], Expected::default())?;
                return Err(Failure::new(format!(
                    "the waiter {} places behind number {place} was granted the lock first",
                    early + 1
                )));
            }
            let (guard, _) = next.guard().await?;
            (held, waiters) = (guard, others);
        }
        drop(held);
        cx.verdict(&[key], Expected { grants, contended: grants - 1 })
    })
}

async fn order_of_arrival(cx: Context) -> Verdict {
    let [a, others @ ..] = cx.clients::<5>().await?;
    let key = cx.key();
    let held = a.take(&key, renewed(LONG)).await?;
    let waiters = queue_up(&cx, &others, &key).await?;
    ensure_order(&cx, held, waiters).await
}

async fn order_without_pushes(cx: Context) -> Verdict {
    let [a, others @ ..] = cx.clients::<4>().await?;
    let key = cx.key();
    for client in &others {
        client.disturbed()?.disturb_pushes(Pushes::Refused);
    }
    let held = a.take(&key, renewed(LONG)).await?;
    let waiters = queue_up(&cx, &others, &key).await?;
    ensure_order(&cx, held, waiters).await
}

async fn order_across_a_break(cx: Context) -> Verdict {
    let [a, others @ ..] = cx.clients::<4>().await?;
    let key = cx.key();
    let held = a.take(&key, renewed(LONG)).await?;
    let waiters = queue_up(&cx, &others, &key).await?;
    for client in &others {
        client.disturbed()?.disturb_pushes(Pushes::Broken);
    }
    ensure_order(&cx, held, waiters).await
}

/// Several times: a waiter that has lost its place may refresh its ticket, and queue up again, just
/// before the newcomer comes.
async fn leaving_keeps_the_order(cx: Context) -> Verdict {
    let [a, others @ .., newcomer] = cx.clients::<5>().await?;
    for _ in 0..4 {
        let key = cx.key();
        let held = a.take(&key, renewed(LONG)).await?;
        let mut waiters = queue_up(&cx, &others, &key).await?;
        drop(waiters.remove(1));
        until_queued(&cx, &a, &key, 2).await?;
        // Another one comes as soon as one has left: the rest has no time to queue up again if it
        // has lost its place.
        drop(waiters.remove(1));
        let (leaver, left) = (&others[2], u64::from(cx.profile().is_one_provider()));
        leaver.until_waiting(left).await?;
        leaver.until_cleaned_up().await?;
        waiters.push(newcomer.spawn_take(&key, renewed(LONG)));
        until_queued(&cx, &newcomer, &key, 2).await?;
        cx.recorder().queued(newcomer.number(), &key);
        ensure_order(&cx, held, waiters).await?;
    }
    Ok(())
}

/// There is one waiter at a time. If the release does not hand the lock to it, the attempt may take
/// it.
async fn attempts_do_not_barge(cx: Context) -> Verdict {
    let [a, b, c] = cx.clients().await?;
    let key = cx.key();
    let mut barged = 0;
    let mut held = a.take(&key, renewed(LONG)).await?;
    let rounds = cx.rounds(25);
    for round in 0..rounds {
        let next = if round % 2 == 0 { &b } else { &a };
        let waiter = next.spawn_take(&key, renewed(LONG));
        until_queued(&cx, next, &key, 1).await?;
        let (released, attempt) = tokio::join!(held.release(), c.attempt(&key, renewed(LONG)));
        ensure!(released?.is_released(), "the release of a held lock did not return `Released`");
        barged += u32::from(attempt?.is_some());
        held = waiter.guard().await?.0;
    }
    ensure!(barged == 0, "{barged} of {rounds} attempts overtook a waiter");
    drop(held);
    cx.verdict(&[key], Expected { grants: rounds + 1, contended: rounds })
}

/// The turns of clients that compete for one lock.
#[derive(Default)]
struct Turns {
    all: AtomicU32,
    /// For each wait of a client, how many turns of others it has lasted.
    waited: Mutex<[Vec<u32>; 4]>,
}

impl Turns {
    fn all(&self) -> u32 {
        self.all.load(Ordering::SeqCst)
    }

    /// Waits for the lock. Only what comes after the client is known to wait counts: a slow one
    /// arrives late in the queue, and its place there is all that is promised.
    #[track_caller]
    fn take(&self, n: usize, client: &Client, key: &LockKey) -> impl Future<Output = Result<LockGuard, Failure>> {
        located_at_caller(async move {
            let waiter = client.spawn_take(key, renewed(LONG));
            while !waiter.is_finished() && client.accounting().waiting == 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            let (before, waits) = (self.all(), !waiter.is_finished());
            let (guard, _) = waiter.guard().await?;
            let others = self.all.fetch_add(1, Ordering::SeqCst) - before;
            if waits {
                self.waited.lock().expect("not poisoned")[n].push(others);
            }
            Ok(guard)
        })
    }
}

/// Each client has one waiter at a time, so that none of them can have two turns while another one
/// waits. A client that has missed its claim window waits longer, so the average counts.
async fn even_turns(cx: Context) -> Verdict {
    let all = u32::try_from(cx.rounds(40)).unwrap_or(u32::MAX);
    let clients = cx.clients::<4>().await?;
    let others = clients.len() - 1;
    let key = cx.key();
    let turns = Arc::<Turns>::default();
    let ends = Instant::now() + LIVENESS;
    let mut tasks = JoinSet::new();
    for (n, client) in clients.into_iter().enumerate() {
        let (key, turns) = (key.clone(), turns.clone());
        tasks.spawn(async move {
            while turns.all() < all && Instant::now() < ends {
                let guard = turns.take(n, &client, &key).await?;
                tokio::time::sleep(Duration::from_millis(5)).await;
                let outcome = guard.release().await?;
                ensure!(outcome.is_released(), "the release of a held lock returned {outcome:?}");
            }
            Ok(())
        });
    }
    all_passed(tasks).await?;
    ensure!(turns.all() >= all, "too few turns within {LIVENESS:?} to judge by: {}", turns.all());
    let waited = turns.waited.lock().expect("not poisoned").clone();
    for of_one in &waited {
        let (waits, turns) = (of_one.len(), of_one.iter().sum::<u32>() as usize);
        ensure!(
            turns * 2 <= waits * others * 3,
            "the turns are uneven: a client waited {waits} times, for {turns} turns of {others} others; all: {waited:?}"
        );
    }
    let all = cx.rounds(40);
    cx.verdict(&[key], Expected { grants: all, contended: all / 2 })
}

async fn cut_off_waiter(cx: Context) -> Verdict {
    let [a, b, c] = cx.clients().await?;
    let key = cx.key();
    let held = a.take(&key, renewed(LONG)).await?;
    let _silent = b.spawn_take(&key, renewed(LONG));
    until_queued(&cx, &a, &key, 1).await?;
    b.disturbed()?.cut_off().await?;
    let next = c.spawn_take(&key, renewed(LONG).with_wait(Wait::Forever));
    until_queued(&cx, &a, &key, 2).await?;
    let outcome = held.release().await?;
    let released = Instant::now();
    ensure!(outcome.is_released(), "the release of a held lock returned {outcome:?}");
    let next = within(POLLED, "the waiter behind one that was cut off to get the lock", next.guard()).await??;
    let after = next.1.saturating_duration_since(released);
    ensure!(after < POLLED, "a waiter that was cut off kept the lock from the next one for {after:?}");
    b.disturbed()?.end_faults();
    Ok(())
}

async fn dead_waiter(cx: Context) -> Verdict {
    let [a, b] = cx.clients().await?;
    behind_a_dead_waiter(cx, a, b).await
}

async fn dead_waiter_without_pushes(cx: Context) -> Verdict {
    let [a, b] = cx.clients().await?;
    b.disturbed()?.disturb_pushes(Pushes::Refused);
    behind_a_dead_waiter(cx, a, b).await
}

/// How long the last requests of a killed process may take to be carried out. Nothing reports their
/// end.
const ARRIVAL: Duration = Duration::from_secs(1);

#[track_caller]
fn behind_a_dead_waiter(cx: Context, a: Client, b: Client) -> impl Future<Output = Verdict> {
    located_at_caller(async move {
        let key = cx.key();
        let held = a.take(&key, renewed(LONG)).await?;
        let mut child = cx.child(Clock::True).await?;
        let in_line = async {
            until_queued(&cx, &a, &key, 1).await?;
            Ok::<_, Failure>(())
        };
        tokio::select! {
            answer = child.acquire(&key, LONG, true, LIVENESS) => {
                return Err(Failure::new(format!("a child process that waits for a held lock got {answer:?}")));
            }
            queued = in_line => queued?,
        }
        child.kill().await?;
        let next = b.spawn_take(&key, renewed(LONG).with_wait(Wait::Forever));
        until_queued(&cx, &b, &key, 2).await?;
        // An attempt of the dead waiter that arrived after the release would be granted. Its death
        // would then cost a ttl, as a holder's does.
        tokio::time::sleep(ARRIVAL).await;
        let outcome = held.release().await?;
        let released = Instant::now();
        ensure!(outcome.is_released(), "the release of a held lock returned {outcome:?}");
        let (_guard, at) = next.guard().await?;
        let after = at.saturating_duration_since(released);
        ensure!(after < POLLED, "a killed waiter kept the lock from the next one for {after:?}");
        Ok(())
    })
}
