//! C14: batches in which one request fails, beside modes, the queue and the minimum hold.
//!
//! A request fails here by what any store can meet: its key is taken or closed, its queue is full,
//! or its lease has ended. A record that cannot be read would be an error of one request; only the
//! tests of a store know how to make one. Where a key can be blocked at the server,
//! `store_batches_beside_a_blocked_key` makes one request of a batch fail with an error.

use distlock_api::{Mode, ReleaseOutcome};
use distlock_engine::store::{Attempt, Claim, Grant, QueueStanding, Release, Renewal, Reply, Standing, Ticket};
use tokio::time::sleep;

use super::batch::decided;
use super::{AFTER, BRIEF, CLAIM, TICKET, permits};
use crate::bare::{BareStore, LEASE, last};
use crate::bounded::SOON;
use crate::check::checks;
use crate::context::Context;
use crate::failure::{Failure, Verdict, ensure, located_at_caller};

checks! {
    C14 store_attempts_beside_a_refused_one [Store]
        "If one attempt of a batch is refused – its key is held, closed, or has a full queue – the \
         others are granted, and nothing of it is left. A failure means that one key in use costs \
         the callers of others, or that a refused caller stands in the queue.";
    C14 store_renews_beside_an_ended_one [Store, Fair]
        "A batch renews leases and refreshes tickets, each by itself, also beside a lease of another \
         claim and a ticket that is gone. A failure means that one end costs the leases and places \
         of others.";
    C14 store_withdraws_beside_an_ended_one [Store, Fair]
        "A batch of withdrawals does for each claim what a single one does: it ends its lease and \
         grants it to the first waiter, removes its ticket, or does nothing for a claim that has \
         nothing. A failure means that leases and tickets stay behind, or that another claim loses \
         its own.";
}

/// Why an attempt is refused.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Refused {
    Held,
    HeldByReader,
    NoPermitLeft,
    QueueIsFull,
    Closed,
}

/// A ticket of a queue that has room for one.
const ALONE: Ticket = Ticket::new(LEASE, CLAIM, 1);

impl Refused {
    /// What the backend has.
    fn all(cx: &Context) -> Vec<Self> {
        let has = cx.profile().capabilities();
        let reasons = [
            (Self::Held, true),
            (Self::HeldByReader, has.shared),
            (Self::NoPermitLeft, has.permits),
            (Self::QueueIsFull, has.fair),
            (Self::Closed, has.minimum_hold),
        ];
        reasons.into_iter().filter(|(_, has)| *has).map(|(reason, _)| reason).collect()
    }

    fn mode(self) -> Mode {
        if self == Self::NoPermitLeft { permits(1, 3) } else { Mode::Exclusive }
    }

    /// Makes the reason, and returns the claim that holds the key, if one does.
    #[track_caller]
    fn prepare(
        self,
        store: &BareStore,
        attempt: &Attempt,
    ) -> impl Future<Output = Result<Option<(Claim, Grant)>, Failure>> {
        located_at_caller(async move {
            let mode = match self {
                Self::HeldByReader => Mode::Shared,
                Self::NoPermitLeft => permits(3, 3),
                _ => Mode::Exclusive,
            };
            let holder = store.claim_as(attempt.claim.key(), mode);
            let grant = store.take(&holder, LEASE).await?;
            match self {
                Self::QueueIsFull => {
                    store.queued(&store.claim(holder.key()), ALONE, 0).await?;
                }
                Self::Closed => {
                    let release = Release::new(holder).with_hold_at_least(LEASE);
                    let outcome = store.release_as(&release).await?;
                    ensure!(outcome.is_released(), "a release with a minimum hold returned {outcome:?}");
                    return Ok(None);
                }
                _ => {}
            }
            Ok(Some((holder, grant)))
        })
    }
}

async fn store_attempts_beside_a_refused_one(cx: Context) -> Verdict {
    const LEN: usize = 5;
    let [a, b] = cx.stores().await?;
    // In the first, the middle and the last place.
    let reasons = [Refused::Held, Refused::Held].into_iter().chain(Refused::all(&cx));
    for (reason, place) in reasons.zip([0, LEN / 2, LEN - 1].into_iter().cycle()) {
        let attempts: Vec<Attempt> = (0..LEN)
            .map(|at| {
                let mode = if at == place { reason.mode() } else { Mode::Exclusive };
                let attempt = a.attempt(&a.claim_as(&cx.key(), mode), LEASE);
                if reason == Refused::QueueIsFull { attempt.with_ticket(ALONE) } else { attempt }
            })
            .collect();
        let failing = &attempts[place];
        let holder = reason.prepare(&b, failing).await?;
        let answers = a.ask_all(&attempts).await?;
        ensure!(
            answers.len() == LEN,
            "{LEN} attempts, one of them refused ({reason:?}), had {} answers",
            answers.len()
        );
        for (at, (answer, attempt)) in answers.into_iter().zip(&attempts).enumerate() {
            match decided(&a, attempt, answer).await? {
                Reply::Granted(grant) if at != place => {
                    a.ensure_held(&attempt.claim, &grant, "it was granted in a batch").await?;
                    let other = b.attempt(&b.claim(attempt.claim.key()), LEASE);
                    b.busy(&other, "a batch of another store was granted this key").await?;
                }
                Reply::Busy(busy) if at == place => {
                    let is_full = busy.standing == QueueStanding::Full;
                    ensure!(
                        is_full == (reason == Refused::QueueIsFull),
                        "in a batch an attempt that is refused ({reason:?}) was answered {busy:?}"
                    );
                }
                answer => {
                    return Err(Failure::new(format!(
                        "in a batch, whose attempt {place} is refused ({reason:?}), attempt {at} was answered {answer:?}"
                    )));
                }
            }
        }
        if cx.profile().capabilities().fair {
            let expected = u32::from(reason == Refused::QueueIsFull);
            let waiters = b.waiters(&failing.claim).await?;
            ensure!(
                waiters.is_none_or(|waiters| waiters == expected),
                "an attempt was refused in a batch ({reason:?}), and {waiters:?} claims wait instead of {expected}"
            );
            a.ensure_gone(&Renewal::ticket(failing.claim.clone(), TICKET), "it was refused in a batch").await?;
        }
        if let Some((holder, grant)) = holder {
            b.ensure_held(&holder, &grant, "an attempt for its key was refused in a batch").await?;
            b.give_back(&holder).await?;
            if reason != Refused::QueueIsFull {
                let next = b.attempt(&b.claim(holder.key()), LEASE);
                b.granted(&next, "its only holder has released the key").await?;
            }
        }
    }
    Ok(())
}

async fn store_renews_beside_an_ended_one(cx: Context) -> Verdict {
    let [a, b] = cx.stores().await?;
    let (mut renewals, mut others) = (Vec::new(), Vec::new());
    // A lease, a ticket behind another claim's, one that is gone, and the lease of another claim.
    for _ in 0..2 {
        let held = a.claim(&cx.key());
        let grant = a.take(&held, LEASE).await?;
        renewals.push((Renewal::lease(held, last(&grant), LEASE * 2), "Held"));
        for (leaves, expected) in [(false, "Waiting"), (true, "Gone")] {
            let holder = b.claim(&cx.key());
            let waiter = a.claim(holder.key());
            b.take(&holder, LEASE).await?;
            b.queued(&b.claim(holder.key()), TICKET, 0).await?;
            a.queued(&waiter, TICKET, 1).await?;
            if leaves {
                a.withdraw(&waiter).await?;
            }
            renewals.push((Renewal::ticket(waiter, TICKET), expected));
        }
        let other = b.claim(&cx.key());
        let grant = b.take(&other, LEASE).await?;
        renewals.push((Renewal::lease(a.claim(other.key()), last(&grant), LEASE), "Gone"));
        others.push((other, grant));
    }
    for _ in 0..2 {
        let sent: Vec<Renewal> = renewals.iter().map(|(renewal, _)| renewal.clone()).collect();
        let standings = a.extend_all(&sent).await?;
        ensure!(standings.len() == sent.len(), "{} renewals had {} answers", sent.len(), standings.len());
        for (standing, (renewal, expected)) in standings.iter().zip(&renewals) {
            let seen = match standing {
                Ok(Standing::Held { .. }) => "Held",
                Ok(Standing::Waiting(busy)) if busy.standing == QueueStanding::Queued { ahead: 1 } => "Waiting",
                Ok(Standing::Gone(_)) => "Gone",
                _ => "something else",
            };
            ensure!(
                seen == *expected,
                "in a batch {renewal:?} was answered {standing:?} instead of {expected}: {standings:?}"
            );
        }
        renewals.reverse();
    }
    for (other, grant) in &others {
        b.ensure_held(other, grant, "a batch had a renewal of another claim of its key").await?;
    }
    Ok(())
}

/// What a claim has when it is withdrawn.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Has {
    Lease,
    /// A lease that another claim waits for.
    WantedLease,
    Ticket,
    /// Nothing: another claim holds the key.
    Nothing,
    /// Nothing any longer.
    ExpiredLease,
}

/// A claim with its lease, and another claim of its key with its own.
type Withdrawn = (Has, [Claim; 2], [Option<Grant>; 2]);

async fn store_withdraws_beside_an_ended_one(cx: Context) -> Verdict {
    let [a, b] = cx.stores().await?;
    let claims = [
        Has::Nothing,
        Has::Lease,
        Has::ExpiredLease,
        Has::Ticket,
        Has::WantedLease,
        Has::Nothing,
        Has::Ticket,
        Has::Lease,
    ];
    let can_expire = cx.profile().capabilities().expiry;
    let mut withdrawn: Vec<Withdrawn> = Vec::new();
    for has in claims.into_iter().filter(|has| can_expire || *has != Has::ExpiredLease) {
        let claim = a.claim(&cx.key());
        let other = b.claim(claim.key());
        let (mut own, mut others) = (None, None);
        match has {
            Has::Lease => own = Some(a.take(&claim, LEASE).await?),
            Has::ExpiredLease => own = Some(a.take(&claim, BRIEF).await?),
            Has::WantedLease => {
                own = Some(a.take(&claim, LEASE).await?);
                b.queued(&other, TICKET, 0).await?;
            }
            Has::Ticket => {
                others = Some(b.take(&other, LEASE).await?);
                a.queued(&claim, TICKET, 0).await?;
            }
            Has::Nothing => others = Some(b.take(&other, LEASE).await?),
        }
        withdrawn.push((has, [claim, other], [own, others]));
    }
    sleep(BRIEF + AFTER).await;
    let sent: Vec<Claim> = withdrawn.iter().map(|(_, [claim, _], _)| claim.clone()).collect();
    let answers = a.withdraw_all(&sent, SOON).await?;
    ensure!(answers.len() == sent.len(), "{} withdrawals had {} answers", sent.len(), answers.len());
    for (answer, (has, [claim, other], [own, others])) in answers.into_iter().zip(&withdrawn) {
        match answer {
            Ok(()) => {}
            // What a batch does not withdraw is withdrawn alone.
            Err(error) if error.is_retryable() => a.withdraw(claim).await?,
            Err(error) => ensure!(false, "in a batch the withdrawal of a claim (has: {has:?}) failed with {error:?}"),
        }
        if let Some(own) = own {
            a.ensure_gone(&Renewal::lease(claim.clone(), last(own), LEASE), "its claim was withdrawn in a batch")
                .await?;
        }
        if let Some(others) = others {
            b.ensure_held(other, others, "another claim of its key was withdrawn in a batch").await?;
        }
        match has {
            Has::Lease | Has::ExpiredLease => {
                b.take(other, LEASE).await?;
            }
            Has::WantedLease => {
                let newcomer = a.attempt(&a.claim(claim.key()), LEASE);
                a.busy(&newcomer, "a batch has withdrawn the holder of a key that had a waiter").await?;
                let attempt = b.attempt(other, LEASE).with_ticket(TICKET);
                b.granted(&attempt, "a batch has withdrawn the holder that this waiter waited for").await?;
            }
            Has::Ticket => {
                a.ensure_gone(&Renewal::ticket(claim.clone(), TICKET), "its claim was withdrawn in a batch").await?;
                let waiters = b.waiters(other).await?;
                ensure!(
                    waiters.is_none_or(|waiters| waiters == 0),
                    "a batch has withdrawn the only waiter, and {waiters:?} claims wait"
                );
            }
            Has::Nothing => {
                let outcome = a.release(claim).await?;
                ensure!(
                    outcome == ReleaseOutcome::AlreadyLost,
                    "the release of a claim without a lease returned {outcome:?}"
                );
            }
        }
    }
    Ok(())
}
