//! The service for HTTP: admits each request, then calls the inner service.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::{Request, Response};
use http_body::Body;
use tower_service::Service;

use super::body::LockBody;
use super::deadline::deadline;
use super::future::LockFuture;
use super::rules::Shared;
use super::run::{Attached, AttachedCall, Detached, DetachedCall, Start};
use crate::gate::Answer;
use crate::inner::{give_back, inner_accessors};
use crate::key::ExtractKey;

/// Serves each request while its locks are held. Made by [`LockLayer`](crate::LockLayer) and
/// [`PermitLayer`](crate::PermitLayer).
///
/// # Readiness
/// `poll_ready` is that of the inner service. It cannot include locks, because the layer does not
/// know the key of the next request. The service that was ready serves the request. If the request
/// has to wait, a clone replaces that service for the next one.
///
/// # When the lock is taken
/// The lock is taken in `call` if the provider can
/// [answer at once](distlock_api::LockProvider::acquire_now), as the memory backend can for a free
/// key. The inner service is then called before `call` returns. Otherwise the lock is taken when
/// the future is polled.
///
/// So poll the future or drop it. Until then it may hold the lock, and no maximum hold is enforced.
/// The span of the request is a child of the span that is current in `call`.
pub struct LockService<S, K, M = Attached> {
    inner: S,
    shared: Arc<Shared<K>>,
    run: PhantomData<fn() -> M>,
}

impl<S, K, M> LockService<S, K, M> {
    pub(super) fn new(inner: S, shared: Arc<Shared<K>>) -> Self {
        Self { inner, shared, run: PhantomData }
    }

    inner_accessors!();

    fn begin<B, R>(&mut self, request: Request<B>) -> LockFuture<S, B, S::Future, R>
    where
        S: Service<Request<B>> + Clone,
        K: ExtractKey,
        R: Start<S::Future>,
    {
        let Shared { key, rules } = &*self.shared;
        let (mut parts, body) = request.into_parts();
        if !rules.applies(&parts) {
            return LockFuture::passing(self.inner.call(Request::from_parts(parts, body)));
        }
        let keys = match key.extract(&mut parts) {
            Ok(Some(keys)) if !keys.is_empty() => keys,
            Ok(_) => return LockFuture::passing(self.inner.call(Request::from_parts(parts, body))),
            Err(rejection) => {
                give_back(&mut self.inner);
                return LockFuture::refused(rules.gate.rejected(rejection), rules.clone());
            }
        };
        let claims = match rules.claims(keys, &parts) {
            Ok(claims) => claims,
            Err(refusal) => {
                give_back(&mut self.inner);
                return LockFuture::refused(refusal, rules.clone());
            }
        };
        let answer = rules.gate.admit(claims, || deadline(&parts.headers, &rules.deadlines));
        let request = Request::from_parts(parts, body);
        match answer {
            Answer::Now(Err(refusal)) => {
                give_back(&mut self.inner);
                LockFuture::refused(refusal, rules.clone())
            }
            Answer::Now(admission) => LockFuture::admitted(admission, &mut self.inner, request, rules.clone()),
            Answer::Later(admitting) => {
                let next = self.inner.clone();
                let ready = std::mem::replace(&mut self.inner, next);
                LockFuture::admitting(admitting, ready, request, rules.clone())
            }
        }
    }
}

impl<S, K, B, RB> Service<Request<B>> for LockService<S, K, Attached>
where
    S: Service<Request<B>, Response = Response<RB>> + Clone,
    K: ExtractKey,
    RB: Body,
{
    type Response = Response<LockBody<RB>>;
    type Error = S::Error;
    type Future = LockFuture<S, B, S::Future, AttachedCall<S::Future>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        self.begin(request)
    }
}

impl<S, K, B, RB> Service<Request<B>> for LockService<S, K, Detached>
where
    S: Service<Request<B>, Response = Response<RB>> + Clone,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
    K: ExtractKey,
    RB: Body + Send + 'static,
{
    type Response = Response<LockBody<RB>>;
    type Error = S::Error;
    type Future = LockFuture<S, B, S::Future, DetachedCall<S::Future, RB, S::Error>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        self.begin(request)
    }
}

impl<S: Clone, K, M> Clone for LockService<S, K, M> {
    fn clone(&self) -> Self {
        Self::new(self.inner.clone(), self.shared.clone())
    }
}

impl<S: fmt::Debug, K, M> fmt::Debug for LockService<S, K, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockService")
            .field("inner", &self.inner)
            .field("rules", &self.shared.rules)
            .finish_non_exhaustive()
    }
}
