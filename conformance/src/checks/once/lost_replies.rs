//! O1, O6 and O8 where replies are lost.
//!
//! They are lost between a deployment and its clients, which must find out what has become of their
//! requests. A caller that leaves a call has lost its answer, too, and that needs no fault.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use distlock_api::FencingToken;
use distlock_recipes::once::{NotCompleted, Once, OnceGuard, OnceProviderExt, OnceState};
use futures_util::future::try_join_all;
use tokio::time::{sleep, timeout};

use super::{Client, DAY, Work, begun, completed, done};
use crate::arena::Hook;
use crate::bounded::{GRAIN, LIVENESS, SOON, eventually, within};
use crate::check::checks;
use crate::context::{Context, Disturbance};
use crate::failure::{Failure, Verdict, ensure, located_at_caller};

checks! {
    O1 a_beginning_without_replies_blocks_nothing [Once, Arena, LoseReplies]
        "A call whose replies are lost begins the work, or fails: it is never told that its own \
         run is that of another caller. Another caller begins what it has not begun, at the latest \
         soon after the ttl. A failure means that a lost reply blocks the work, or begins it twice.";
    O6 a_discard_without_replies_has_one_outcome [Once, Arena, LoseReplies]
        "A discard whose replies are lost leaves the work as it was, or interrupted, and its \
         holder is told nothing else. A failure means that a caller takes work for new that is \
         interrupted, or the reverse.";
    O8 a_completion_without_replies_has_one_outcome [Once, Arena, LoseReplies]
        "A completion whose replies are lost, and which is repeated, has one outcome for its \
         holder and for all others. A failure means that an outcome that is remembered is taken \
         for lost, or the reverse.";
    O8 a_completion_that_was_left_has_one_outcome [Once]
        "A caller that leaves its completion at any await, and repeats it, is told what all \
         others find. A failure means that an outcome that is remembered is taken for lost, or the \
         reverse.";
}

type Answer = Result<(), NotCompleted>;

/// How long replies are lost: longer than a call takes, also on a busy machine.
const LOST: Duration = Duration::from_millis(1500);

/// Makes a call whose replies are lost. Its caller stays until it is answered, or leaves while they
/// are lost.
#[track_caller]
fn without_replies<T>(
    stays: bool,
    losing: Disturbance<'_>,
    call: impl Future<Output = T>,
) -> impl Future<Output = Result<Option<T>, Failure>> {
    located_at_caller(async move {
        let mut call = Box::pin(call);
        if let Ok(answer) = timeout(LOST, &mut call).await {
            losing.end().await?;
            return Ok(Some(answer));
        }
        if !stays {
            drop(call);
            losing.end().await?;
            return Ok(None);
        }
        let answering = within(LIVENESS, "a call whose replies are no longer lost to return", call);
        let (answer, ended) = tokio::join!(answering, losing.end());
        ended?;
        Ok(Some(answer?))
    })
}

/// Repeats a completion until it is known what has become of it. `first` is its first answer;
/// `None` if its caller has left.
#[track_caller]
fn repeated(guard: &mut OnceGuard, first: Option<Answer>) -> impl Future<Output = Result<Answer, Failure>> {
    located_at_caller(async move {
        let repeating = async {
            loop {
                match guard.complete("done").await {
                    Err(NotCompleted::Unknown(_)) => sleep(GRAIN * 5).await,
                    answer => break answer,
                }
            }
        };
        let answer = within(LIVENESS, "a repeated completion to be told its outcome", repeating).await?;
        let is_same = match &first {
            None | Some(Err(NotCompleted::Unknown(_))) => true,
            Some(Ok(())) => answer.is_ok(),
            Some(Err(_)) => answer.is_err(),
        };
        ensure!(is_same, "a completion was answered {first:?}, and its repetition {answer:?}");
        Ok(answer)
    })
}

/// Returns what a reader finds when the work is no longer under way: the lease of a run whose
/// guard is lost may last a little longer.
#[track_caller]
fn settled(work: &Work<'_>, reader: &Client) -> impl Future<Output = Result<OnceState, Failure>> {
    located_at_caller(async move {
        let is_over = async || Ok(!matches!(work.state(reader).await?, OnceState::UnderWay(_)));
        eventually(LIVENESS, "a run that was ended to be no longer under way", is_over).await?;
        work.state(reader).await
    })
}

/// Fails unless a reader finds what the holder of the run was told.
#[track_caller]
fn ensure_agreed(
    work: &Work<'_>,
    reader: &Client,
    run: FencingToken,
    told: &Answer,
    why: &str,
) -> impl Future<Output = Verdict> {
    located_at_caller(async move {
        let state = settled(work, reader).await?;
        let is_agreed = match (told, &state) {
            (Ok(()), OnceState::Done(outcome)) => outcome.value() == b"done" && outcome.run().token == run,
            (Err(NotCompleted::Lost(_)), OnceState::Interrupted(interrupted)) => interrupted.token == run,
            _ => false,
        };
        ensure!(is_agreed, "{why}: repeated it is answered {told:?}, and a reader finds {state:?}");
        Ok(())
    })
}

async fn a_beginning_without_replies_blocks_nothing(cx: Context) -> Verdict {
    let (hooks, [here, there]) = cx.hooked_once().await?;
    for (waits, stays) in [(true, true), (false, true), (true, false)] {
        let work = Work::of(&cx);
        // Its client has connected before the fault.
        completed(begun((*here).once(cx.key()).timeout(LIVENESS).await?)?.discard().await)?;
        let call = if waits { work.once(&here) } else { work.attempt(&here) };
        let losing = hooks.begin(Hook::LoseReplies, &work.key).await?;
        let answer = without_replies(stays, losing, call.ttl(work.ttl).into_future()).await?;
        match answer {
            Some(Ok(Once::Begun(mut guard))) => {
                completed(guard.complete("done").await)?;
            }
            Some(Ok(other)) => {
                return Err(Failure::new(format!(
                    "the replies to the only call for new work were lost, and it was answered {other:?}"
                )));
            }
            // The first call has begun nothing, whatever has become of it.
            None | Some(Err(_)) => {
                let next = (*there).once(&work.key).keep(DAY).timeout(work.ttl + SOON).await?;
                completed(begun(next)?.complete("done").await)?;
            }
        }
        done(work.once(&here).await?)?;
        done(work.once(&there).await?)?;
    }
    Ok(())
}

async fn a_discard_without_replies_has_one_outcome(cx: Context) -> Verdict {
    let (hooks, [here, there]) = cx.hooked_once().await?;
    for stays in [true, false] {
        let work = Work::of(&cx);
        let guard = begun(work.once(&here).ttl(work.ttl).await?)?;
        let run = guard.fencing_token();
        let losing = hooks.begin(Hook::LoseReplies, &work.key).await?;
        let told = without_replies(stays, losing, guard.discard()).await?;
        let state = settled(&work, &there).await?;
        let is_agreed = match (&told, &state) {
            (None | Some(Ok(()) | Err(NotCompleted::Unknown(_))), OnceState::New) => true,
            (
                None | Some(Err(NotCompleted::Unknown(_) | NotCompleted::Lost(_))),
                OnceState::Interrupted(interrupted),
            ) => interrupted.token == run,
            _ => false,
        };
        ensure!(
            is_agreed,
            "the replies to a discard were lost: it was answered {told:?}, and a reader finds {state:?}"
        );
        let next = begun(work.once(&there).await?)?;
        let interrupted = next.interrupted().map(|run| run.token);
        let expected = (state != OnceState::New).then_some(run);
        ensure!(interrupted == expected, "a reader finds {state:?}, and the next run is told of {interrupted:?}");
        completed(next.discard().await)?;
    }
    Ok(())
}

async fn a_completion_without_replies_has_one_outcome(cx: Context) -> Verdict {
    let (hooks, [here, there]) = cx.hooked_once().await?;
    for stays in [true, false] {
        let work = Work::of(&cx);
        let mut guard = begun(work.once(&here).ttl(work.ttl).await?)?;
        let losing = hooks.begin(Hook::LoseReplies, &work.key).await?;
        let first = without_replies(stays, losing, guard.complete("done")).await?;
        let told = repeated(&mut guard, first).await?;
        let run = guard.fencing_token();
        ensure_agreed(&work, &there, run, &told, "the replies to a completion were lost").await?;
        ensure_agreed(&work, &here, run, &told, "the replies to its completion were lost").await?;
    }
    Ok(())
}

async fn a_completion_that_was_left_has_one_outcome(cx: Context) -> Verdict {
    let [here, there] = cx.once_clients().await?;
    let left = (0..16).map(async |polls| {
        let work = Work::of(&cx);
        let mut guard = begun(work.once(&here).await?)?;
        let mut first = None;
        {
            let mut call = pin!(guard.complete("done"));
            for _ in 0..polls {
                if let Poll::Ready(answer) = poll_fn(|cx| Poll::Ready(call.as_mut().poll(cx))).await {
                    first = Some(answer);
                    break;
                }
                // Lets what the call waits for happen, in most cases.
                sleep(Duration::from_millis(1)).await;
            }
        }
        let told = repeated(&mut guard, first).await?;
        let run = guard.fencing_token();
        ensure_agreed(&work, &there, run, &told, "the caller of a completion has left").await
    });
    try_join_all(left).await.map(drop)
}
