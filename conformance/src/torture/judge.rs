//! The verdict on a round.

use std::time::Duration;

use distlock_api::LockKey;

use super::field::{Field, Work};
use crate::bounded::{LIVENESS, eventually};
use crate::client::{Client, is_settled};
use crate::failure::{Failure, Verdict, ensure};
use crate::history::{Call, End, Expected, What};
use crate::leases::renewed;

/// A round with less than this shows nothing: the time before its faults is enough for many times as much.
const EXPECTED: Expected = Expected { grants: 20, contended: 5 };

/// How long anything may take that must come after a round.
const SETTLES: Duration = LIVENESS.saturating_mul(2);

/// Everybody is at rest. Returns what the round came to, for people.
pub(super) async fn judge(
    work: &Work,
    field: &mut Field,
    clients: &[Client],
    name: &str,
    at_work: Duration,
) -> Result<String, Failure> {
    everybody_is_well(work, field, clients).await?;
    books_balance(field, clients).await?;
    if let Some(client) = clients.first() {
        for key in &field.keys {
            settle(work, client, key).await?;
        }
    }
    let calls = work.recorder.calls();
    tokens_go_on(field, &calls)?;
    work.recorder.verdict(&field.keys, EXPECTED)?;

    let granted: Vec<Duration> = calls.iter().filter_map(granted_at).filter(|at| *at <= at_work).collect();
    let stall = longest_stall(granted.clone(), at_work);
    let released =
        calls.iter().filter(|call| matches!(call.what, What::Granted { end: End::Released { .. }, .. })).count();
    work.tally.passed(calls.len() + released, granted.len(), at_work);
    work.tally.stalled(stall, name);
    Ok(format!("{} grants in {at_work:.1?}, longest stall {stall:.1?}", granted.len()))
}

/// Health came back: each client is granted a lock that all of them use.
async fn everybody_is_well(work: &Work, field: &mut Field, clients: &[Client]) -> Verdict {
    let key = &field.keys[1];
    for client in clients {
        let guard = client.take(key, renewed(work.cx.short())).await?;
        let outcome = guard.release().await?;
        ensure!(outcome.is_released(), "after all faults the release of a held lock said {outcome:?}");
    }
    for player in &mut field.children {
        let granted = player.child.acquire(key, work.cx.short(), true, LIVENESS).await?;
        ensure!(granted.is_some(), "after all faults a child process was not granted a lock within {LIVENESS:?}");
        ensure!(player.child.release().await?, "after all faults a child process lost a lock at once");
    }
    Ok(())
}

/// C23: everything is accounted for, and nothing goes on. An acquisition that is settled in the
/// background would otherwise take effect in the next round, whose history does not have it.
async fn books_balance(field: &mut Field, clients: &[Client]) -> Verdict {
    for client in clients {
        let balanced =
            eventually(SETTLES, "the books of a client to balance", async || Ok(is_settled(&client.accounting())));
        balanced
            .await
            .map_err(|failure| failure.reworded(|message| format!("{message}: {:?}", client.accounting())))?;
    }
    for player in &mut field.children {
        let mut books = None;
        let balanced = eventually(SETTLES, "the books of a child process to balance", async || {
            books = player.child.unbalanced().await?;
            Ok(books.is_none())
        });
        let balanced = balanced.await;
        balanced.map_err(|failure| failure.reworded(|message| format!("{message}: {books:?}")))?;
    }
    Ok(())
}

/// Waits until the store has nothing left of a key, and notes what it says in the end: the verdict is the history's.
async fn settle(work: &Work, client: &Client, key: &LockKey) -> Verdict {
    let Some(admin) = client.admin() else { return Ok(()) };
    let deadline = tokio::time::Instant::now() + SETTLES;
    loop {
        let asked = work.recorder.now();
        let info = admin.inspect(key).await?;
        let waiting = info.as_ref().and_then(|info| info.waiting).unwrap_or(0);
        if info.is_none() || tokio::time::Instant::now() > deadline {
            work.recorder.left(client.number(), key, info.is_some(), waiting, asked);
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// C5 from round to round; within one the history says it.
fn tokens_go_on(field: &mut Field, calls: &[Call]) -> Verdict {
    for (key, greatest) in field.keys.iter().zip(&mut field.tokens) {
        let of_key = calls.iter().filter(|call| call.key == key.as_str());
        let tokens = of_key.filter_map(|call| match call.what {
            What::Granted { token, .. } => Some((token, call)),
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
    matches!(call.what, What::Granted { .. }).then_some(call.answered).flatten()
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
