//! The service, and the future of one request.

use std::error::Error as StdError;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use pin_project_lite::pin_project;
use tokio::task::yield_now;
use tower_service::Service;
use tracing::Instrument;

use super::body::IdempotencyBody;
use super::flow::serve;
use super::refusal::{Reason, Refusal};
use super::shared::{NOT_COVERED, Shared, mark};

/// Processes each request with an `Idempotency-Key` once. Made by
/// [`IdempotencyLayer`](super::IdempotencyLayer).
///
/// `poll_ready` is that of the inner service. The service that was ready serves the request.
pub struct IdempotencyService<S> {
    inner: S,
    shared: Arc<Shared>,
}

impl<S> IdempotencyService<S> {
    pub(super) fn new(inner: S, shared: Arc<Shared>) -> Self {
        Self { inner, shared }
    }

    /// Returns the wrapped service.
    pub fn get_ref(&self) -> &S {
        &self.inner
    }

    /// Returns the wrapped service.
    pub fn get_mut(&mut self) -> &mut S {
        &mut self.inner
    }

    /// Returns the wrapped service, without the wrapper.
    pub fn into_inner(self) -> S {
        self.inner
    }
}

impl<S, B, RB> Service<Request<B>> for IdempotencyService<S>
where
    S: Service<Request<B>, Response = Response<RB>> + Clone + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
    B: Body<Data: Send, Error: Into<Box<dyn StdError + Send + Sync>>> + From<Bytes> + Send + 'static,
    RB: Body<Error: Send> + Send + 'static,
{
    type Response = Response<IdempotencyBody<RB>>;
    type Error = S::Error;
    type Future = IdempotencyFuture<S::Future, RB, S::Error>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let (parts, body) = request.into_parts();
        let shared = &self.shared;
        let keys = match shared.keys(&parts) {
            Ok(Some(keys)) => keys,
            Ok(None) => return self.pass(Request::from_parts(parts, body), None),
            Err(refusal) => return self.refuse(&refusal),
        };
        // A body that is too long is known before it is read, if its head says so.
        if usize::try_from(body.size_hint().lower()).is_ok_and(|len| len <= shared.config.max_request_body) {
            let span = tracing::info_span!(
                "distlock.idempotent_request",
                idempotency.class = &*shared.config.class,
                idempotency.wait_ms = tracing::field::Empty,
                idempotency.outcome = tracing::field::Empty,
            );
            let place = match shared.tally.enter(keys.sender.as_ref(), shared.config.limits) {
                Ok(place) => place,
                Err(reason) => return self.refuse(&Refusal::new(reason)),
            };
            let shared = shared.clone();
            let next = self.inner.clone();
            let ready = std::mem::replace(&mut self.inner, next);
            let future = Box::pin(serve(ready, parts, body, (keys, place), shared).instrument(span));
            return IdempotencyFuture { state: State::Serving { future } };
        }
        if shared.config.pass_long_requests {
            return self.pass(Request::from_parts(parts, body), Some(NOT_COVERED));
        }
        self.refuse(&Refusal::new(Reason::BodyTooLong))
    }
}

impl<S> IdempotencyService<S> {
    fn pass<B, RB: Body, E>(
        &mut self,
        request: Request<B>,
        status: Option<&'static str>,
    ) -> IdempotencyFuture<S::Future, RB, E>
    where
        S: Service<Request<B>>,
    {
        IdempotencyFuture { state: State::Passing { future: self.inner.call(request), status } }
    }

    fn refuse<F, RB, E>(&mut self, refusal: &Refusal) -> IdempotencyFuture<F, RB, E>
    where
        S: Clone,
        RB: Body<Error: Send> + Send + 'static,
        E: Send + 'static,
    {
        // The readiness is not used: it belongs to the instance that was ready.
        self.inner = self.inner.clone();
        let response = self.shared.refuse(refusal);
        // A client that asks again and again would otherwise stop the timers of its runtime.
        let future = async {
            yield_now().await;
            Ok(response)
        };
        IdempotencyFuture { state: State::Serving { future: Box::pin(future) } }
    }
}

impl<S: Clone> Clone for IdempotencyService<S> {
    fn clone(&self) -> Self {
        Self::new(self.inner.clone(), self.shared.clone())
    }
}

impl<S: fmt::Debug> fmt::Debug for IdempotencyService<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdempotencyService")
            .field("inner", &self.inner)
            .field("shared", &self.shared)
            .finish_non_exhaustive()
    }
}

type Answer<RB, E> = Result<Response<IdempotencyBody<RB>>, E>;

pin_project! {
    /// The future of [`IdempotencyService`].
    ///
    /// If it is dropped while it reads the body or waits for another request, nothing is
    /// remembered. If it is dropped while the handler runs, the handler finishes in its task,
    /// unless the layer [cancels](super::IdempotencyLayer::cancel_on_disconnect) it.
    #[must_use = "futures do nothing unless polled"]
    pub struct IdempotencyFuture<F, RB: Body, E> {
        #[pin]
        state: State<F, RB, E>,
    }
}

pin_project! {
    #[project = StateProj]
    enum State<F, RB: Body, E> {
        Passing { #[pin] future: F, status: Option<&'static str> },
        Serving { future: Pin<Box<dyn Future<Output = Answer<RB, E>> + Send>> },
    }
}

impl<F, RB, E> Future for IdempotencyFuture<F, RB, E>
where
    F: Future<Output = Result<Response<RB>, E>>,
    RB: Body,
{
    type Output = Answer<RB, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project().state.project() {
            StateProj::Passing { future, status } => {
                let mut response = ready!(future.poll(cx))?.map(IdempotencyBody::passing);
                if let Some(status) = status {
                    mark(&mut response, status);
                }
                Poll::Ready(Ok(response))
            }
            StateProj::Serving { future } => future.as_mut().poll(cx),
        }
    }
}

impl<F, RB: Body, E> fmt::Debug for IdempotencyFuture<F, RB, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdempotencyFuture").finish_non_exhaustive()
    }
}
