//! The verdict on a round.

use std::time::Duration;

use distlock_api::LockKey;

use super::participants::{Participants, Work};
use crate::bounded::{LIVENESS, eventually};
use crate::client::{Client, is_settled};
use crate::failure::{Failure, Verdict, ensure};
use crate::history::{Call, CallKind, End, Expected};
use crate::leases::renewed;

/// A round with less than this proves nothing. The time before its faults is enough for many times
/// as much.
const EXPECTED: Expected = Expected { grants: 20, contended: 5 };

/// How long anything may take that must happen after a round.
const SETTLES: Duration = LIVENESS.saturating_mul(2);

/// Judges a round after all work has ended. Returns a summary for the terminal.
pub(super) async fn judge(
    work: &Work,
    participants: &mut Participants,
    clients: &[Client],
    name: &str,
    at_work: Duration,
) -> Result<String, Failure> {
    ensure_all_can_work(work, participants, clients).await?;
    ensure_settled(participants, clients).await?;
    if let Some(client) = clients.first() {
        for key in &participants.keys {
            record_leftovers(work, client, key).await?;
        }
    }
    let calls = work.recorder.calls();
    ensure_tokens_increase(participants, &calls)?;
    work.recorder.verdict_amid_faults(&participants.keys, EXPECTED)?;

    let granted: Vec<Duration> = calls.iter().filter_map(granted_at).filter(|at| *at <= at_work).collect();
    let stall = longest_stall(granted.clone(), at_work);
    let released =
        calls.iter().filter(|call| matches!(call.what, CallKind::Granted { end: End::Released { .. }, .. })).count();
    work.tally.passed(calls.len() + released, granted.len(), at_work);
    work.tally.stalled(stall, name);
    Ok(format!("{} grants in {at_work:.1?}, longest stall {stall:.1?}", granted.len()))
}

/// Ensures that each client is granted a lock that all of them use.
async fn ensure_all_can_work(work: &Work, participants: &mut Participants, clients: &[Client]) -> Verdict {
    let key = &participants.keys[1];
    for client in clients {
        let guard = client.take(key, renewed(work.cx.short())).await?;
        let outcome = guard.release().await?;
        ensure!(outcome.is_released(), "after all faults the release of a held lock returned {outcome:?}");
    }
    for child in &mut participants.children {
        let granted = child.process.acquire(key, work.cx.short(), true, LIVENESS).await?;
        ensure!(granted.is_some(), "after all faults a child process was not granted a lock within {LIVENESS:?}");
        ensure!(child.process.release().await?, "after all faults a child process lost a lock right after its grant");
    }
    Ok(())
}

/// C23: ensures that the accounting balances and that nothing continues. An acquisition that is
/// settled in the background would otherwise take effect in the next round, whose history does not
/// have it.
async fn ensure_settled(participants: &mut Participants, clients: &[Client]) -> Verdict {
    for client in clients {
        let balanced = eventually(SETTLES, "the accounting of a client to be settled", async || {
            Ok(is_settled(&client.accounting()))
        });
        balanced
            .await
            .map_err(|failure| failure.reworded(|message| format!("{message}: {:?}", client.accounting())))?;
    }
    for child in &mut participants.children {
        let mut accounting = None;
        let balanced = eventually(SETTLES, "the accounting of a child process to be settled", async || {
            accounting = child.process.unsettled_accounting().await?;
            Ok(accounting.is_none())
        });
        let balanced = balanced.await;
        balanced.map_err(|failure| failure.reworded(|message| format!("{message}: {accounting:?}")))?;
    }
    Ok(())
}

/// Waits until the store has nothing left of a key, and records what it shows at the end. The
/// verdict is the history's.
async fn record_leftovers(work: &Work, client: &Client, key: &LockKey) -> Verdict {
    let Some(admin) = client.admin() else { return Ok(()) };
    let deadline = tokio::time::Instant::now() + SETTLES;
    loop {
        let started = work.recorder.now();
        let info = admin.inspect(key).await?;
        let waiting = info.as_ref().and_then(|info| info.waiting).unwrap_or(0);
        if info.is_none() || tokio::time::Instant::now() > deadline {
            work.recorder.left(client.number(), key, info.is_some(), waiting, started);
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// C5 from round to round. Within a round the history is judged.
fn ensure_tokens_increase(participants: &mut Participants, calls: &[Call]) -> Verdict {
    for (key, greatest) in participants.keys.iter().zip(&mut participants.tokens) {
        let of_key = calls.iter().filter(|call| call.key == key.as_str());
        let tokens = of_key.filter_map(|call| match call.what {
            CallKind::Granted { token, .. } => Some((token, call)),
            _ => None,
        });
        let before = *greatest;
        for (token, call) in tokens {
            if token <= before {
                let failure = Failure::new(format!("token {token} follows token {before} of the rounds before (C5)"));
                return Err(failure.shown_by(vec![call.clone()]));
            }
            *greatest = token.max(*greatest);
        }
    }
    Ok(())
}

fn granted_at(call: &Call) -> Option<Duration> {
    matches!(call.what, CallKind::Granted { .. }).then_some(call.answered).flatten()
}

/// The longest time without a grant, from the beginning of the work to its end.
fn longest_stall(mut granted: Vec<Duration>, until: Duration) -> Duration {
    granted.push(until);
    granted.sort();
    let mut before = Duration::ZERO;
    let gaps = granted.into_iter().map(|at| at.saturating_sub(std::mem::replace(&mut before, at)));
    gaps.max().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stall_may_be_at_the_beginning_and_at_the_end() {
        let seconds = |all: &[u64]| all.iter().copied().map(Duration::from_secs).collect::<Vec<_>>();
        for (granted, stall) in [(&[][..], 10), (&[7, 1], 6), (&[9, 8, 3], 5), (&[1, 2, 3], 7)] {
            assert_eq!(
                longest_stall(seconds(granted), Duration::from_secs(10)),
                Duration::from_secs(stall),
                "{granted:?}"
            );
        }
    }
}
