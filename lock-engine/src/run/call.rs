//! One request to the store: in line until a call takes it, then in flight until it ends.
//!
//! A [`Call`] is one request. If it is dropped, it leaves the line, or its call ends where it is,
//! with whatever effect at the store. A call that it shares with others runs to its end.
//!
//! [`InFlight`] owns a call until it is answered, one call at a time. A call that has not been
//! answered is finished; it is not repeated concurrently (rule R11 of distlock-mongo's PROTOCOL).
//! Acquisitions, releases and writes use it, and differ in what they do without an answer.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::time::Duration;

use distlock_api::{ErrorKind, LockError, Phase, Result};
use futures_util::FutureExt;
use tokio::sync::oneshot;
use tokio::task::yield_now;
use tokio::time::{Instant, timeout_at};

use crate::store::answer_timeout::{answered_by, answered_within};
use crate::store::{InLine, LeaseStore, Overload};

/// A request that has not been answered yet.
pub(crate) struct Call<T> {
    pub(crate) stage: Stage,
    pub(crate) work: Work<T>,
}

pub(crate) enum Stage {
    InLine {
        line: InLine,
        /// Whether its caller makes others with it, which have not entered yet.
        awaits_group: bool,
        sending: oneshot::Receiver<Sending>,
    },
    Sent(Sending),
    /// Its turn would come too late.
    NotSent(Overload),
}

/// When a request was sent, and whether with others.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sending {
    /// Before the call (C3).
    pub(crate) at: Instant,
    pub(crate) is_batch: bool,
}

pub(crate) enum Work<T> {
    /// It is sent when it is polled first.
    InPlace(Pin<Box<dyn Future<Output = Result<T>> + Send>>),
    InTask(oneshot::Receiver<Result<T>>),
}

impl<T: Send + 'static> Call<T> {
    /// Waits for the answer until `limit`, and for `answer_timeout` from sending. `None` if it has
    /// not come by then; the call continues.
    ///
    /// # Cancel safety
    /// Cancel safe: the call continues.
    pub(crate) async fn answer(&mut self, limit: Option<Instant>, answer_timeout: Duration) -> Option<Result<T>> {
        if let Stage::InLine { line, awaits_group, sending } = &mut self.stage {
            if *awaits_group {
                yield_now().await;
                // Not before: a call that is dropped meanwhile may be awaited again.
                *awaits_group = false;
                line.arrived();
            }
            let sent = match sent_by(limit, line, sending).await? {
                Some(sent) => Stage::Sent(sent),
                None => Stage::NotSent(line.overload()),
            };
            self.stage = sent;
        }
        let sent = match &self.stage {
            Stage::Sent(sent) => sent.at,
            Stage::NotSent(overload) => {
                let error = overloaded(*overload);
                return Some(Err(error));
            }
            Stage::InLine { .. } => unreachable!("it has left the line"),
        };
        let left = (sent + answer_timeout).saturating_duration_since(Instant::now());
        let answer = answered_within(left, self.ended());
        match limit {
            Some(limit) => answered_by(limit, answer).await.flatten(),
            None => answer.await,
        }
    }

    async fn ended(&mut self) -> Result<T> {
        match &mut self.work {
            Work::InPlace(request) => request.await,
            Work::InTask(answer) => answer.await.unwrap_or_else(|_| Err(ended_with_runtime())),
        }
    }

    fn sending(&self) -> Option<Sending> {
        match self.stage {
            Stage::Sent(sent) => Some(sent),
            Stage::InLine { .. } | Stage::NotSent(_) => None,
        }
    }

    /// Returns the instant before the call was sent (C3); `None` if it is in line, or was never
    /// sent.
    pub(crate) fn sent_at(&self) -> Option<Instant> {
        self.sending().map(|sent| sent.at)
    }

    /// Leaves the line, if the request is still in it. Returns whether it was not sent, and will
    /// not be.
    fn leave(&mut self) -> bool {
        if let Stage::InLine { line, sending, .. } = &mut self.stage {
            line.leave();
            // From here on it is not sent.
            sending.close();
            if let Ok(sent) = sending.try_recv() {
                self.stage = Stage::Sent(sent);
            }
        }
        !matches!(self.stage, Stage::Sent(_))
    }

    /// Returns the error of a request that was not sent.
    fn not_sent(&self) -> Option<LockError> {
        match &self.stage {
            Stage::InLine { line, .. } => Some(overloaded(line.overload())),
            Stage::NotSent(overload) => Some(overloaded(*overload)),
            Stage::Sent(_) => None,
        }
    }
}

/// Waits until a request has been sent; `None` at the limit. The inner value is `None` if it will
/// not be sent: the store had no room in time, or its runtime has ended.
async fn sent_by(
    limit: Option<Instant>,
    line: &InLine,
    sending: &mut oneshot::Receiver<Sending>,
) -> Option<Option<Sending>> {
    let (mut due, mut deadline) = (Some(line.due), line.deadline);
    loop {
        let until = [due, limit, deadline].into_iter().flatten().min();
        let sent = match until {
            Some(until) => timeout_at(until, &mut *sending).await,
            None => Ok((&mut *sending).await),
        };
        if let Ok(sent) = sent {
            return Some(sent.ok());
        }
        let has_passed = |instant: Option<Instant>| instant.is_some_and(|instant| instant <= Instant::now());
        if has_passed(limit) {
            return None;
        }
        if has_passed(deadline) {
            if line.leave() {
                return Some(None);
            }
            // A call has just taken it.
            (due, deadline) = (None, None);
        } else {
            line.overdue();
            due = None;
        }
    }
}

/// The call of one request, until it is answered: at most one at a time (R11).
///
/// Its owner decides what becomes of a call without an answer: wait for it again, move it to the
/// background, or give it up.
pub(crate) struct InFlight<T>(Option<Call<T>>);

/// The store's answer to a call.
pub(crate) struct Answered<T> {
    pub(crate) sent: Sending,
    pub(crate) answer: Result<T>,
}

impl<T: Send + 'static> InFlight<T> {
    /// Creates a value without a call.
    pub(crate) fn none() -> Self {
        Self(None)
    }

    /// Returns whether there is a call that has not been answered.
    pub(crate) fn is_under_way(&self) -> bool {
        self.0.is_some()
    }

    /// Starts a new call; none may be under way.
    pub(crate) fn begin(&mut self, call: Call<T>) {
        assert!(self.0.is_none(), "R11: one call at a time");
        self.0 = Some(call);
    }

    /// Waits for the answer to the call under way until `limit`, and for `answer_timeout` from
    /// sending. `None` without an answer; the call stays.
    ///
    /// # Cancel safety
    /// Cancel safe: the call stays.
    pub(crate) async fn answer(&mut self, limit: Option<Instant>, answer_timeout: Duration) -> Option<Answered<T>> {
        let call = self.0.as_mut()?;
        let answer = call.answer(limit, answer_timeout).await?;
        let sent = call.sending().unwrap_or_else(|| Sending { at: Instant::now(), is_batch: false });
        self.0 = None;
        Some(Answered { sent, answer })
    }

    /// Leaves the line with a call that has not been sent.
    pub(crate) fn leave_line(&mut self) {
        drop(self.0.take_if(Call::leave));
    }

    /// Returns the error for a caller that leaves without an answer. A call in line leaves the
    /// line; one that was sent stays.
    pub(crate) fn leave_unanswered(&mut self, store: &dyn LeaseStore) -> LockError {
        let not_sent = self.0.take_if(Call::leave).and_then(|call| call.not_sent());
        not_sent.unwrap_or_else(|| {
            let sent = self.0.as_ref().and_then(Call::sent_at);
            not_answered(store, sent.map(|sent| sent.elapsed()).unwrap_or_default())
        })
    }

    /// Gives up a call that has been sent. A call in line stays there.
    pub(crate) fn give_up_sent(&mut self) {
        drop(self.0.take_if(|call| call.sent_at().is_some()));
    }

    /// Moves the call out, to be finished elsewhere.
    pub(crate) fn take(&mut self) -> Self {
        Self(self.0.take())
    }

    /// Waits for the answer for `answer_timeout` from now, including the time until the call is
    /// sent.
    pub(crate) async fn ended_within(&mut self, answer_timeout: Duration) -> Option<Result<T>> {
        answered_within(answer_timeout, self.0.as_mut()?.ended()).await
    }
}

fn ended_with_runtime() -> LockError {
    let message = "a call of the store ended with its runtime: close the provider before the runtime ends";
    LockError::new(ErrorKind::Other, message).outcome_unknown()
}

/// Returns the error for a call that was sent so long ago, and that its caller no longer waits for.
/// The store may know why there is no answer.
fn not_answered(store: &dyn LeaseStore, waited: Duration) -> LockError {
    let message = "the store did not answer in time: look at its load, or allow the call more time";
    let known = catch_unwind(AssertUnwindSafe(|| store.extras().remote?.why_unanswered(waited))).ok().flatten();
    known.unwrap_or_else(|| LockError::timeout(Phase::Request, message)).outcome_unknown()
}

/// Runs one call of the store. A panic of the store counts as a failure of unknown outcome. It
/// harms neither the caller's clean-up nor other leases.
pub(crate) async fn guarded<T>(call: impl Future<Output = Result<T>>) -> Result<T> {
    AssertUnwindSafe(call).catch_unwind().await.unwrap_or_else(|_| {
        let message = "the lease store panicked: report that to the author of the backend";
        Err(LockError::new(ErrorKind::Other, message).outcome_unknown())
    })
}

/// Returns the error for a call that was not sent.
fn overloaded(overload: Overload) -> LockError {
    let Overload { in_line, at_once, wait, takes } = overload;
    let message = format!(
        "the store is overloaded: it takes {at_once} calls at once and has no room for this one now; {in_line} calls \
         wait before it, its turn would come in about {} ms, and calls take about {} ms, so the answer would come too \
         late; try again later, or raise that number where the store has room",
        wait.as_millis(),
        takes.as_millis()
    );
    LockError::overloaded(in_line, message)
}
