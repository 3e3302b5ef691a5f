//! L1–L8: leadership, on any backend.

use std::convert::Infallible;
use std::future::{Future, pending};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use distlock_api::{ErrorKind, FencingToken, LockKey};
use distlock_recipes::lead::{LeadExt, LeadHealth, LeadStatus, Leader, LeaderObserver, Led, Term};
use futures_util::future::join_all;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout_at};

use crate::bounded::{LIVENESS, SOON, eventually, within};
use crate::check::checks;
use crate::client::Client;
use crate::context::Context;
use crate::disturbed::Operation;
use crate::failure::{Failure, Verdict, ensure, located_at_caller};
use crate::leases::{LONG, renewed};

checks! {
    L1 one_task_at_a_time Smoke []
        "Of many candidates, several of them in one process, one runs its task at a time, and all \
         get their turn. A failure means that two leaders work at the same time, or that a \
         candidate never leads.";
    L2 terms_grow Smoke []
        "The term is constant while a candidate leads, and greater than that of every earlier \
         leader. A failure means that a resource cannot refuse an earlier leader.";
    L3 lost_leader_drops_its_task [Expiry, Faults]
        "A leader that is cut off from its store drops its task before another one starts, and \
         leads again under a new term when it can. A failure means that two leaders work at the \
         same time, or that a loss ends the candidacy.";
    L3 leadership_taken_by_force Smoke [Admin]
        "A leadership that is taken away by force ends the task, and the candidate leads again \
         under a new term. A failure means that an operator cannot depose a leader.";
    L4 resignation_hands_over []
        "A leader that resigns drops its task and releases, and the next candidate leads soon, not \
         after a ttl. A failure means that the work stands still after a normal shutdown.";
    L4 finished_task_frees_the_key Smoke []
        "The key is free when a candidate whose task has finished returns. A failure means that \
         the release is not awaited, so that the process may end before it.";
    L5 failed_task_is_run_again Smoke []
        "A task that fails is run again after pauses that grow, each time under a new term. A \
         failure means that an error of the task ends the candidacy, or is repeated without pause.";
    L5 errors_of_the_store [Faults]
        "A candidate whose campaigns fail continues, and leads when the store answers again. A \
         failure means that a transient error ends the candidacy.";
    L6 health_shows_what_it_does Smoke []
        "The health shows one candidate that leads, another that follows beyond the end of its \
         round, and none after both have resigned. A failure means that a readiness probe is wrong.";
    L7 dropped_candidates Smoke []
        "A candidate that is dropped while it leads or waits drops its task, and leaves neither a \
         lock nor a waiter behind. A failure means that the key stays without a leader.";
    L8 observer_reports_each_leader Smoke [Admin, LockEvents]
        "An observer reports the present leader, and then each leader and the end of each term, in \
         their order. A failure means that it reports leaders out of order, or not at all.";
    L8 observer_without_events [Admin, NoLockEvents]
        "Where no events are reported, an observer reads the state, and reports a leader and the \
         end of its term. A failure means that it waits for events that never arrive.";
    L8 observation_is_refused [NoAdmin]
        "A provider without administration refuses an observer with `Unsupported`. A failure means \
         that a caller waits for a leader that is never reported.";
}

/// What the tasks of the candidates do, in the order in which they do it.
#[derive(Clone, Default)]
struct Journal(Arc<Mutex<Vec<String>>>);

impl Journal {
    fn note(&self, line: String) {
        self.0.lock().expect("not poisoned").push(line);
    }

    fn lines(&self) -> Vec<String> {
        self.0.lock().expect("not poisoned").clone()
    }

    /// Returns all lines when `line` has been noted `times` times.
    #[track_caller]
    fn lines_with(&self, line: &str, times: usize) -> impl Future<Output = Result<Vec<String>, Failure>> {
        located_at_caller(async move {
            let count = || self.lines().iter().filter(|noted| *noted == line).count();
            eventually(SOON, "a task to start", async || Ok(count() >= times)).await?;
            Ok(self.lines())
        })
    }

    /// A task that works until it is dropped.
    async fn work(self, name: &str) -> Result<(), Infallible> {
        struct Dropped<'a>(Journal, &'a str);
        impl Drop for Dropped<'_> {
            fn drop(&mut self) {
                self.0.note(format!("{} is dropped", self.1));
            }
        }
        self.note(format!("{name} starts"));
        let _dropped = Dropped(self, name);
        pending().await
    }
}

/// A candidate in a task of its own, which is aborted when this is dropped.
struct Running {
    health: LeadHealth,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<distlock_api::Result<Led<()>>>,
}

/// How a candidate differs from the others.
#[derive(Clone, Copy, Default)]
struct Terms {
    /// The ttl of its leases. Defaults to one that is longer than the check.
    ttl: Option<Duration>,
    round: Option<Duration>,
}

impl Running {
    fn start(client: &Client, key: &LockKey, name: &'static str, journal: &Journal, terms: Terms) -> Self {
        let (provider, key, journal) = (Arc::clone(client.provider()), key.clone(), journal.clone());
        let (health, (stop, stopped)) = (LeadHealth::new(), oneshot::channel::<()>());
        let reports = health.clone();
        let task = tokio::spawn(async move {
            let mut lead = provider.lead(&key).owner(name).ttl(LONG).report_to(&reports).until(stopped);
            if let Some(ttl) = terms.ttl {
                lead = lead.ttl(ttl);
            }
            if let Some(round) = terms.round {
                lead = lead.round(round);
            }
            lead.run(|_| journal.clone().work(name)).await
        });
        Self { health, stop: Some(stop), task }
    }

    /// Returns its term when it leads, other than `past`.
    #[track_caller]
    fn leads_after(&mut self, past: Option<FencingToken>) -> impl Future<Output = Result<FencingToken, Failure>> {
        located_at_caller(async move {
            let leading = async {
                loop {
                    match self.health.get() {
                        LeadStatus::Leading { term } if Some(term) != past => break Ok(term),
                        _ => {}
                    }
                    tokio::select! {
                        ended = &mut self.task => {
                            break Err(Failure::new(format!("a candidate ended with {ended:?} instead of leading")));
                        }
                        _ = self.health.changed() => {}
                    }
                }
            };
            within(LIVENESS, "a candidate to lead", leading).await?
        })
    }

    #[track_caller]
    fn leads(&mut self) -> impl Future<Output = Result<FencingToken, Failure>> {
        self.leads_after(None)
    }

    #[track_caller]
    fn resigns(mut self) -> impl Future<Output = Verdict> {
        located_at_caller(async move {
            // If it has ended already, its result says why.
            let _ = self.stop.take().map(|stop| stop.send(()));
            let ended = within(SOON, "a candidate to resign", &mut self.task).await?;
            let led = ended.map_err(|error| Failure::of_task("a candidate", &error))?;
            ensure!(matches!(led, Ok(Led::Stopped)), "a candidate that resigns ended with {led:?}");
            let status = self.health.get();
            ensure!(status == LeadStatus::Idle, "the health of a candidate that has ended is {status:?}");
            Ok(())
        })
    }

    async fn aborted(&mut self) {
        self.task.abort();
        let _ = (&mut self.task).await;
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn one_task_at_a_time(cx: Context) -> Verdict {
    let clients: [Client; 3] = cx.clients().await?;
    let (key, running, journal) = (cx.key(), AtomicUsize::new(0), Mutex::new(Vec::new()));
    let candidates = clients.iter().flat_map(|client| [client, client]).map(|client| {
        client.provider().lead(&key).ttl(LONG).run(async |term: Term| {
            let others = running.fetch_add(1, Ordering::SeqCst);
            sleep(Duration::from_millis(20)).await;
            running.fetch_sub(1, Ordering::SeqCst);
            journal.lock().expect("not poisoned").push((others, term.fencing_token()));
            Ok::<_, Infallible>(())
        })
    });
    let led = within(LIVENESS, "each of six candidates to lead", join_all(candidates)).await?;
    let journal = journal.into_inner().expect("not poisoned");
    ensure!(journal.iter().all(|(others, _)| *others == 0), "two tasks ran at the same time: {journal:?}");
    ensure!(led.iter().all(|led| matches!(led, Ok(Led::Finished(())))), "the candidates ended with {led:?}");
    Ok(())
}

async fn terms_grow(cx: Context) -> Verdict {
    let clients: [Client; 2] = cx.clients().await?;
    let (key, journal, mut past) = (cx.key(), Journal::default(), None);
    for client in clients.iter().cycle().take(cx.rounds(6)) {
        let mut candidate = Running::start(client, &key, "a", &journal, Terms::default());
        let term = candidate.leads().await?;
        ensure!(past < Some(term), "the term {term} follows {past:?}");
        sleep(Duration::from_millis(20)).await;
        let status = candidate.health.get();
        ensure!(status == LeadStatus::Leading { term }, "the term {term} has become {status:?}");
        candidate.resigns().await?;
        past = Some(term);
    }
    Ok(())
}

async fn lost_leader_drops_its_task(cx: Context) -> Verdict {
    let [a, b] = cx.clients().await?;
    let (key, journal) = (cx.key(), Journal::default());
    let short = Terms { ttl: Some(cx.short()), ..Terms::default() };
    let mut lost = Running::start(&a, &key, "a", &journal, short);
    let first = lost.leads().await?;
    journal.lines_with("a starts", 1).await?;
    a.disturbed()?.cut_off().await?;
    let mut next = Running::start(&b, &key, "b", &journal, Terms::default());
    let second = next.leads().await?;
    let lines = journal.lines_with("b starts", 1).await?;
    ensure!(
        lines == ["a starts", "a is dropped", "b starts"],
        "the next leader starts although the task of the lost one is not dropped: {lines:?}"
    );
    a.disturbed()?.end_faults();
    next.resigns().await?;
    let third = lost.leads_after(Some(first)).await?;
    ensure!(first < second && second < third, "the terms are {first}, {second}, {third}");
    lost.resigns().await
}

async fn leadership_taken_by_force(cx: Context) -> Verdict {
    let [a, operator] = cx.clients().await?;
    let (key, journal) = (cx.key(), Journal::default());
    // A provider without pushes hears of the loss when it renews the lease.
    let terms = Terms { ttl: Some(cx.short()), ..Terms::default() };
    let mut leader = Running::start(&a, &key, "a", &journal, terms);
    let first = leader.leads().await?;
    journal.lines_with("a starts", 1).await?;
    let taken = cx.admin(&operator)?.force_release(&key, "conformance").await?;
    ensure!(taken.is_some(), "the leader's lock was not there to be taken");
    let second = leader.leads_after(Some(first)).await?;
    ensure!(first < second, "the term {second} follows {first}");
    let lines = journal.lines_with("a starts", 2).await?;
    ensure!(lines == ["a starts", "a is dropped", "a starts"], "the task did {lines:?}");
    leader.resigns().await
}

async fn resignation_hands_over(cx: Context) -> Verdict {
    let [a, b] = cx.clients().await?;
    let (key, journal) = (cx.key(), Journal::default());
    let mut leader = Running::start(&a, &key, "a", &journal, Terms::default());
    leader.leads().await?;
    journal.lines_with("a starts", 1).await?;
    let mut next = Running::start(&b, &key, "b", &journal, Terms::default());
    b.until_waiting(1).await?;
    leader.resigns().await?;
    within(SOON, "the next candidate to lead after a resignation", next.leads()).await??;
    let lines = journal.lines_with("b starts", 1).await?;
    ensure!(lines == ["a starts", "a is dropped", "b starts"], "the tasks did {lines:?}");
    next.resigns().await
}

async fn finished_task_frees_the_key(cx: Context) -> Verdict {
    let [a, b] = cx.clients().await?;
    let key = cx.key();
    let led = a.provider().lead(&key).ttl(LONG).run(async |_| Ok::<_, Infallible>(7));
    let led = within(LIVENESS, "a candidate to lead and to resign", led).await?;
    ensure!(matches!(led, Ok(Led::Finished(7))), "a candidate whose task has finished ended with {led:?}");
    let free = b.attempt(&key, renewed(LONG)).await?;
    ensure!(free.is_some(), "the key is held after the candidate has ended");
    Ok(())
}

async fn failed_task_is_run_again(cx: Context) -> Verdict {
    const PAUSE: Duration = Duration::from_millis(40);
    let [a] = cx.clients().await?;
    let (key, mut terms) = (cx.key(), Vec::new());
    let lead = a.provider().lead(&key).ttl(LONG).backoff(PAUSE, PAUSE * 4).run(|term: Term| {
        terms.push((Instant::now(), term.fencing_token()));
        std::future::ready(if terms.len() < 5 { Err("the task fails") } else { Ok(()) })
    });
    let led = within(LIVENESS, "a task to be run again after it has failed", lead).await?;
    ensure!(matches!(led, Ok(Led::Finished(()))), "a candidate whose task has failed ended with {led:?}");
    for (pair, factor) in terms.windows(2).zip([1, 2, 4, 4]) {
        let pause = pair[1].0 - pair[0].0;
        ensure!(pause >= PAUSE * factor / 2, "the task was run again after {pause:?}: {terms:?}");
        ensure!(pair[0].1 < pair[1].1, "the terms did not grow: {terms:?}");
    }
    Ok(())
}

async fn errors_of_the_store(cx: Context) -> Verdict {
    let [a] = cx.clients().await?;
    let (key, journal) = (cx.key(), Journal::default());
    a.disturbed()?.fail_next(Operation::Acquire, 3);
    let mut candidate = Running::start(&a, &key, "a", &journal, Terms::default());
    candidate.leads().await?;
    a.disturbed()?.end_faults();
    candidate.resigns().await
}

async fn health_shows_what_it_does(cx: Context) -> Verdict {
    let [a, b] = cx.clients().await?;
    let (key, journal) = (cx.key(), Journal::default());
    let mut leader = Running::start(&a, &key, "a", &journal, Terms::default());
    let term = leader.leads().await?;
    // Long enough for an answer of the store: without one in a round, the candidate is `Failing`.
    let round = cx.short();
    let follower = Running::start(&b, &key, "b", &journal, Terms { round: Some(round), ..Terms::default() });
    b.until_waiting(1).await?;
    let mut seen = follower.health.clone();
    // Beyond the end of two rounds.
    let until = Instant::now() + round * 5 / 2;
    while let Ok(status) = timeout_at(until, seen.changed()).await {
        ensure!(status == LeadStatus::Following, "a candidate that follows shows {status:?}");
    }
    let statuses = (leader.health.get(), follower.health.get());
    ensure!(
        statuses == (LeadStatus::Leading { term }, LeadStatus::Following),
        "a leader and a follower show {statuses:?}"
    );
    follower.resigns().await?;
    leader.resigns().await
}

async fn dropped_candidates(cx: Context) -> Verdict {
    let [a, b] = cx.clients().await?;
    let (key, journal) = (cx.key(), Journal::default());
    let mut leader = Running::start(&a, &key, "a", &journal, Terms::default());
    leader.leads().await?;
    journal.lines_with("a starts", 1).await?;
    let mut waiter = Running::start(&b, &key, "b", &journal, Terms::default());
    b.until_waiting(1).await?;
    waiter.aborted().await;
    b.until_waiting(0).await?;
    leader.aborted().await;
    let lines = journal.lines();
    ensure!(lines == ["a starts", "a is dropped"], "the tasks did {lines:?}");
    let statuses = (leader.health.get(), waiter.health.get());
    ensure!(statuses == (LeadStatus::Idle, LeadStatus::Idle), "candidates that were dropped show {statuses:?}");
    let free = b.take_within(SOON, &key, renewed(LONG)).await?;
    drop(free);
    b.until_idle().await
}

/// The next report of an observer.
#[track_caller]
fn report(observer: &mut LeaderObserver<'_>) -> impl Future<Output = Result<Option<Leader>, Failure>> {
    located_at_caller(async move { Ok(within(SOON, "a report of an observer", observer.changed()).await??) })
}

async fn observer_reports_each_leader(cx: Context) -> Verdict {
    let [a, b, reader] = cx.clients().await?;
    let (key, journal) = (cx.key(), Journal::default());
    let mut observer = reader.provider().observe(&key)?;
    let none = report(&mut observer).await?;
    ensure!(none.is_none(), "a key without a leader is reported as {none:?}");
    // They all lead while the observer does not look.
    let mut terms = Vec::new();
    for (client, name) in [(&a, "ada"), (&b, "bob"), (&a, "cyd"), (&b, "dan")] {
        let mut candidate = Running::start(client, &key, name, &journal, Terms::default());
        terms.push((name, candidate.leads().await?));
        candidate.resigns().await?;
    }
    for (name, term) in terms {
        let leader = report(&mut observer).await?;
        ensure!(
            leader.as_ref().is_some_and(|leader| leader.owner.as_deref() == Some(name) && leader.last_term >= term),
            "the leader {name} of the term {term} is reported as {leader:?}"
        );
        let none = report(&mut observer).await?;
        ensure!(none.is_none(), "the end of the term of {name} is reported as {none:?}");
    }
    Ok(())
}

async fn observer_without_events(cx: Context) -> Verdict {
    let [a, reader] = cx.clients().await?;
    let (key, journal) = (cx.key(), Journal::default());
    let mut observer = reader.provider().observe(&key)?.interval(Duration::from_millis(100));
    let none = report(&mut observer).await?;
    ensure!(none.is_none(), "a key without a leader is reported as {none:?}");
    let mut candidate = Running::start(&a, &key, "ada", &journal, Terms::default());
    candidate.leads().await?;
    let leader = report(&mut observer).await?;
    ensure!(
        leader.as_ref().is_some_and(|leader| leader.owner.as_deref() == Some("ada")),
        "the leader ada is reported as {leader:?}"
    );
    candidate.resigns().await?;
    let none = report(&mut observer).await?;
    ensure!(none.is_none(), "the end of the term is reported as {none:?}");
    Ok(())
}

async fn observation_is_refused(cx: Context) -> Verdict {
    let [a] = cx.clients().await?;
    let observer = a.provider().observe(cx.key()).map(|_| ());
    ensure!(
        observer.as_ref().is_err_and(|error| error.kind() == ErrorKind::Unsupported),
        "an observer without administration is answered {observer:?}"
    );
    Ok(())
}
