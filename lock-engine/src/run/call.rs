//! One request to the store: in line until the store has room for it, then in flight until it ends.
//!
//! A [`Call`] is one request. If it is dropped, it ends where it is, with whatever effect at the
//! store. A call in line has sent nothing, and leaves the line with its caller.
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
use tokio_util::task::AbortOnDropHandle;

use crate::run::clock;
use crate::store::{InLine, Lane, Lanes, LeaseStore, LinePosition, Overload, Permit, PermitReply};

/// A request that has not been answered yet.
pub(crate) struct Call<T> {
    stage: Stage,
    work: Work<T>,
}

enum Stage {
    InLine(LinePosition, oneshot::Receiver<Instant>),
    /// It waits for company, and then for the store.
    Gathering(Gathering),
    Sent(Instant),
    /// It was not sent in time.
    NotSent,
}

/// A request that waits for company.
struct Gathering {
    position: Box<dyn Position>,
    /// Whether its caller makes others with it, which have not arrived yet.
    awaits_others: bool,
    /// When it has waited long enough.
    due: Instant,
    starts: oneshot::Receiver<Instant>,
}

/// A place among the requests that wait for company.
pub(crate) trait Position: Send + Sync {
    /// Leaves, if the request still waits here.
    fn leave(&self);

    /// The requests that the caller makes with this one have arrived.
    fn arrived(&self);

    /// The request has waited long enough.
    fn overdue(&self);

    /// How the request stands there.
    fn overload(&self) -> Overload;
}

enum Work<T> {
    /// A store without lanes is polled in place: no task on the fast path.
    Here(Pin<Box<dyn Future<Output = Result<T>> + Send>>),
    /// A call with a permit is a task of its own, so that a caller that does not poll keeps no
    /// permit from others.
    Task(AbortOnDropHandle<Result<T>>),
    /// A part of a batch, whose call runs to its end whatever becomes of this part.
    Part(oneshot::Receiver<Result<T>>),
}

impl<T: Send + 'static> Call<T> {
    /// Starts a request, with the caller's `deadline` if it has one. With `admission`, fails at
    /// once if its turn in the line would come too late.
    pub(crate) fn new(
        lanes: Option<Lanes>,
        lane: Lane,
        deadline: Option<Instant>,
        admission: bool,
        request: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<Self> {
        let request = guarded(request);
        let Some(lanes) = lanes else {
            return Ok(Self { stage: Stage::Sent(clock::sending()), work: Work::Here(Box::pin(request)) });
        };
        match lanes.enter(lane, deadline, admission) {
            PermitReply::Now(permit) => {
                // Before the task: another thread may send the request at once (R1).
                let stage = Stage::Sent(clock::sending());
                let task = AbortOnDropHandle::new(tokio::spawn(with_permit(permit, request)));
                Ok(Self { stage, work: Work::Task(task) })
            }
            PermitReply::Later(in_line) => {
                let (started, starts) = oneshot::channel();
                let stage = Stage::InLine(in_line.position(), starts);
                let task = AbortOnDropHandle::new(tokio::spawn(send_later(in_line, started, request)));
                Ok(Self { stage, work: Work::Task(task) })
            }
            PermitReply::Refused(overload) => Err(overloaded(overload)),
        }
    }

    /// A request that waits for company until `due`, and goes in a batch. `awaits_others` if its
    /// caller makes several: as a rule they have arrived when it is polled again.
    pub(crate) fn gathering(
        position: impl Position + 'static,
        awaits_others: bool,
        due: Instant,
        (starts, answer): (oneshot::Receiver<Instant>, oneshot::Receiver<Result<T>>),
    ) -> Self {
        let gathering = Gathering { position: Box::new(position), awaits_others, due, starts };
        Self { stage: Stage::Gathering(gathering), work: Work::Part(answer) }
    }

    /// Whether the request goes in a batch: then its claim is in no order with its later calls
    /// (R24).
    pub(crate) fn is_part(&self) -> bool {
        matches!(self.work, Work::Part(_))
    }

    /// Waits for the answer until `limit`, and for `patience` from sending. `None` if it has not
    /// come by then; the call continues.
    ///
    /// # Cancel safety
    /// Cancel safe: the call continues.
    pub(crate) async fn answer(&mut self, limit: Option<Instant>, patience: Duration) -> Option<Result<T>> {
        if let Stage::InLine(_, starts) = &mut self.stage {
            let started = match limit {
                Some(limit) => timeout_at(limit, starts).await.ok()?,
                None => starts.await,
            };
            // If it was not started, the answer is the error.
            self.stage = started.map_or(Stage::NotSent, Stage::Sent);
        }
        if let Stage::Gathering(Gathering { position, awaits_others, due, starts }) = &mut self.stage {
            if *awaits_others {
                yield_now().await;
                *awaits_others = false;
                position.arrived();
            }
            let started = match timeout_at(limit.map_or(*due, |limit| limit.min(*due)), &mut *starts).await {
                Ok(started) => started,
                Err(_) => {
                    position.overdue();
                    match limit {
                        Some(limit) => timeout_at(limit, starts).await.ok()?,
                        None => starts.await,
                    }
                }
            };
            let Ok(sent) = started else {
                let overload = position.overload();
                self.stage = Stage::NotSent;
                return Some(Err(overloaded(overload)));
            };
            self.stage = Stage::Sent(sent);
        }
        let until = self.sent().map(|sent| sent + patience);
        match [until, limit].into_iter().flatten().min() {
            Some(until) => timeout_at(until, self.ended()).await.ok(),
            None => Some(self.ended().await),
        }
    }

    async fn ended(&mut self) -> Result<T> {
        match &mut self.work {
            Work::Here(request) => request.await,
            Work::Task(task) => task.await.unwrap_or_else(|ended| Err(ended_with_runtime().with_source(ended))),
            Work::Part(answer) => answer.await.unwrap_or_else(|_| Err(ended_with_runtime())),
        }
    }

    /// Returns the instant before the call was sent (C3); `None` if it is in line, or was never
    /// sent.
    pub(crate) fn sent(&self) -> Option<Instant> {
        match self.stage {
            Stage::Sent(sent) => Some(sent),
            Stage::InLine(..) | Stage::Gathering(..) | Stage::NotSent => None,
        }
    }

    /// Leaves the line, if the call is still in it. Returns the error to report if the call was not
    /// sent and will not be.
    pub(crate) fn leave(&mut self) -> Option<LockError> {
        match &mut self.stage {
            Stage::InLine(position, _) => {
                let overload = position.leave()?;
                self.stage = Stage::NotSent;
                Some(overloaded(overload))
            }
            Stage::Gathering(Gathering { position, starts, .. }) => {
                // From here on it is not sent.
                starts.close();
                if let Ok(sent) = starts.try_recv() {
                    self.stage = Stage::Sent(sent);
                    return None;
                }
                let overload = position.overload();
                position.leave();
                self.stage = Stage::NotSent;
                Some(overloaded(overload))
            }
            Stage::Sent(_) => None,
            Stage::NotSent => {
                let message = "the store is overloaded: it had no room for the call in time; try again later";
                Some(LockError::overloaded(0, message))
            }
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
    /// The instant before the call was sent (C3).
    pub(crate) sent: Instant,
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
        debug_assert!(self.0.is_none(), "R11: one call at a time");
        self.0 = Some(call);
    }

    /// Waits for the answer to the call under way until `limit`, and for `patience` from sending.
    /// `None` without an answer; the call stays.
    ///
    /// # Cancel safety
    /// Cancel safe: the call stays.
    pub(crate) async fn answer(&mut self, limit: Option<Instant>, patience: Duration) -> Option<Answered<T>> {
        let call = self.0.as_mut()?;
        let answer = call.answer(limit, patience).await?;
        let sent = call.sent().unwrap_or_else(Instant::now);
        self.0 = None;
        Some(Answered { sent, answer })
    }

    /// Leaves the line with a call that has not been sent. Returns the error to report, if there
    /// was one.
    pub(crate) fn leave_line(&mut self) -> Option<LockError> {
        let not_sent = self.0.as_mut()?.leave()?;
        self.0 = None;
        Some(not_sent)
    }

    /// Returns the error for a caller that leaves without an answer. A call in line leaves the
    /// line; one that was sent stays.
    pub(crate) fn leave_unanswered(&mut self, store: &dyn LeaseStore) -> LockError {
        self.leave_line().unwrap_or_else(|| {
            let sent = self.0.as_ref().and_then(Call::sent);
            not_answered(store, sent.map(|sent| sent.elapsed()).unwrap_or_default())
        })
    }

    /// Gives up a call that has been sent. A call in line stays there.
    pub(crate) fn give_up_sent(&mut self) {
        drop(self.0.take_if(|call| call.sent().is_some()));
    }

    /// Moves the call out, to be finished elsewhere.
    pub(crate) fn take(&mut self) -> Self {
        Self(self.0.take())
    }

    /// Waits for the answer for `patience` from now, including the time until the call is sent.
    pub(crate) async fn ended_within(&mut self, patience: Duration) -> Option<Result<T>> {
        timeout_at(Instant::now() + patience, self.0.as_mut()?.ended()).await.ok()
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
    let known = catch_unwind(AssertUnwindSafe(|| store.why_unanswered(waited))).ok().flatten();
    known.unwrap_or_else(|| LockError::timeout(Phase::Request, message)).outcome_unknown()
}

async fn send_later<T>(
    in_line: InLine,
    started: oneshot::Sender<Instant>,
    request: impl Future<Output = Result<T>>,
) -> Result<T> {
    let position = in_line.position();
    let Some(permit) = in_line.permit().await else { return Err(overloaded(position.overload())) };
    // The caller may wait for the answer alone.
    let _ = started.send(clock::sending());
    with_permit(permit, request).await
}

/// Runs one call of the store. A panic of the store counts as a failure of unknown outcome. It
/// harms neither the caller's clean-up nor other leases.
pub(crate) async fn guarded<T>(call: impl Future<Output = Result<T>>) -> Result<T> {
    AssertUnwindSafe(call).catch_unwind().await.unwrap_or_else(|_| {
        let message = "the lease store panicked: report that to the author of the backend";
        Err(LockError::new(ErrorKind::Other, message).outcome_unknown())
    })
}

/// Gives the permit back when the request has ended.
async fn with_permit<T>(permit: Permit, request: impl Future<Output = T>) -> T {
    let answer = request.await;
    drop(permit);
    answer
}

/// Returns the error for a call that was not sent.
pub(crate) fn overloaded(overload: Overload) -> LockError {
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

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;
    use std::sync::{Arc, Mutex};

    use super::*;

    /// A call with a permit is a task, which another thread may run at once.
    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn r1_a_deadline_counts_from_before_the_request() {
        let lanes = Lanes::new(NonZeroUsize::new(1000).unwrap());
        for _ in 0..20_000 {
            let polled = Arc::new(Mutex::new(None));
            let request = {
                let polled = polled.clone();
                async move {
                    *polled.lock().unwrap() = Some(Instant::now());
                    Ok(())
                }
            };
            let mut call = Call::new(Some(lanes.clone()), Lane::Acquire, None, false, request).unwrap();
            call.answer(None, Duration::from_secs(60)).await.unwrap().unwrap();
            let (sent, polled) = (call.sent().unwrap(), polled.lock().unwrap().unwrap());
            assert!(sent <= polled, "counts from {:?} after the request", sent - polled);
        }
    }
}
