//! O1–O11, and C3 for runs: work that is done once. O12 depends on the backend.

pub(super) mod lost_replies;

use std::future::{Future, IntoFuture};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use distlock_api::{LockKey, RenewalPolicy};
use distlock_recipes::once::{
    BeginOnce, Fingerprint, NotCompleted, Once, OnceGuard, OnceOptions, OnceProvider, OnceProviderExt, OnceRun,
    OnceState, Outcome,
};
use futures_util::future::{join_all, try_join_all};
use tokio::time::{Instant, sleep, timeout};

use crate::bounded::{LIVENESS, SOON, each_paused, eventually, is_too_slow, throughout, within};
use crate::check::checks;
use crate::context::Context;
use crate::failure::{Failure, Verdict, ensure, located_at_caller};
use crate::leases::validity;

checks! {
    O1 exactly_one_begins Smoke [Once]
        "Of many callers of a key exactly one begins the work, and all others get its outcome. A \
         failure means that the work is done twice.";
    C3 a_lost_run_is_not_begun [Once, Expiry]
        "A call that is paused until the lease of its run has ended does not begin with a lost \
         guard. A failure means that a caller works although another one may have begun the work, \
         or completed it.";
    O1 others_are_busy [Once]
        "While the work is under way, other callers are told so, with the token and the owner of \
         the run. A failure means that they begin it, too, or that they take it for new or done.";
    O2 the_outcome_is_remembered [Once]
        "Every caller gets the bytes of the completed run, its token and its owner, also after the \
         lease of the run would have ended. A failure means that work that is done is done again.";
    O3 a_late_completion_is_refused [Once, Expiry]
        "The completion of a holder whose lease has ended is refused while another run is under \
         way, and after that has completed. A failure means that a late holder replaces the \
         outcome, or believes that it has.";
    O3 a_late_completion_without_a_successor_is_refused [Once, Expiry]
        "The completion of a holder whose lease has ended is refused although no other run was \
         begun, also if it was begun before the end. A failure means that an outcome is remembered \
         that others may have found missing.";
    O3 a_completion_is_made_once Smoke [Once]
        "A completion that is repeated changes nothing. A failure means that one run has two \
         outcomes.";
    O4 a_crash_reopens_after_the_ttl [Once, Expiry]
        "The work of a holder that died is open again when its lease has ended, however long \
         outcomes are kept, and not before. A failure means that a crash blocks the work for days, \
         or that it runs twice at the same time.";
    O4 without_expiry_work_stays_under_way [Once, NoExpiry]
        "Where leases do not end by themselves, the work of a holder that gave no sign stays under \
         way. A failure means that it runs twice at the same time.";
    O5 an_interrupted_run_is_named Smoke [Once]
        "The run that ended without an outcome is reported to the next one, with its token and \
         owner. A failure means that a caller cannot know that the work was begun before.";
    O5 a_vanished_holder_is_named [Once, Expiry]
        "The run of a holder whose lease has ended is reported to the next run and to readers. A \
         failure means that the work of a dead process looks new.";
    O5 at_most_once_never_begins_again [Once]
        "With `at_most_once` an interrupted run is reported and never begun again. A failure means \
         that work that must not be repeated is repeated.";
    O6 discarding_leaves_no_trace Smoke [Once]
        "A discarded run leaves the work new and the key open at once, whatever its minimum hold. \
         A failure means that work that was not begun looks interrupted, or is blocked.";
    O6 discarding_restores_an_interrupted_run [Once]
        "A discarded run leaves the interrupted run before it. A failure means that the discarded \
         run is reported in its place, or none.";
    O7 another_fingerprint_is_a_mismatch Smoke [Once]
        "Another fingerprint is a mismatch while work is under way, after an interruption and \
         after the completion. A failure means that a caller gets the outcome of another request.";
    O8 completion_tells_the_truth Smoke [Once]
        "A value that is too long is rejected and leaves the work under way; the longest one is \
         remembered in full. A failure means that a caller takes an outcome for remembered that is \
         not.";
    O9 a_waiter_gets_the_outcome Smoke [Once]
        "Callers that wait for the work get its outcome soon after the completion. A failure means \
         that they wait too long, or give up although the work is done.";
    O9 a_wait_is_bounded [Once]
        "A wait for work under way ends with its timeout, neither earlier nor much later. A \
         failure means that a caller is blocked by the work of another one.";
    O10 an_outcome_is_forgotten_after_keep [Once]
        "An outcome counts until `keep` has passed, and not much longer; then the work is new. A \
         failure means that an outcome is forgotten too early, or for ever remembered.";
    O10 work_under_way_outlives_keep [Once]
        "Work that takes longer than `keep` stays under way, can be completed, and is remembered \
         from then on. A failure means that it is begun twice, or that `keep` counts from the \
         beginning.";
    O11 a_dropped_call_leaves_nothing Smoke [Once]
        "A call that is dropped at any await leaves neither a lease nor a run. A failure means \
         that the key stays closed, or that work looks interrupted that was not begun.";
}

type Client = Arc<dyn OnceProvider>;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// The key that a check works with, and its lease terms.
struct Work<'a> {
    cx: &'a Context,
    key: LockKey,
    ttl: Duration,
}

impl Work<'_> {
    fn of(cx: &Context) -> Work<'_> {
        Work { cx, key: cx.key(), ttl: cx.short() }
    }

    #[track_caller]
    fn clients<const N: usize>(&self) -> impl Future<Output = Result<[Client; N], Failure>> {
        self.cx.once_clients()
    }

    /// A call whose run is not renewed, so that it ends after the ttl.
    fn unrenewed<'a>(&'a self, client: &'a Client) -> BeginOnce<'a, dyn OnceProvider> {
        self.once(client).ttl(self.ttl).renewal(RenewalPolicy::Never)
    }

    fn once<'a>(&self, client: &'a Client) -> BeginOnce<'a, dyn OnceProvider> {
        (**client).once(&self.key).keep(DAY).timeout(LIVENESS)
    }

    fn attempt<'a>(&self, client: &'a Client) -> BeginOnce<'a, dyn OnceProvider> {
        (**client).try_once(&self.key).keep(DAY)
    }

    #[track_caller]
    fn state(&self, client: &Client) -> impl Future<Output = Result<OnceState, Failure>> {
        located_at_caller(async move { Ok(client.inspect(&self.key).await?.state) })
    }

    /// Begins again after a holder that gave no sign: its release may still be on its way.
    #[track_caller]
    fn begun_soon(&self, client: &Client) -> impl Future<Output = Result<OnceGuard, Failure>> {
        located_at_caller(async move { begun(self.once(client).await?) })
    }

    /// Makes a call when the work is no longer under way.
    #[track_caller]
    fn settled(
        &self,
        client: &Client,
        call: BeginOnce<'_, dyn OnceProvider>,
    ) -> impl Future<Output = Result<Once, Failure>> {
        located_at_caller(async move {
            let what = "the work of a dropped guard to end";
            eventually(SOON, what, async || Ok(!matches!(self.state(client).await?, OnceState::UnderWay(_)))).await?;
            Ok(call.await?)
        })
    }
}

#[track_caller]
fn begun(answer: Once) -> Result<OnceGuard, Failure> {
    match answer {
        Once::Begun(guard) => Ok(guard),
        other => Err(Failure::new(format!("the work was not begun: {other:?}"))),
    }
}

#[track_caller]
fn done(answer: Once) -> Result<Outcome, Failure> {
    match answer {
        Once::Done(outcome) => Ok(outcome),
        other => Err(Failure::new(format!("the outcome is not remembered: {other:?}"))),
    }
}

#[track_caller]
fn completed(answer: Result<(), NotCompleted>) -> Verdict {
    answer.map_err(|error| Failure::new(format!("the completion of a holder was refused: {error:?}")))
}

async fn exactly_one_begins(cx: Context) -> Verdict {
    let work = Work::of(&cx);
    let clients: [Client; 4] = work.clients().await?;
    let tasks = clients.iter().flat_map(|client| (0..8).map(move |_| client)).map(|client| {
        let call = work.once(client);
        async move {
            match call.await? {
                Once::Begun(mut guard) => {
                    sleep(Duration::from_millis(50)).await;
                    let value = guard.fencing_token().get().to_string();
                    completed(guard.complete(&value).await)?;
                    Ok((true, value.into_bytes()))
                }
                other => done(other).map(|outcome| (false, outcome.value().to_vec())),
            }
        }
    });
    let answers: Vec<(bool, Vec<u8>)> = join_all(tasks).await.into_iter().collect::<Result<_, Failure>>()?;
    let runs = answers.iter().filter(|(began, _)| *began).count();
    ensure!(runs == 1, "{runs} of {} callers began the work", answers.len());
    ensure!(
        answers.iter().all(|(_, value)| *value == answers[0].1),
        "the callers have different outcomes: {answers:?}"
    );
    Ok(())
}

async fn a_lost_run_is_not_begun(cx: Context) -> Verdict {
    let work = Work::of(&cx);
    let [here] = work.clients().await?;
    let answers = each_paused(work.ttl, async || {
        let call = here.once(cx.key()).ttl(work.ttl).renewal(RenewalPolicy::Never).keep(DAY).timeout(LIVENESS);
        let guard = match call.await {
            Ok(answer) => begun(answer)?,
            // Too slow for leases that are this short, or for as many calls.
            Err(error) if is_too_slow(&error) => return Ok(None),
            Err(error) => return Err(Failure::from(error)),
        };
        let loss = guard.loss();
        let _ = guard.discard().await;
        Ok(loss)
    });
    for loss in answers.await {
        let loss = loss?;
        ensure!(loss.is_none(), "after a pause a run is begun that is lost with {loss:?}");
    }
    Ok(())
}

async fn others_are_busy(cx: Context) -> Verdict {
    let work = Work::of(&cx);
    let [here, there] = work.clients().await?;
    ensure!(work.state(&here).await? == OnceState::New, "a new key is known");
    let guard = begun(work.once(&here).owner("ada").await?)?;
    for client in [&here, &there] {
        let answer = work.attempt(client).await?;
        ensure!(
            matches!(&answer, Once::Busy(Some(run)) if run.token == guard.fencing_token() && run.owner.as_deref() == Some("ada")),
            "work under way is answered {answer:?}"
        );
        let state = work.state(client).await?;
        ensure!(matches!(state, OnceState::UnderWay(_)), "work under way is {state:?} to a reader");
    }
    let _ = guard.discard().await;
    Ok(())
}

async fn the_outcome_is_remembered(cx: Context) -> Verdict {
    let work = Work::of(&cx);
    let [here, there] = work.clients().await?;
    let mut guard = begun(work.once(&here).owner("ada").await?)?;
    let value: Vec<u8> = (0..=255).collect();
    completed(guard.complete(&value).await)?;
    let token = guard.fencing_token();
    drop(guard);
    for round in 0..3 {
        for client in [&here, &there] {
            for answer in [work.once(client).await?, work.attempt(client).at_most_once().await?] {
                let outcome = done(answer)?;
                ensure!(outcome.value() == value, "another value is remembered: {:?}", outcome.value());
                ensure!(outcome.run().token == token, "another run is remembered: {outcome:?}");
                ensure!(outcome.run().owner.as_deref() == Some("ada"), "another owner is remembered: {outcome:?}");
            }
            let state = work.state(client).await?;
            ensure!(matches!(state, OnceState::Done(_)), "done work is {state:?} to a reader");
        }
        if round < 2 {
            sleep(work.ttl).await;
        }
    }
    Ok(())
}

async fn a_late_completion_is_refused(cx: Context) -> Verdict {
    let work = Work::of(&cx);
    let [here, there] = work.clients().await?;
    let mut late = begun(work.unrenewed(&here).await?)?;
    let mut guard = work.begun_soon(&there).await?;
    ensure!(guard.fencing_token() > late.fencing_token(), "the token of the later run is not greater");
    let refused = |answer: Result<(), NotCompleted>| match answer {
        Err(NotCompleted::Lost(_)) => Ok(()),
        other => Err(Failure::new(format!("the completion of a late holder is answered {other:?}"))),
    };
    refused(late.complete("late").await)?;
    ensure!(late.is_lost(), "the guard of a late holder is not lost");
    completed(guard.complete("in time").await)?;
    refused(late.complete("late").await)?;
    let outcome = done(work.once(&here).await?)?;
    ensure!(outcome.value() == b"in time", "the outcome is that of the late holder");
    Ok(())
}

/// Some completions begin in time, and are paused until the lease has ended.
async fn a_late_completion_without_a_successor_is_refused(cx: Context) -> Verdict {
    const PAUSED: u32 = 16;
    let work = Work::of(&cx);
    let [here, there] = work.clients().await?;
    let usual = {
        let mut guard = begun((*here).once(cx.key()).keep(DAY).timeout(LIVENESS).await?)?;
        let begun = Instant::now();
        completed(guard.complete("in time").await)?;
        begun.elapsed()
    };
    let late = (0..PAUSED).map(async |turn| {
        let key = cx.key();
        let call = (*here).once(&key).ttl(work.ttl).renewal(RenewalPolicy::Never).keep(DAY).timeout(LIVENESS);
        let mut guard = match call.await {
            Ok(answer) => begun(answer)?,
            // Too slow for leases that are this short, or for as many calls.
            Err(error) if is_too_slow(&error) => return Ok(()),
            Err(error) => return Err(Failure::from(error)),
        };
        let answer = {
            let mut call = pin!(guard.complete("late"));
            // The first one is not begun before the lease has ended.
            let early = if turn == 0 { None } else { timeout(usual * turn / PAUSED, &mut call).await.ok() };
            if early.is_some() {
                return Ok(());
            }
            let what = "the lease of a run to end";
            let ended = async || Ok(!matches!(there.inspect(&key).await?.state, OnceState::UnderWay(_)));
            eventually(work.ttl + SOON, what, ended).await?;
            if matches!(there.inspect(&key).await?.state, OnceState::Done(_)) {
                // It has arrived before the pause.
                return Ok(());
            }
            call.await
        };
        let state = there.inspect(&key).await?.state;
        // Of a slow store, the outcome may be unknown.
        let is_refused = answer.is_err() && matches!(state, OnceState::Interrupted(_));
        ensure!(
            is_refused,
            "the completion of a late holder without a successor is answered {answer:?}, and the work is {state:?}"
        );
        Ok(())
    });
    try_join_all(late).await.map(drop)
}

async fn a_completion_is_made_once(cx: Context) -> Verdict {
    let work = Work::of(&cx);
    let [here, there] = work.clients().await?;
    let mut guard = begun(work.once(&here).await?)?;
    completed(guard.complete("first").await)?;
    completed(guard.complete("second").await)?;
    let outcome = done(work.once(&there).await?)?;
    ensure!(outcome.value() == b"first", "a repeated completion has replaced the outcome");
    Ok(())
}

async fn a_crash_reopens_after_the_ttl(cx: Context) -> Verdict {
    let work = Work::of(&cx);
    let [here, there] = work.clients().await?;
    let before = Instant::now();
    let guard = begun(work.unrenewed(&here).await?)?;
    // Its client is alive, and may give the lease up when the margin begins.
    let end = validity(work.ttl);
    // As a process that died: neither a completion nor a release.
    std::mem::forget(guard);
    let answer = work.attempt(&there).await?;
    ensure!(answer.is_busy() || before.elapsed() >= end, "work is open before the ttl has passed: {answer:?}");
    drop(answer);
    let guard = work.begun_soon(&there).await?;
    ensure!(before.elapsed() >= end, "work was open again after {:?}", before.elapsed());
    let _ = guard.discard().await;
    Ok(())
}

async fn without_expiry_work_stays_under_way(cx: Context) -> Verdict {
    let work = Work::of(&cx);
    let [here, there] = work.clients().await?;
    // As a process that died.
    std::mem::forget(begun(work.once(&here).await?)?);
    throughout(Instant::now() + work.ttl, async || {
        let answer = work.attempt(&there).await?;
        ensure!(answer.is_busy(), "work under way is answered {answer:?}");
        Ok(())
    })
    .await
}

#[track_caller]
fn names(run: Option<&OnceRun>, guard: &OnceGuard, owner: &str) -> Verdict {
    let named = run.is_some_and(|run| run.token == guard.fencing_token() && run.owner.as_deref() == Some(owner));
    ensure!(named, "the interrupted run of {owner} is reported as {run:?}");
    Ok(())
}

async fn an_interrupted_run_is_named(cx: Context) -> Verdict {
    let work = Work::of(&cx);
    let [here, there] = work.clients().await?;
    let first = begun(work.once(&here).owner("ada").await?)?;
    ensure!(first.interrupted().is_none(), "an earlier run of a new key is reported");
    let token = first.fencing_token();
    drop(first);
    let second = begun(work.once(&there).owner("bob").await?)?;
    let run = second.interrupted().cloned();
    ensure!(
        run.as_ref().is_some_and(|run| run.token == token && run.owner.as_deref() == Some("ada")),
        "the interrupted run is reported as {run:?}"
    );
    let second_token = second.fencing_token();
    drop(second);
    let mut third = work.begun_soon(&here).await?;
    let run = third.interrupted().cloned();
    ensure!(run.as_ref().is_some_and(|run| run.token == second_token), "the last run is reported as {run:?}");
    completed(third.complete("done").await)?;
    done(work.once(&there).await?).map(drop)
}

async fn a_vanished_holder_is_named(cx: Context) -> Verdict {
    let work = Work::of(&cx);
    let [here, there] = work.clients().await?;
    let vanished = begun(work.unrenewed(&here).owner("ada").await?)?;
    let guard = work.begun_soon(&there).await?;
    names(guard.interrupted(), &vanished, "ada")?;
    let _ = guard.discard().await;
    let state = work.state(&here).await?;
    ensure!(
        matches!(&state, OnceState::Interrupted(run) if run.token == vanished.fencing_token()),
        "the work of a holder that vanished is {state:?} to a reader"
    );
    Ok(())
}

async fn at_most_once_never_begins_again(cx: Context) -> Verdict {
    let work = Work::of(&cx);
    let [here, there] = work.clients().await?;
    let first = begun(work.once(&here).at_most_once().await?)?;
    let token = first.fencing_token();
    drop(first);
    for client in [&here, &there, &here] {
        let answer = work.once(client).at_most_once().await?;
        ensure!(
            matches!(&answer, Once::Interrupted(run) if run.token == token),
            "interrupted work is answered {answer:?} at most once"
        );
    }
    let again = work.settled(&there, work.attempt(&there).at_most_once()).await?;
    ensure!(matches!(again, Once::Interrupted(_)), "the run is no longer known: {again:?}");
    Ok(())
}

async fn discarding_leaves_no_trace(cx: Context) -> Verdict {
    let work = Work::of(&cx);
    let [here, there] = work.clients().await?;
    for client in [&here, &there] {
        let call = work.once(client).fingerprint("a");
        // Of the minimum hold nothing is left either.
        let has_hold = cx.profile().capabilities().minimum_hold;
        let guard = begun(if has_hold { call.hold_at_least(DAY) } else { call }.await?)?;
        ensure!(guard.interrupted().is_none(), "a discarded run is reported as interrupted");
        completed(guard.discard().await)?;
        let state = work.state(&here).await?;
        ensure!(state == OnceState::New, "discarded work is {state:?} to a reader");
    }
    let other = begun(work.once(&here).fingerprint("b").await?)?;
    completed(other.discard().await)
}

async fn discarding_restores_an_interrupted_run(cx: Context) -> Verdict {
    let work = Work::of(&cx);
    let [here, there] = work.clients().await?;
    let first = begun(work.once(&here).await?)?;
    let token = first.fencing_token();
    drop(first);
    let second = work.begun_soon(&there).await?;
    completed(second.discard().await)?;
    let third = work.begun_soon(&here).await?;
    let run = third.interrupted();
    ensure!(run.is_some_and(|run| run.token == token), "after a discarded run the first one is reported as {run:?}");
    completed(third.discard().await)
}

async fn another_fingerprint_is_a_mismatch(cx: Context) -> Verdict {
    let work = Work::of(&cx);
    let [here, there] = work.clients().await?;
    let other = || work.once(&there).fingerprint("b");
    let guard = begun(work.once(&here).fingerprint("a").await?)?;
    let mismatch = |answer: Once, when: &str| match answer {
        Once::Mismatch(_) => Ok(()),
        answer => Err(Failure::new(format!("another request is answered {answer:?} {when}"))),
    };
    mismatch(other().await?, "while work is under way")?;
    let same = work.attempt(&there).fingerprint("a").await?;
    ensure!(same.is_busy(), "the same request is answered {same:?} while work is under way");
    drop(guard);
    mismatch(work.settled(&there, other()).await?, "after an interruption")?;
    let mut guard = begun(work.once(&here).fingerprint("a").await?)?;
    completed(guard.complete("done").await)?;
    mismatch(other().await?, "after the completion")?;
    done(work.once(&there).fingerprint("a").await?)?;
    done(work.once(&there).await?)?;
    // Fingerprints that differ only at their end.
    let (work, long) = (Work::of(&cx), "f".repeat(Fingerprint::MAX_LEN - 1));
    let guard = begun(work.once(&here).fingerprint(format!("{long}a")).await?)?;
    for other in [format!("{long}b"), long.clone(), String::new()] {
        mismatch(work.once(&there).fingerprint(other).await?, "with another end")?;
    }
    completed(guard.discard().await)
}

async fn completion_tells_the_truth(cx: Context) -> Verdict {
    let work = Work::of(&cx);
    let [here, there] = work.clients().await?;
    let mut guard = begun(work.once(&here).await?)?;
    let too_long = vec![0; OnceOptions::MAX_VALUE_LEN + 1];
    let rejected = guard.complete(&too_long).await;
    ensure!(matches!(rejected, Err(NotCompleted::Rejected(_))), "a value that is too long is answered {rejected:?}");
    let state = work.state(&there).await?;
    ensure!(matches!(state, OnceState::UnderWay(_)), "after a rejected completion the work is {state:?}");
    completed(guard.complete(&too_long[1..]).await)?;
    let outcome = done(work.once(&there).await?)?;
    ensure!(outcome.value() == &too_long[1..], "the outcome is another one");
    Ok(())
}

async fn a_waiter_gets_the_outcome(cx: Context) -> Verdict {
    let work = Work::of(&cx);
    let [here, there] = work.clients().await?;
    let mut guard = begun(work.once(&here).await?)?;
    let mut waiters: Vec<_> = [&here, &there]
        .into_iter()
        .map(|client| {
            let call = (**client).once(&work.key).into_future();
            Box::pin(call)
        })
        .collect();
    for waiter in &mut waiters {
        let early = timeout(Duration::from_millis(100), waiter).await;
        ensure!(early.is_err(), "a waiter is answered {early:?} while work is under way");
    }
    completed(guard.complete("done").await)?;
    // Together: one that is not polled may have the turn, and keep it from the other.
    let answers = within(SOON, "the waiters to get the outcome", try_join_all(waiters)).await??;
    answers.into_iter().try_for_each(|answer| done(answer).map(drop))
}

async fn a_wait_is_bounded(cx: Context) -> Verdict {
    let work = Work::of(&cx);
    let [here, there] = work.clients().await?;
    let guard = begun(work.once(&here).await?)?;
    let before = Instant::now();
    let call = work.once(&there).timeout(work.ttl);
    let answer = within(work.ttl + SOON, "a wait with a timeout to end", call).await??;
    ensure!(matches!(answer, Once::Busy(Some(_))), "a wait that ended is answered {answer:?}");
    ensure!(before.elapsed() >= work.ttl, "a wait of {:?} ended after {:?}", work.ttl, before.elapsed());
    completed(guard.discard().await)
}

async fn an_outcome_is_forgotten_after_keep(cx: Context) -> Verdict {
    let work = Work::of(&cx);
    let [here, there] = work.clients().await?;
    let mut guard = begun(work.once(&here).keep(work.ttl).await?)?;
    let before = Instant::now();
    completed(guard.complete("first").await)?;
    let answer = work.once(&there).await?;
    ensure!(
        matches!(answer, Once::Done(_)) || before.elapsed() >= work.ttl,
        "an outcome is forgotten before `keep` has passed: {answer:?}"
    );
    drop(answer);
    let is_forgotten = async || Ok(!matches!(work.state(&there).await?, OnceState::Done(_)));
    eventually(work.ttl + SOON, "an outcome to be forgotten after `keep`", is_forgotten).await?;
    ensure!(before.elapsed() >= work.ttl, "an outcome was forgotten after {:?}", before.elapsed());
    let mut guard = work.begun_soon(&there).await?;
    ensure!(guard.interrupted().is_none(), "a forgotten outcome is reported as interrupted");
    completed(guard.complete("second").await)?;
    let outcome = done(work.once(&here).await?)?;
    ensure!(outcome.value() == b"second", "a forgotten outcome is back");
    Ok(())
}

async fn work_under_way_outlives_keep(cx: Context) -> Verdict {
    let work = Work::of(&cx);
    let [here, there] = work.clients().await?;
    let mut guard = begun(work.once(&here).keep(work.ttl).await?)?;
    sleep(3 * work.ttl).await;
    let answer = work.attempt(&there).await?;
    ensure!(answer.is_busy(), "work under way is answered {answer:?} after `keep`");
    let before = Instant::now();
    completed(guard.complete("done").await)?;
    let state = work.state(&there).await?;
    ensure!(
        matches!(state, OnceState::Done(_)) || before.elapsed() >= work.ttl,
        "an outcome is forgotten before `keep` has passed since its completion: {state:?}"
    );
    Ok(())
}

async fn a_dropped_call_leaves_nothing(cx: Context) -> Verdict {
    let work = Work::of(&cx);
    let [here, there] = work.clients().await?;
    for polls in 0..24 {
        {
            let mut call = pin!(work.once(&here).into_future());
            for _ in 0..polls {
                let step = std::future::poll_fn(|cx| Poll::Ready(call.as_mut().poll(cx))).await;
                if let Poll::Ready(answer) = step {
                    completed(begun(answer?)?.discard().await)?;
                    break;
                }
                // Lets what the call waits for happen, in most cases.
                sleep(Duration::from_millis(1)).await;
            }
        }
        let guard = begun(work.once(&there).at_most_once().await?)?;
        ensure!(guard.interrupted().is_none(), "a call that was dropped after {polls} polls has begun the work");
        completed(guard.discard().await)?;
    }
    Ok(())
}
