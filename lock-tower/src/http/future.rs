//! The call of one request.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use http::{Request, Response};
use http_body::Body;
use pin_project_lite::pin_project;
use tower_service::Service;

use super::body::LockBody;
use super::layer::Shared;
use super::run::Start;
use crate::gate::{Admission, Admitting};
use crate::refusal::Refusal;

pin_project! {
    /// The future of [`LockService`](crate::LockService). Dropped while it waits, it leaves no waiter and no lock; dropped while the inner call runs, it drops that and
    /// then releases – unless the layer [detaches](crate::LockLayer::detach).
    #[must_use = "futures do nothing unless polled"]
    pub struct LockFuture<S, B, F, R> {
        #[pin]
        state: State<S, B, F, R>,
        shared: Arc<Shared>,
    }
}

pin_project! {
    #[project = StateProj]
    enum State<S, B, F, R> {
        Passing { #[pin] future: F },
        Admitting { admitting: Admitting, call: Option<(S, Request<B>)> },
        Running { #[pin] running: R },
        Refused { refusal: Refusal },
    }
}

impl<S, B, F, R> LockFuture<S, B, F, R> {
    pub(super) fn passing(future: F, shared: Arc<Shared>) -> Self {
        Self { state: State::Passing { future }, shared }
    }

    pub(super) fn refused(refusal: Refusal, shared: Arc<Shared>) -> Self {
        Self { state: State::Refused { refusal }, shared }
    }

    pub(super) fn admitting(admitting: Admitting, service: S, request: Request<B>, shared: Arc<Shared>) -> Self {
        Self { state: State::Admitting { admitting, call: Some((service, request)) }, shared }
    }
}

#[allow(private_bounds)] // `Start` is how the two kinds of running calls are made, nothing to be implemented elsewhere
impl<S, B, RB, R> Future for LockFuture<S, B, S::Future, R>
where
    S: Service<Request<B>, Response = Response<RB>>,
    RB: Body,
    R: Start<S::Future> + Future<Output = Result<Response<LockBody<RB>>, S::Error>>,
{
    type Output = Result<Response<LockBody<RB>>, S::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let mut state = this.state;
        loop {
            let next = match state.as_mut().project() {
                StateProj::Passing { future } => {
                    let response = ready!(future.poll(cx))?;
                    return Poll::Ready(Ok(response.map(|body| LockBody::new(body, None))));
                }
                StateProj::Running { running } => return running.poll(cx),
                StateProj::Refused { refusal } => return Poll::Ready(Ok(this.shared.refuse(refusal))),
                StateProj::Admitting { admitting, call } => {
                    let admission = ready!(admitting.as_mut().poll(cx));
                    let (mut service, mut request) = call.take().expect("polled after completion");
                    match admission {
                        Ok(Admission::Held(hold)) => {
                            request.extensions_mut().insert(hold.held_lock());
                            let running = R::start(service.call(request), hold, this.shared.clone());
                            State::Running { running }
                        }
                        Ok(Admission::Unlocked) => State::Passing { future: service.call(request) },
                        Err(refusal) => State::Refused { refusal },
                    }
                }
            };
            state.set(next);
        }
    }
}

impl<S, B, F, R> fmt::Debug for LockFuture<S, B, F, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockFuture").finish_non_exhaustive()
    }
}
