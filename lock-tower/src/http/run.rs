//! The inner call under the lock: in the request's own future, or in a task.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use http::Response;
use http_body::Body;
use pin_project_lite::pin_project;
use tokio::task::JoinHandle;
use tracing::Instrument;

use super::body::LockBody;
use super::rules::{HoldUntil, Rules};
use crate::gate::{Guarded, Hold};

/// A handler ends when its client disconnects. The default of [`LockLayer`](crate::LockLayer).
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct Attached;

/// A handler runs to its end under the lock even if its client disconnects. Made by
/// [`LockLayer::detach`](crate::LockLayer::detach).
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct Detached;

/// How the inner call is started once the lock is held.
pub(super) trait Start<F> {
    fn start(future: F, hold: Hold, rules: Arc<Rules>) -> Self;
}

pin_project! {
    /// The inner call in the request's own future.
    #[derive(Debug)]
    #[must_use = "futures do nothing unless polled"]
    pub struct AttachedCall<F> {
        #[pin]
        guarded: Guarded<F>,
        rules: Arc<Rules>,
    }
}

impl<F> Start<F> for AttachedCall<F> {
    fn start(future: F, hold: Hold, rules: Arc<Rules>) -> Self {
        Self { guarded: Guarded::new(future, hold), rules }
    }
}

impl<F, B, E> Future for AttachedCall<F>
where
    F: Future<Output = Result<Response<B>, E>>,
    B: Body,
{
    type Output = Result<Response<LockBody<B>>, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        Poll::Ready(match ready!(this.guarded.poll(cx)) {
            Ok((Ok(response), hold)) => Ok(with_hold(response, hold, this.rules.hold_until)),
            Ok((Err(error), hold)) => {
                hold.release();
                Err(error)
            }
            Err(ending) => Ok(this.rules.refuse(&this.rules.gate.aborted(ending))),
        })
    }
}

/// Moves the lock into the body, if the body must hold it.
fn with_hold<B: Body>(response: Response<B>, mut hold: Hold, until: HoldUntil) -> Response<LockBody<B>> {
    if until == HoldUntil::Head || response.body().is_end_stream() {
        hold.release();
        return response.map(|body| LockBody::new(body, None));
    }
    hold.keep_deadline_unpolled();
    response.map(|body| LockBody::new(body, Some(hold)))
}

pin_project! {
    /// The inner call in a task of its own, which the first poll starts.
    #[derive(Debug)]
    #[must_use = "futures do nothing unless polled"]
    pub struct DetachedCall<F, B, E> {
        unpolled: Option<AttachedCall<F>>,
        task: Option<JoinHandle<Result<Response<LockBody<B>>, E>>>,
        rules: Arc<Rules>,
    }
}

impl<F, B, E> Start<F> for DetachedCall<F, B, E> {
    fn start(future: F, hold: Hold, rules: Arc<Rules>) -> Self {
        Self { unpolled: Some(AttachedCall::start(future, hold, rules.clone())), task: None, rules }
    }
}

impl<F, B, E> Future for DetachedCall<F, B, E>
where
    F: Future<Output = Result<Response<B>, E>> + Send + 'static,
    B: Body + Send + 'static,
    E: Send + 'static,
{
    type Output = Result<Response<LockBody<B>>, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        if let Some(call) = this.unpolled.take() {
            *this.task = Some(tokio::spawn(call.in_current_span()));
        }
        let task = this.task.as_mut().expect("there since the first poll");
        Poll::Ready(match ready!(Pin::new(task).poll(cx)) {
            Ok(result) => result,
            // As if the handler had run here.
            Err(stopped) => match stopped.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                Err(_) => Ok(this.rules.refuse(&this.rules.gate.stopped())),
            },
        })
    }
}
