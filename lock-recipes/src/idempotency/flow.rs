//! One request that is covered, from its body to its answer.

use std::error::Error as StdError;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use distlock_api::LockError;
use distlock_api::style::is_outage;
use http::request::Parts;
use http::{Request, Response};
use http_body::Body;
use tokio::task::{JoinError, JoinHandle};
use tokio::time::{Instant, timeout};
use tower_service::Service;
use tracing::{Instrument, Span};

use super::body::{IdempotencyBody, Unread, read_request};
use super::fingerprint::fingerprint;
use super::handed::IdempotentRun;
use super::refusal::{Reason, Refusal};
use super::shared::{Keys, NOT_COVERED, Shared, mark, path};
use super::tally::{Event, Place};
use super::work::work;
use crate::once::{Once, OnceGuard, OnceOptions};

/// How a request continues once the store has answered.
enum Admission<RB: Body> {
    Begun(OnceGuard),
    Answered(Response<IdempotencyBody<RB>>),
    /// Without protection, because the store cannot be reached and the layer fails open.
    Unprotected,
}

/// Serves a request under its keys.
///
/// If this is dropped before the work is begun, nothing is remembered. Afterwards the work goes on
/// in its task, unless the layer cancels it.
pub(super) async fn serve<S, B, RB>(
    mut service: S,
    parts: Parts,
    body: B,
    (keys, place): (Keys, Place),
    shared: Arc<Shared>,
) -> Result<Response<IdempotencyBody<RB>>, S::Error>
where
    S: Service<Request<B>, Response = Response<RB>> + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
    B: Body<Data: Send, Error: Into<Box<dyn StdError + Send + Sync>>> + From<Bytes> + Send + 'static,
    RB: Body<Error: Send> + Send + 'static,
{
    let reading = read_request(body, shared.config.max_request_body);
    let body = match timeout(shared.config.read_timeout, reading).await.unwrap_or(Err(Unread::TooSlow)) {
        Ok(body) => body,
        Err(Unread::TooSlow) => return Ok(shared.refuse(&Refusal::new(Reason::BodyTooSlow))),
        Err(Unread::TooLong) => return Ok(shared.refuse(&Refusal::new(Reason::BodyTooLong))),
        Err(Unread::Failed(error)) => {
            return Ok(shared.refuse(&Refusal::new(Reason::BodyUnreadable).with_source(error)));
        }
    };
    let admission = match admit(&parts, &body, &keys, &shared).await {
        Ok(admission) => admission,
        Err(refusal) => return Ok(shared.refuse(&refusal)),
    };
    let mut request = Request::from_parts(parts, B::from(body));
    match admission {
        Admission::Answered(response) => Ok(response),
        Admission::Unprotected => {
            let mut response = service.call(request).await?.map(IdempotencyBody::passing);
            mark(&mut response, NOT_COVERED);
            Ok(response)
        }
        Admission::Begun(guard) => {
            shared.tally.event(&shared.config.class, Event::Begun);
            request.extensions_mut().insert(IdempotentRun::of(&guard, &keys.client));
            let running = shared.tally.run();
            let working = work(service, request, guard, shared.clone());
            let task = async move {
                let result = working.await;
                drop((running, place));
                result
            };
            let task = tokio::spawn(task.in_current_span());
            let task = Task { task, cancel: shared.config.cancel_on_disconnect };
            match task.await {
                Ok(result) => result,
                // As if the handler had run here.
                Err(stopped) => match stopped.try_into_panic() {
                    Ok(panic) => std::panic::resume_unwind(panic),
                    Err(_) => Ok(shared.refuse(&Refusal::new(Reason::NotRemembered))),
                },
            }
        }
    }
}

/// Queries the store, and begins the work if it is to be begun.
async fn admit<RB: Body>(parts: &Parts, body: &Bytes, keys: &Keys, shared: &Shared) -> Result<Admission<RB>, Refusal> {
    let options = shared.config.once(fingerprint(parts, path(parts), body, shared.config.content.as_deref()));
    let since = Instant::now();
    let answer = once(keys, options, shared).await;
    let wait = since.elapsed();
    let admission = match answer.transpose() {
        Ok(None) => Err(Refusal::new(Reason::UnderWay)),
        Ok(Some(answer)) => admission_of(answer, shared),
        Err(error) if shared.config.fail_open && is_outage(&error) => {
            let class = &*shared.config.class;
            tracing::warn!(idempotency.class = class, %error, "serving WITHOUT idempotency (fail-open)");
            shared.tally.event(&shared.config.class, Event::FailedOpen);
            Ok(Admission::Unprotected)
        }
        Err(error) => Err(error.into()),
    };
    let outcome = match &admission {
        Ok(Admission::Begun(_)) => "begun",
        Ok(Admission::Answered(_)) => "replayed",
        Ok(Admission::Unprotected) => "failed-open",
        Err(refusal) => refusal.reason().as_str(),
    };
    shared.tally.waited(&shared.config.class, outcome, wait);
    let span = Span::current();
    span.record("idempotency.wait_ms", u64::try_from(wait.as_millis()).unwrap_or(u64::MAX));
    span.record("idempotency.outcome", outcome);
    admission
}

/// Begins the work, or waits for its outcome. Returns `None` if too many requests with the key
/// wait.
async fn once(keys: &Keys, options: OnceOptions, shared: &Shared) -> Option<Result<Once, LockError>> {
    let (waiters, limit) = (&shared.tally.waiters, shared.config.max_waiters);
    if waiters.is_full(&keys.record, limit) {
        return None;
    }
    let mut answer = pin!(shared.provider.once_with(keys.record.clone(), options));
    // A request that is answered at the first poll has not waited.
    match poll_fn(|cx| Poll::Ready(answer.as_mut().poll(cx))).await {
        Poll::Ready(answer) => Some(answer),
        Poll::Pending => {
            let _waiting = waiters.enter(keys.record.clone(), limit)?;
            Some(answer.await)
        }
    }
}

fn admission_of<RB: Body>(answer: Once, shared: &Shared) -> Result<Admission<RB>, Refusal> {
    let reason = match answer {
        Once::Begun(guard) => return Ok(Admission::Begun(guard)),
        Once::Done(outcome) => return shared.replay(outcome.value()).map(Admission::Answered),
        Once::Mismatch(_) => Reason::KeyReused,
        Once::Interrupted(_) => Reason::Interrupted,
        // Also an answer that is not known here: the caller may ask again.
        _ => Reason::UnderWay,
    };
    Err(Refusal::new(reason))
}

/// The task of a handler. If this is dropped, the task goes on or is cancelled, as the layer says.
struct Task<T> {
    task: JoinHandle<T>,
    cancel: bool,
}

impl<T> Future for Task<T> {
    type Output = Result<T, JoinError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.task).poll(cx)
    }
}

impl<T> Drop for Task<T> {
    fn drop(&mut self) {
        if self.cancel {
            self.task.abort();
        }
    }
}
