//! A round: work, faults, rest.

use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::acts::{Act, Told};
use super::deck::Drawn;
use super::field::{Field, Player, TASKS, Work};
use super::tally::Tally;
use super::{judge, process, worker};
use crate::arena::{Arena, Fault};
use crate::bounded::within;
use crate::client::Client;
use crate::context::Context;
use crate::failure::{Failure, Verdict};

/// Work without faults, before them and after.
const CALM: Duration = Duration::from_millis(1_000);
/// How long those at work may take to come to rest: a wait and a release that both run into their limits.
const REST: Duration = Duration::from_secs(60);
/// How long an act may take: a child process asks for a lock several times before.
const ACT: Duration = Duration::from_secs(90);

/// Returns what happened, for people.
pub(super) async fn round(
    cx: &Context,
    arena: &dyn Arena,
    field: &mut Field,
    drawn: Drawn,
    tally: &Tally,
) -> Result<String, Failure> {
    let work = Work::new(cx, field, tally);
    cx.findings().set_history(&work.recorder);
    let clients: Vec<Client> =
        field.providers.iter().map(|provider| Client::new(provider.clone()).recorded(&work.recorder)).collect();
    let mut tasks = JoinSet::new();
    for client in clients.iter().flat_map(|client| std::iter::repeat_n(client, TASKS)) {
        tasks.spawn(worker::work(work.clone(), client.clone(), cx.chance()));
    }
    let (mut processes, mut hands) = (JoinSet::new(), Vec::new());
    for player in field.children.drain(..) {
        let (hand, acts) = mpsc::unbounded_channel();
        hands.push(hand);
        processes.spawn(process::work(work.clone(), player, acts, cx.chance()));
    }

    let name = drawn.name();
    let faults = async {
        sleep(CALM).await;
        let hand = &hands[cx.chance().usize(..hands.len())];
        let seen = tokio::try_join!(store(drawn.store, tally), client(drawn.client, hand, tally))?;
        arena.healthy().await?;
        sleep(CALM).await;
        Ok::<String, Failure>([seen.0, seen.1].into_iter().flatten().collect::<Vec<_>>().join("; "))
    };
    // Whoever fails at work has seen what the faults must not do: it counts first.
    let seen = tokio::select! {
        seen = faults => seen,
        failure = first_failure(&mut tasks) => Err(failure),
    };
    let at_work = work.recorder.now();
    work.end();
    let rested = within(REST + ACT, "those at work to come to rest", rest(tasks, processes)).await;
    let seen: String = seen?;
    field.children = rested??;
    let told = judge::judge(&work, field, &clients, &name, at_work).await?;
    Ok(format!("{name} – {seen}: {told}"))
}

async fn store(fault: Option<std::sync::Arc<dyn Fault>>, tally: &Tally) -> Result<Option<String>, Failure> {
    let Some(fault) = fault else { return Ok(None) };
    let about = |step: &str, error: crate::failure::FixtureError| {
        let error = crate::failure::chain(&*error);
        Failure::new(format!("the fault {} did not {step}: {error}", fault.kind()))
    };
    fault.begin().await.map_err(|error| about("begin", error))?;
    sleep(fault.lasts()).await;
    let seen = fault.end().await.map_err(|error| about("happen, or does not end", error))?;
    tally.happened(fault.kind());
    Ok(Some(seen))
}

async fn client(
    act: Option<Act>,
    hand: &mpsc::UnboundedSender<Told>,
    tally: &Tally,
) -> Result<Option<String>, Failure> {
    let Some(act) = act else { return Ok(None) };
    let gone = |_| Failure::new(format!("the fault {} did not happen: its process is gone", act.kind()));
    let (done, happened) = oneshot::channel();
    let told = Told { act, done };
    hand.send(told).map_err(|_| gone(()))?;
    let seen = within(ACT, "something to happen to a process", happened).await?.map_err(|_| gone(()))?;
    tally.happened(act.kind());
    Ok(Some(seen))
}

/// The failure of a task. Never returns without one.
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

/// Until everybody has finished; the child processes come back.
async fn rest(
    mut tasks: JoinSet<Verdict>,
    mut processes: JoinSet<Result<Player, Failure>>,
) -> Result<Vec<Player>, Failure> {
    let ended = |error: tokio::task::JoinError| Failure::new(format!("a task ended: {error}"));
    while let Some(task) = tasks.join_next().await {
        task.map_err(ended)??;
    }
    let mut players = Vec::new();
    while let Some(player) = processes.join_next().await {
        players.push(player.map_err(ended)??);
    }
    Ok(players)
}
