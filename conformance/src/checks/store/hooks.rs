//! A server that stalls, loses connections, crashes, or blocks one key.
//!
//! Faults that are injected above a store do not show what the store does when its server fails.
//! These checks show whether it keeps the timeout of a request, and whether its errors are true.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use distlock_api::{Disposition, LockError, LockKey};
use distlock_engine::store::{Claim, EventStream, Grant, Release, Renewal, Reply, Standing, StoreEvent, Ticket};
use futures_util::TryStreamExt;
use futures_util::future::try_join_all;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};

use super::races;
use crate::arena::{Hook, LATE};
use crate::bare::{BareStore, LEASE, last};
use crate::bounded::{GRAIN, LIVENESS, SOON, eventually, within};
use crate::check::checks;
use crate::context::Context;
use crate::failure::{Failure, FailureKind, Verdict, ensure, located_at_caller};

checks! {
    C18 store_ends_stalled_calls [Store, Arena, Stall]
        "While the server stalls, each request ends when its time is up, with a true error, and \
         the store works again afterwards. A failure means that calls hang, or that callers act on \
         a wrong outcome.";
    C14 store_isolates_a_blocked_key [Store, Arena, Block]
        "While requests for one key wait at the server, requests for other keys are answered. A \
         failure means that all requests share one line or one connection.";
    C1 store_grants_a_blocked_key_once [Store, Arena, Block]
        "Of the requests that wait at the server for a free key exactly one is granted it. A \
         failure means that the store decides before the wait, and writes after it.";
    C2 store_reads_the_clock_after_a_wait [Store, Arena, Block, Expiry]
        "A request that waited at the server for its key is judged by the clock after the wait. A \
         failure means that expired leases are renewed, or that grants promise more time than is \
         left.";
    C11 store_withdraws_for_good [Store, Arena, Block]
        "An attempt that was dropped while it waited at the server takes nothing once its \
         withdrawal was answered, and affects no other request. A failure means that a cancelled \
         acquisition can take the lease later.";
    C10 store_orders_the_requests_of_a_claim [Store, Arena, Delay]
        "If the store declares ordered claims, an attempt that arrives after a later request of \
         its claim was answered takes nothing. A failure means that a withdrawn attempt can take \
         the lease later.";
    C10 store_answers_truly_when_cut [Store, Arena, Cut]
        "Requests whose connections are cut return true outcomes, and the store connects again by \
         itself. A failure means that callers act on a wrong outcome, or that the store stays \
         disconnected.";
    C16 store_streams_survive_a_cut [Store, Arena, Fair, Push, Cut]
        "An event stream whose connection was cut reports that, or misses no event. A failure \
         means that a waiter listens to a dead stream.";
    C5 store_survives_a_crash [Store, Arena, Restart]
        "Leases, tokens and remembered releases survive a crash of the server. A failure means \
         that the store answers before its writes are durable.";
}

/// The timeout of a request that will not be answered.
pub(super) const TIMEOUT: Duration = Duration::from_millis(500);
/// When such a request must have ended while the server stalls or blocks a key: before the usual
/// timeouts of clients, the shortest of which are 5 s.
pub(super) const BOUND: Duration = Duration::from_millis(4500);
/// When it must have ended while connections are cut or the server restarts, which slows the whole
/// machine down. Whether the store keeps the timeout of a request is checked by a stall.
const SLOW_BOUND: Duration = SOON;
/// How long requests in flight may take to arrive after a fault.
pub(super) const CALM: Duration = Duration::from_millis(500);
/// How long connections stay cut.
const CUT: Duration = Duration::from_millis(400);
const WORKERS: usize = 4;
/// How many attempts are dropped, and after which time each.
const DROPPED: usize = 4;
const DROP_AFTER: Duration = Duration::from_millis(100);

/// What the outcome of a request reports about its claim, which must be true afterwards.
pub(super) enum Reported {
    /// The claim holds the lease, or it does not.
    Holds(bool),
    /// The outcome is unknown.
    Unknown,
}

/// Returns what an error reports about a claim; `held` is whether it held its lease before.
#[track_caller]
pub(super) fn reported(error: &LockError, held: bool) -> Result<Reported, Failure> {
    match error.disposition() {
        Disposition::OutcomeUnknown => Ok(Reported::Unknown),
        Disposition::Retryable => Ok(Reported::Holds(held)),
        _ => {
            let message = format!(
                "the server failed for a while, and the error {error:?} is permanent although a retry can succeed"
            );
            Err(Failure::new(message))
        }
    }
}

/// Returns whether the key is held, by an attempt of a new claim.
#[track_caller]
fn is_held(store: &BareStore, key: &LockKey) -> impl Future<Output = Result<bool, Failure>> {
    located_at_caller(async move {
        let claim = store.claim(key);
        match store.ask(&store.attempt(&claim, LEASE)).await?? {
            Reply::Granted(_) => {
                store.withdraw(&claim).await?;
                Ok(false)
            }
            _ => Ok(true),
        }
    })
}

#[track_caller]
pub(super) fn ensure_true(
    store: &BareStore,
    key: &LockKey,
    reported: &Reported,
    what: &str,
) -> impl Future<Output = Verdict> {
    located_at_caller(async move {
        let Reported::Holds(should) = *reported else { return Ok(()) };
        let holds = is_held(store, key).await?;
        ensure!(holds == should, "{what} reported that its claim {}, and it {}", verb(should), verb(holds));
        Ok(())
    })
}

fn verb(holds: bool) -> &'static str {
    if holds { "has the lease" } else { "has no lease" }
}

/// Returns the error of a request that cannot be answered.
#[track_caller]
fn unanswered<T>(
    what: &str,
    request: impl Future<Output = distlock_api::Result<T>>,
) -> impl Future<Output = Result<LockError, Failure>> {
    located_at_caller(async move {
        match within(BOUND, &format!("{what} with a timeout of {TIMEOUT:?} to end while the server stalls"), request)
            .await?
        {
            Ok(_) => Err(Failure::new(format!("{what} was answered while the server stalls"))),
            Err(error) => Ok(error),
        }
    })
}

/// Waits until the store works again.
#[track_caller]
fn recovered(store: &BareStore, key: &LockKey) -> impl Future<Output = Verdict> {
    located_at_caller(async move {
        eventually(LIVENESS, "the store to take a lease after the fault", async || {
            let claim = store.claim(key);
            match store.ask(&store.attempt(&claim, LEASE)).await? {
                Ok(_) => Ok(store.inner().withdraw(&claim, SOON).await.is_ok()),
                Err(_) => Ok(false),
            }
        })
        .await
    })
}

/// Makes a request again until it is answered. After a fault, one on a connection that broke may
/// truly have an unknown outcome, of each client.
#[track_caller]
fn answered<T>(
    what: &str,
    request: impl AsyncFn() -> Result<distlock_api::Result<T>, Failure>,
) -> impl Future<Output = Result<T, Failure>> {
    located_at_caller(async move {
        within(LIVENESS, &format!("{what} to be answered after the fault"), async {
            loop {
                match request().await? {
                    Ok(answer) => return Ok(answer),
                    Err(error) => {
                        reported(&error, true)?;
                    }
                }
                sleep(GRAIN * 5).await;
            }
        })
        .await?
    })
}

/// Releases a lease after a fault.
#[track_caller]
fn given_back(store: &BareStore, claim: &Claim) -> impl Future<Output = Verdict> {
    located_at_caller(async move {
        let release = Release::new(claim.clone());
        let outcome = answered("a release", async || Ok(store.inner().release(&release).await)).await?;
        ensure!(outcome.is_released(), "after the fault the release of a held lease returned {outcome:?}");
        Ok(())
    })
}

/// Opens a stream of events after a fault.
#[track_caller]
fn watched(store: &BareStore) -> impl Future<Output = Result<EventStream, Failure>> {
    located_at_caller(async move { answered("the opening of a stream", async || Ok(store.subscribe().await)).await })
}

async fn store_ends_stalled_calls(cx: Context) -> Verdict {
    let (hooks, [a, b]) = cx.hooked().await?;
    let [free, kept, released, withdrawn] = [(); 4].map(|()| a.claim(&cx.key()));
    let grant = a.take(&kept, LEASE).await?;
    a.take(&released, LEASE).await?;
    a.take(&withdrawn, LEASE).await?;
    let store = a.inner();
    let attempt = a.attempt(&free, LEASE).with_timeout(TIMEOUT);
    let renewal = Renewal::lease(kept.clone(), last(&grant), LEASE).with_timeout(TIMEOUT);
    let batch = [renewal.clone(), Renewal::lease(released.clone(), last(&grant), LEASE).with_timeout(TIMEOUT)];
    let release = Release::new(released.clone()).with_timeout(TIMEOUT);

    let stall = hooks.begin(Hook::Stall, kept.key()).await?;
    let batched = async {
        let waits = format!("a batch of renewals with a timeout of {TIMEOUT:?} to end while the server stalls");
        let answers = async {
            match store.extras().batch_renew {
                Some(store) => store.renew_many(&batch).await,
                None => vec![store.renew(&batch[1]).await],
            }
        };
        let answers = within(BOUND, &waits, answers).await?;
        let message = "a renewal of a batch was answered while the server stalls";
        answers.into_iter().find_map(|answer| answer.err()).ok_or_else(|| Failure::new(message))
    };
    let (attempted, renewed, _, ended, _) = tokio::try_join!(
        unanswered("an attempt", store.try_acquire(&attempt)),
        unanswered("a renewal", store.renew(&renewal)),
        batched,
        unanswered("a release", store.release(&release)),
        unanswered("a withdrawal", store.withdraw(&withdrawn, TIMEOUT)),
    )?;
    stall.end().await?;

    sleep(CALM).await;
    recovered(&a, &cx.key()).await?;
    reported(&renewed, true)?;
    ensure_true(&b, free.key(), &reported(&attempted, false)?, "an attempt").await?;
    ensure_true(&b, released.key(), &reported(&ended, true)?, "a release").await?;
    a.ensure_held(&kept, &grant, "no other claim took it while the server stalled").await
}

async fn store_isolates_a_blocked_key(cx: Context) -> Verdict {
    let (hooks, [a, b]) = cx.hooked().await?;
    let holder = a.claim(&cx.key());
    let grant = a.take(&holder, LEASE).await?;
    let renewal = Renewal::lease(holder.clone(), last(&grant), LEASE).with_timeout(TIMEOUT);
    let [first, second] = [(); 2].map(|()| b.attempt(&b.claim(holder.key()), LEASE).with_timeout(TIMEOUT));

    let blocked = hooks.begin(Hook::Block, holder.key()).await?;
    let others = async {
        let served = (0..8).map(async |_| {
            for store in [&a, &b] {
                let claim = store.claim(&cx.key());
                let grant = store.take(&claim, LEASE).await?;
                store.ensure_held(&claim, &grant, "it is another key").await?;
                store.give_back(&claim).await?;
            }
            Ok::<_, Failure>(())
        });
        let served =
            within(SOON, "requests for keys that are not blocked to be answered", try_join_all(served)).await?;
        served.map_err(|failure| {
            failure.reworded(|message| format!("a request for a key that is not blocked: {message}")).judged()
        })
    };
    let (renewed, one, two, _) = tokio::try_join!(
        within(BOUND, "a renewal of the blocked key to end", a.inner().renew(&renewal)),
        async { within(BOUND, "an attempt for the blocked key to end", b.ask(&first)).await? },
        async { within(BOUND, "an attempt for the blocked key to end", b.ask(&second)).await? },
        others,
    )?;
    blocked.end().await?;

    let errors: Vec<LockError> = [renewed.err(), one.err(), two.err()].into_iter().flatten().collect();
    let message = "each request for the key was answered while it was blocked";
    ensure_hook(!errors.is_empty(), message)?;
    for error in &errors {
        reported(error, true)?;
    }
    sleep(CALM).await;
    a.ensure_held(&holder, &grant, "its lease has not expired, and other claims only made attempts").await
}

/// Fails as a fault of the fixture: a hook without effect proves nothing.
#[track_caller]
pub(super) fn ensure_hook(works: bool, message: &str) -> Verdict {
    if works { Ok(()) } else { Err(Failure::of(FailureKind::Fixture, message)) }
}

async fn store_grants_a_blocked_key_once(cx: Context) -> Verdict {
    let (hooks, stores) = cx.hooked::<WORKERS>().await?;
    for _ in 0..cx.rounds(3) {
        let key = cx.key();
        let before = stores[0].claim(&key);
        stores[0].take(&before, LEASE).await?;
        stores[0].give_back(&before).await?;
        let blocked = hooks.begin(Hook::Block, &key).await?;
        let racers = stores.iter().flat_map(|store| (0..2).map(|_| races::attempt(store, &store.claim(&key))));
        let since = Instant::now();
        let (answers, ended) = tokio::join!(races::race(&cx, racers.collect()), async {
            sleep(CALM).await;
            blocked.end().await
        });
        ended?;
        let answers = answers?;
        ensure_hook(since.elapsed() >= CALM, "attempts for a blocked key were answered")?;
        races::one_winner(answers, "a free key whose record was blocked").await?;
    }
    Ok(())
}

async fn store_reads_the_clock_after_a_wait(cx: Context) -> Verdict {
    let (hooks, [a, b, c]) = cx.hooked().await?;
    let [renews, lapses] = [(); 2].map(|()| a.claim(&cx.key()));

    let ttl = cx.short();
    let grant = a.take(&renews, ttl).await?;
    // Its lease began before, however slow the store is.
    let granted = Instant::now();
    let blocked = hooks.begin(Hook::Block, renews.key()).await?;
    let renewal = Renewal::lease(renews.clone(), last(&grant), LEASE).with_timeout(LIVENESS);
    let store = Arc::clone(a.inner());
    let renewing = tokio::spawn(async move { store.renew(&renewal).await });
    tokio::time::sleep_until(granted + ttl + CALM).await;
    ensure_hook(!renewing.is_finished(), "a renewal of a blocked key was answered")?;
    blocked.end().await?;
    let renewed = within(SOON, "a renewal whose key is no longer blocked to return", renewing).await?;
    let renewed = renewed.map_err(|error| Failure::of_task("a renewal", &error))?;
    let revived = matches!(renewed, Ok(Standing::Held { .. }));
    ensure!(!revived, "a renewal waited at the server until its lease had expired, and was answered {renewed:?}");

    // The lease has expired, so that no store can answer without reading its record.
    a.take(&lapses, Duration::from_millis(1)).await?;
    sleep(CALM).await;
    let blocked = hooks.begin(Hook::Block, lapses.key()).await?;
    let (attempting, attempt) = (b.clone(), b.attempt(&b.claim(lapses.key()), LEASE).with_timeout(LIVENESS));
    let attempting = tokio::spawn(async move { attempting.ask(&attempt).await });
    sleep(CALM).await;
    ensure_hook(!attempting.is_finished(), "an attempt for a blocked key was answered")?;
    let since = Instant::now();
    blocked.end().await?;
    let answer = within(SOON, "an attempt whose key is no longer blocked to return", attempting).await?;
    if let Ok(Reply::Granted(Grant { remaining, .. })) =
        answer.map_err(|error| Failure::of_task("an attempt", &error))??
        && let Some(left) = c.left(lapses.key()).await?
    {
        let passed = since.elapsed();
        ensure!(
            left + passed + GRAIN >= remaining,
            "an attempt waited at the server and was granted {remaining:?}, of which {left:?} are left after {passed:?}"
        );
    }
    Ok(())
}

async fn store_withdraws_for_good(cx: Context) -> Verdict {
    let (hooks, [a, b]) = cx.hooked().await?;
    let key = cx.key();
    let holder = a.claim(&key);
    a.take(&holder, LEASE).await?;
    a.give_back(&holder).await?;

    let blocked = hooks.begin(Hook::Block, &key).await?;
    let dropped: Vec<Claim> = (0..DROPPED).map(|_| b.claim(&key)).collect();
    for claim in &dropped {
        let attempt = b.attempt(claim, LEASE);
        let answer = tokio::time::timeout(DROP_AFTER, b.ask(&attempt)).await;
        ensure_hook(answer.is_err(), "an attempt for a blocked key was answered")?;
    }
    // The next requests of the same caller must not be affected by the dropped ones.
    for _ in 0..DROPPED {
        let other = b.claim(&cx.key());
        b.take(&other, LEASE).await.map_err(Failure::judged)?;
        b.give_back(&other).await.map_err(Failure::judged)?;
    }
    let withdrawing = dropped.iter().map(|claim| b.withdraw(claim));
    let (withdrawn, ended) = tokio::join!(try_join_all(withdrawing), async {
        sleep(DROP_AFTER).await;
        blocked.end().await
    });
    ended?;
    withdrawn.map_err(Failure::judged)?;
    sleep(CALM).await;
    let held = is_held(&a, &key).await?;
    ensure!(!held, "{DROPPED} attempts were dropped and withdrawn, and one of them has the lease");
    Ok(())
}

async fn store_orders_the_requests_of_a_claim(cx: Context) -> Verdict {
    let (hooks, [a, b]) = cx.hooked().await?;
    // Without them the engine retries under another claim, and nothing needs to be ordered.
    if !b.inner().capabilities().ordered_claims {
        return Ok(());
    }
    // Connections are opened before the fault.
    recovered(&b, &cx.key()).await?;
    let late = b.claim(&cx.key());
    let delayed = hooks.begin(Hook::Delay, late.key()).await?;
    let sent = Instant::now();
    let attempt = b.attempt(&late, LEASE).with_timeout(TIMEOUT);
    let answer = within(BOUND, "an attempt that arrives late to end", b.ask(&attempt)).await??;
    ensure_hook(answer.is_err(), "an attempt was answered although requests are delayed")?;
    delayed.end().await?;
    let withdrawn = b.inner().withdraw(&late, SOON).await;
    let answered = sent.elapsed();
    tokio::time::sleep_until(sent + LATE + 2 * CALM).await;
    let held = is_held(&a, late.key()).await?;
    ensure!(
        !held || withdrawn.is_err(),
        "an attempt was in flight when the withdrawal of its claim was answered, {answered:?} after it was sent; then \
         the attempt arrived and took the lease"
    );
    Ok(())
}

/// A key, what was last reported about its claim, and by which request.
type Report = (LockKey, Reported, &'static str);

/// Acquires and releases keys of its own until `over` is set. Returns what the failed requests
/// reported, of which each is notified.
#[track_caller]
fn worker(
    cx: Context,
    store: BareStore,
    over: Arc<AtomicBool>,
    failed: Arc<Notify>,
) -> impl Future<Output = Result<Vec<Report>, Failure>> {
    located_at_caller(async move {
        let mut reports = Vec::new();
        while !over.load(Ordering::SeqCst) {
            let claim: Claim = store.claim(&cx.key());
            let key = claim.key().clone();
            let attempt = store.attempt(&claim, LEASE).with_timeout(TIMEOUT);
            let error =
                match within(SLOW_BOUND, "an attempt to end while connections are cut", store.ask(&attempt)).await?? {
                    Ok(_) => {
                        let release = Release::new(claim).with_timeout(TIMEOUT);
                        let releasing = store.inner().release(&release);
                        match within(SLOW_BOUND, "a release to end while connections are cut", releasing).await? {
                            Ok(_) => continue,
                            Err(error) => (reported(&error, true)?, "a release"),
                        }
                    }
                    Err(error) => (reported(&error, false)?, "an attempt"),
                };
            reports.push((key, error.0, error.1));
            failed.notify_one();
            sleep(Duration::from_millis(20)).await;
        }
        Ok(reports)
    })
}

async fn store_answers_truly_when_cut(cx: Context) -> Verdict {
    let (hooks, [a, b]) = cx.hooked().await?;
    for _ in 0..cx.rounds(3) {
        let (over, failed) = (Arc::new(AtomicBool::new(false)), Arc::new(Notify::new()));
        let workers: Vec<_> = (0..WORKERS)
            .map(|_| tokio::spawn(worker(cx.clone(), a.clone(), Arc::clone(&over), Arc::clone(&failed))))
            .collect();
        sleep(CUT / 4).await;
        let cut = hooks.begin(Hook::Cut, &cx.key()).await?;
        // A store may send a request again when it is connected again. If the cut lasts for longer
        // than requests do, they fail nevertheless.
        let _ = tokio::join!(sleep(CUT), tokio::time::timeout(SLOW_BOUND, failed.notified()));
        cut.end().await?;
        over.store(true, Ordering::SeqCst);
        let mut reports = Vec::new();
        for worker in workers {
            reports.extend(worker.await.map_err(|error| Failure::of_task("a worker", &error))??);
        }
        ensure_hook(!reports.is_empty(), "no request failed while connections were cut")?;
        recovered(&a, &cx.key()).await?;
        recovered(&b, &cx.key()).await?;
        sleep(CALM).await;
        for (key, reported, what) in &reports {
            ensure_true(&b, key, reported, what).await?;
        }
    }
    Ok(())
}

async fn store_streams_survive_a_cut(cx: Context) -> Verdict {
    let (hooks, [a, b]) = cx.hooked().await?;
    let ticket = Ticket::new(LEASE, LEASE, 10);
    let (holder, waiter) = (a.claim(&cx.key()), b.claim(&cx.key()));
    let waiter = Claim::new(holder.key().clone(), waiter.id().clone());
    let mut events = b.watch().await?;
    a.take(&holder, LEASE).await?;
    b.queued(&waiter, ticket, 0).await?;
    let cut = hooks.begin(Hook::Cut, holder.key()).await?;
    sleep(CUT).await;
    cut.end().await?;
    recovered(&a, &cx.key()).await?;
    given_back(&a, &holder).await?;
    within(LIVENESS, "a stream whose connection was cut to report the cut, or the grant after it", async {
        loop {
            match events.try_next().await {
                Ok(Some(StoreEvent::Granted { id, .. })) if id == *waiter.id() => break,
                Ok(Some(StoreEvent::Gap) | None) | Err(_) => break,
                Ok(Some(_)) => {}
            }
        }
    })
    .await?;
    // The stream is opened again, and works. This client was cut, too.
    recovered(&b, &cx.key()).await?;
    let next = b.claim(&cx.key());
    let mut events = watched(&b).await?;
    let holder = a.claim(next.key());
    let (taking, queuing) = (a.attempt(&holder, LEASE), b.attempt(&next, LEASE).with_ticket(ticket));
    let taken = answered("an attempt", async || a.ask(&taking).await).await?;
    ensure!(matches!(taken, Reply::Granted(_)), "the key is free, and the attempt was answered {taken:?}");
    let queued = answered("an attempt", async || b.ask(&queuing).await).await?;
    ensure!(matches!(queued, Reply::Busy(_)), "another claim holds the key, and the attempt was answered {queued:?}");
    given_back(&a, &holder).await?;
    let granted = |event| matches!(event, StoreEvent::Granted { id, .. } if id == *next.id()).then_some(());
    crate::bare::event(&mut events, "the event of a grant on the stream that was opened after a cut", granted).await
}

async fn store_survives_a_crash(cx: Context) -> Verdict {
    let (hooks, [a, b]) = cx.hooked().await?;
    let (kept, released) = (a.claim(&cx.key()), a.claim(&cx.key()));
    let since = Instant::now();
    let grant = a.take(&kept, LEASE).await?;
    let past = a.take(&released, LEASE).await?;
    a.give_back(&released).await?;

    let crash = hooks.begin(Hook::Restart, kept.key()).await?;
    let attempt = a.attempt(&a.claim(&cx.key()), LEASE).with_timeout(TIMEOUT);
    let answer = within(SLOW_BOUND, "an attempt to end while the server is down", a.ask(&attempt)).await??;
    if let Err(error) = &answer {
        reported(error, false)?;
    }
    crash.end().await?;

    recovered(&a, &cx.key()).await?;
    recovered(&b, &cx.key()).await?;
    a.ensure_held(&kept, &grant, "the server has crashed and runs again").await?;
    if let Some(left) = b.left(kept.key()).await? {
        let (most, passed) = (LEASE + GRAIN, since.elapsed());
        ensure!(
            left + passed + GRAIN >= LEASE && left <= most,
            "{left:?} are left of a lease of {LEASE:?}, {passed:?} after its grant and a crash of the server"
        );
    }
    let again = b.take(&b.claim(released.key()), LEASE).await?;
    ensure!(again.token > last(&past), "before a crash of the server the key had {past:?}, and after it {again:?}");
    let remembered = a.release(&released).await?;
    ensure!(
        remembered.is_released(),
        "a release was repeated after a crash of the server, and returned {remembered:?}"
    );
    Ok(())
}
