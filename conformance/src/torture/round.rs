//! A round: work, faults, end.

use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::participants::{ChildClient, Participants, TASKS, Work};
use super::process_faults::{FaultRequest, ProcessFault};
use super::schedule::RoundFaults;
use super::tally::Tally;
use super::{judge, process, worker};
use crate::arena::{Arena, Fault};
use crate::bounded::within;
use crate::client::Client;
use crate::context::Context;
use crate::failure::{Failure, Verdict};

/// Work without faults, before them and after.
const CALM: Duration = Duration::from_millis(1_000);
/// How long the tasks may take to end: a wait and a release that both reach their limits.
const END: Duration = Duration::from_secs(60);
/// How long a fault of a process may take: the process first tries to acquire a lock several times.
const PROCESS_FAULT: Duration = Duration::from_secs(90);

/// Runs a round. Returns a summary for the terminal.
pub(super) async fn round(
    cx: &Context,
    arena: &dyn Arena,
    participants: &mut Participants,
    round_faults: RoundFaults,
    tally: &Tally,
) -> Result<String, Failure> {
    let work = Work::new(cx, participants, tally);
    cx.findings().set_history(&work.recorder);
    let clients: Vec<Client> =
        participants.providers.iter().map(|provider| Client::new(provider.clone()).recorded(&work.recorder)).collect();
    let mut tasks = JoinSet::new();
    for client in clients.iter().flat_map(|client| std::iter::repeat_n(client, TASKS)) {
        tasks.spawn(worker::work(work.clone(), client.clone(), cx.rng()));
    }
    let (mut processes, mut senders) = (JoinSet::new(), Vec::new());
    for child in participants.children.drain(..) {
        let (sender, requests) = mpsc::unbounded_channel();
        senders.push(sender);
        processes.spawn(process::work(work.clone(), child, requests, cx.rng()));
    }

    let name = round_faults.name();
    let faults = async {
        sleep(CALM).await;
        let sender = &senders[cx.rng().usize(..senders.len())];
        let seen = tokio::try_join!(store(round_faults.store, tally), client(round_faults.client, sender, tally))?;
        arena.healthy().await?;
        sleep(CALM).await;
        Ok::<String, Failure>([seen.0, seen.1].into_iter().flatten().collect::<Vec<_>>().join("; "))
    };
    // A failure of a task shows what the faults must not cause, so it counts first.
    let seen = tokio::select! {
        seen = faults => seen,
        failure = first_failure(&mut tasks) => Err(failure),
    };
    let at_work = work.recorder.now();
    work.end();
    let ended = within(END + PROCESS_FAULT, "the tasks of the round to end", finished(tasks, processes)).await;
    let seen: String = seen?;
    participants.children = ended??;
    let summary = judge::judge(&work, participants, &clients, &name, at_work).await?;
    Ok(format!("{name} – {seen}: {summary}"))
}

async fn store(fault: Option<std::sync::Arc<dyn Fault>>, tally: &Tally) -> Result<Option<String>, Failure> {
    let Some(fault) = fault else { return Ok(None) };
    let about = |step: &str, error: crate::failure::FixtureError| {
        let error = crate::failure::chain(&*error);
        Failure::new(format!("the fault {} did not {step}: {error}", fault.kind()))
    };
    fault.begin().await.map_err(|error| about("begin", error))?;
    sleep(fault.duration()).await;
    let seen = fault.end().await.map_err(|error| about("happen, or did not end", error))?;
    tally.happened(fault.kind());
    Ok(Some(seen))
}

async fn client(
    fault: Option<ProcessFault>,
    sender: &mpsc::UnboundedSender<FaultRequest>,
    tally: &Tally,
) -> Result<Option<String>, Failure> {
    let Some(fault) = fault else { return Ok(None) };
    let gone = |_| Failure::new(format!("the fault {} did not happen: its process is gone", fault.kind()));
    let (done, happened) = oneshot::channel();
    let request = FaultRequest { fault, done };
    sender.send(request).map_err(|_| gone(()))?;
    let seen = within(PROCESS_FAULT, "a fault of a process to happen", happened).await?.map_err(|_| gone(()))?;
    tally.happened(fault.kind());
    Ok(Some(seen))
}

/// Returns the first failure of a task, and never returns without one.
async fn first_failure(tasks: &mut JoinSet<Verdict>) -> Failure {
    loop {
        match tasks.join_next().await {
            Some(Ok(Ok(()))) => {}
            Some(Ok(Err(failure))) => return failure,
            Some(Err(error)) => return Failure::new(format!("a task ended: {error}")),
            None => std::future::pending().await,
        }
    }
}

/// Waits until all tasks have ended. Returns the child processes.
async fn finished(
    mut tasks: JoinSet<Verdict>,
    mut processes: JoinSet<Result<ChildClient, Failure>>,
) -> Result<Vec<ChildClient>, Failure> {
    let ended = |error: tokio::task::JoinError| Failure::new(format!("a task ended: {error}"));
    while let Some(task) = tasks.join_next().await {
        task.map_err(ended)??;
    }
    let mut children = Vec::new();
    while let Some(child) = processes.join_next().await {
        children.push(child.map_err(ended)??);
    }
    Ok(children)
}
