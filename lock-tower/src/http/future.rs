//! The future of one HTTP request.

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
use super::rules::Rules;
use super::run::Start;
use crate::gate::{Admission, Admitting};
use crate::held::HeldLock;
use crate::inner::Rest;
use crate::refusal::Refusal;

pin_project! {
    /// The future of [`LockService`](crate::LockService). If it is dropped while it waits, it
    /// leaves no waiter and no lock. If it is dropped while the inner call runs, it drops the call
    /// and then releases the lock, unless the layer [detaches](crate::LockLayer::detach) handlers.
    #[must_use = "futures do nothing unless polled"]
    pub struct LockFuture<S, B, F, R> {
        #[pin]
        state: State<S, B, F, R>,
    }
}

pin_project! {
    #[project = StateProj]
    enum State<S, B, F, R> {
        Passing { #[pin] future: F },
        Admitting { admitting: Admitting, call: Option<Box<PendingCall<S, B>>> },
        Running { #[pin] running: R },
        Refused { refusal: Refusal, rules: Arc<Rules>, rest: Rest },
    }
}

/// What a request needs when it is admitted.
struct PendingCall<S, B> {
    service: S,
    request: Request<B>,
    rules: Arc<Rules>,
}

impl<S, B, F, R> LockFuture<S, B, F, R> {
    pub(super) fn passing(future: F) -> Self {
        Self { state: State::Passing { future } }
    }

    pub(super) fn refused(refusal: Refusal, rules: Arc<Rules>) -> Self {
        Self { state: State::Refused { refusal, rules, rest: Rest::default() } }
    }

    pub(super) fn admitting(admitting: Admitting, service: S, request: Request<B>, rules: Arc<Rules>) -> Self {
        let call = Some(Box::new(PendingCall { service, request, rules }));
        Self { state: State::Admitting { admitting, call } }
    }
}

// `Start` makes the two kinds of running calls. Other crates must not implement it.
#[allow(private_bounds)]
impl<S, B, R> LockFuture<S, B, S::Future, R>
where
    S: Service<Request<B>>,
    R: Start<S::Future>,
{
    /// Continues with a request that was admitted or refused.
    #[inline]
    pub(super) fn admitted(
        admission: Result<Admission, Refusal>,
        service: &mut S,
        mut request: Request<B>,
        rules: Arc<Rules>,
    ) -> Self {
        match admission {
            Ok(Admission::Held(hold)) => {
                let extensions = request.extensions_mut();
                let held = match (HeldLock::of(&hold), extensions.remove::<HeldLock>()) {
                    (held, None) => held,
                    (held, Some(outer)) if rules.keeps_outer_lock() => outer.beside(held),
                    (held, Some(outer)) => held.beside(outer),
                };
                extensions.insert(held);
                let running = R::start(service.call(request), hold, rules);
                Self { state: State::Running { running } }
            }
            Ok(Admission::Unlocked) => Self::passing(service.call(request)),
            Err(refusal) => Self::refused(refusal, rules),
        }
    }
}

#[allow(private_bounds)] // as above
impl<S, B, RB, R> Future for LockFuture<S, B, S::Future, R>
where
    S: Service<Request<B>, Response = Response<RB>>,
    RB: Body,
    R: Start<S::Future> + Future<Output = Result<Response<LockBody<RB>>, S::Error>>,
{
    type Output = Result<Response<LockBody<RB>>, S::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.project().state;
        loop {
            let next = match state.as_mut().project() {
                StateProj::Passing { future } => {
                    let response = ready!(future.poll(cx))?;
                    return Poll::Ready(Ok(response.map(|body| LockBody::new(body, None))));
                }
                StateProj::Running { running } => return running.poll(cx),
                StateProj::Refused { refusal, rules, rest } => {
                    ready!(rest.poll(cx));
                    return Poll::Ready(Ok(rules.refuse(refusal)));
                }
                StateProj::Admitting { admitting, call } => {
                    let admission = ready!(admitting.as_mut().poll(cx));
                    let PendingCall { mut service, request, rules } = *call.take().expect("polled after completion");
                    Self::admitted(admission, &mut service, request, rules).state
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
