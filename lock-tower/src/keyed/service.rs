//! The service of any kind: admits each request, then calls the inner service.

use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll};

use tower_service::Service;

use super::error::KeyedLockError;
use super::future::KeyedFuture;
use super::key_of::KeyOf;
use crate::gate::{Answer, Claims, Gate};
use crate::inner::{give_back, inner_accessors};

/// Serves each request while its locks are held. Made by [`KeyedLockLayer`](crate::KeyedLockLayer).
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
pub struct KeyedLock<S, K> {
    inner: S,
    key: Arc<K>,
    gate: Arc<Gate>,
}

impl<S, K> KeyedLock<S, K> {
    pub(super) fn new(inner: S, key: Arc<K>, gate: Arc<Gate>) -> Self {
        Self { inner, key, gate }
    }

    inner_accessors!();
}

impl<S, K, Req> Service<Req> for KeyedLock<S, K>
where
    S: Service<Req> + Clone,
    K: KeyOf<Req>,
{
    type Response = S::Response;
    type Error = KeyedLockError<S::Error>;
    type Future = KeyedFuture<S, K, Req, S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx).map_err(KeyedLockError::Inner)
    }

    fn call(&mut self, request: Req) -> Self::Future {
        let keys = match self.key.keys(&request) {
            Ok(Some(keys)) if !keys.is_empty() => keys,
            Ok(_) => return KeyedFuture::passing(self.inner.call(request)),
            Err(rejection) => {
                give_back(&mut self.inner);
                return KeyedFuture::refused(self.gate.rejected(rejection));
            }
        };
        let (key, gate) = (&self.key, self.gate.clone());
        let claims = Claims::new(keys, key.mode(&request));
        match self.gate.admit(claims, || key.deadline(&request)) {
            Answer::Now(Err(refusal)) => {
                give_back(&mut self.inner);
                KeyedFuture::refused(refusal)
            }
            Answer::Now(admission) => KeyedFuture::admitted(admission, &mut self.inner, request, key, gate),
            Answer::Later(admitting) => {
                let next = self.inner.clone();
                let ready = std::mem::replace(&mut self.inner, next);
                KeyedFuture::admitting(admitting, ready, request, key.clone(), gate)
            }
        }
    }
}

impl<S: Clone, K> Clone for KeyedLock<S, K> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), key: self.key.clone(), gate: self.gate.clone() }
    }
}

impl<S: fmt::Debug, K> fmt::Debug for KeyedLock<S, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyedLock").field("inner", &self.inner).field("gate", &self.gate).finish_non_exhaustive()
    }
}
