//! The future of one request of any kind.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use pin_project_lite::pin_project;
use tower_service::Service;

use super::error::KeyedLockError;
use super::key_of::KeyOf;
use crate::gate::{Admission, Admitting, Gate, Guarded};
use crate::held::HeldLock;
use crate::inner::Rest;
use crate::refusal::Refusal;

pin_project! {
    /// The future of [`KeyedLock`](crate::KeyedLock). If it is dropped while it waits, it leaves no
    /// waiter and no lock. If it is dropped while the inner call runs, it drops the call and then
    /// releases the lock.
    #[must_use = "futures do nothing unless polled"]
    pub struct KeyedFuture<S, K, Req, F> {
        #[pin]
        state: State<S, K, Req, F>,
    }
}

pin_project! {
    #[project = StateProj]
    enum State<S, K, Req, F> {
        Passing { #[pin] future: F },
        Admitting { admitting: Admitting, call: Option<(S, Req)>, key: Arc<K>, gate: Arc<Gate> },
        Running { #[pin] future: Guarded<F>, gate: Arc<Gate> },
        Refused { refusal: Option<Refusal>, rest: Rest },
    }
}

impl<S, K, Req, F> KeyedFuture<S, K, Req, F> {
    pub(super) fn passing(future: F) -> Self {
        Self { state: State::Passing { future } }
    }

    pub(super) fn refused(refusal: Refusal) -> Self {
        Self { state: State::Refused { refusal: Some(refusal), rest: Rest::default() } }
    }

    pub(super) fn admitting(admitting: Admitting, service: S, request: Req, key: Arc<K>, gate: Arc<Gate>) -> Self {
        Self { state: State::Admitting { admitting, call: Some((service, request)), key, gate } }
    }
}

impl<S, K, Req> KeyedFuture<S, K, Req, S::Future>
where
    S: Service<Req>,
    K: KeyOf<Req>,
{
    /// Continues with a request that was admitted or refused.
    pub(super) fn admitted(
        admission: Result<Admission, Refusal>,
        service: &mut S,
        mut request: Req,
        key: &K,
        gate: Arc<Gate>,
    ) -> Self {
        match admission {
            Ok(Admission::Held(hold)) => {
                key.granted(&mut request, HeldLock::of(&hold));
                Self { state: State::Running { future: Guarded::new(service.call(request), hold), gate } }
            }
            Ok(Admission::Unlocked) => Self::passing(service.call(request)),
            Err(refusal) => Self::refused(refusal),
        }
    }
}

impl<S, K, Req> Future for KeyedFuture<S, K, Req, S::Future>
where
    S: Service<Req>,
    K: KeyOf<Req>,
{
    type Output = Result<S::Response, KeyedLockError<S::Error>>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.project().state;
        loop {
            let next = match state.as_mut().project() {
                StateProj::Passing { future } => return future.poll(cx).map_err(KeyedLockError::Inner),
                StateProj::Refused { refusal, rest } => {
                    ready!(rest.poll(cx));
                    return Poll::Ready(Err(KeyedLockError::Refused(refusal.take().expect("polled after completion"))));
                }
                StateProj::Running { future, gate } => {
                    return Poll::Ready(match ready!(future.poll(cx)) {
                        Ok((result, hold)) => {
                            hold.release();
                            result.map_err(KeyedLockError::Inner)
                        }
                        Err(ending) => Err(KeyedLockError::Refused(gate.aborted(ending))),
                    });
                }
                StateProj::Admitting { admitting, call, key, gate } => {
                    let admission = ready!(admitting.as_mut().poll(cx));
                    let (mut service, request) = call.take().expect("polled after completion");
                    Self::admitted(admission, &mut service, request, key, gate.clone()).state
                }
            };
            state.set(next);
        }
    }
}

impl<S, K, Req, F> fmt::Debug for KeyedFuture<S, K, Req, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyedFuture").finish_non_exhaustive()
    }
}
