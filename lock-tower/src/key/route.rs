//! A key out of the matched route.

use axum::extract::rejection::RawPathParamsRejection;
use axum::extract::{FromRequestParts, MatchedPath, RawPathParams};
use http::request::Parts;

use super::ExtractKey;
use super::names::{push_escaped, written};
use crate::keys::KeySet;
use crate::refusal::KeyRejection;

/// The path parameters of a request. Ready at once, though axum's trait is asynchronous.
pub(super) fn path_params(parts: &mut Parts) -> Result<RawPathParams, KeyRejection> {
    let mut extracting = std::pin::pin!(RawPathParams::from_request_parts(parts, &()));
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    match extracting.as_mut().poll(&mut cx) {
        std::task::Poll::Ready(Ok(params)) => Ok(params),
        std::task::Poll::Ready(Err(RawPathParamsRejection::InvalidUtf8InPathParam(error))) => {
            Err(KeyRejection::bad_key(error.to_string()))
        }
        _ => Err(outside_of_a_router()),
    }
}

fn outside_of_a_router() -> KeyRejection {
    KeyRejection::misconfigured(
        "no matched route: add the layer inside of the router, with `Router::route_layer` or `MethodRouter::layer`",
    )
}

/// The route that a request matched, with its path parameters: `/orders/{id}?id=7`.
///
/// The route is part of the key, so `/users/1` and `/orders/1` are different locks – and so are `/orders/{id}` and `/orders/{id}/ship`. For one lock across several
/// routes use [`ParamKey`](super::ParamKey).
///
/// # Where to put the layer
/// Inside of the router, by `Router::route_layer` or on a method router; there alone the route is known. Around the router, every request is answered
/// 500 and logged as an error, because serving it without its lock would be worse. axum's `Router::layer` also covers the fallback, where no route has matched: say
/// [`pass_unmatched`](Self::pass_unmatched) if you use it.
///
/// ```
/// use axum::{Router, routing::put};
/// use distlock_memory::MemoryProvider;
/// use distlock_tower::{LockLayer, key::RouteKey};
///
/// let locks = LockLayer::new(MemoryProvider::new(), RouteKey::any_method());
/// let app: Router = Router::new().route("/orders/{id}", put(|| async { "changed" })).route_layer(locks);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct RouteKey {
    with_method: bool,
    pass_unmatched: bool,
}

impl RouteKey {
    /// Requests to one resource exclude each other, whatever their methods: `PUT /orders/7` waits for `DELETE /orders/7`.
    #[must_use]
    pub fn any_method() -> Self {
        Self { with_method: false, pass_unmatched: false }
    }

    /// Only requests with the same method exclude each other: `PUT /orders/7` does not wait for `DELETE /orders/7`.
    #[must_use]
    pub fn per_method() -> Self {
        Self { with_method: true, pass_unmatched: false }
    }

    /// A request that matched no route passes without a lock. Defaults to answering 500.
    ///
    /// With it a layer around the router, instead of inside, **locks nothing**.
    #[must_use]
    pub fn pass_unmatched(mut self) -> Self {
        self.pass_unmatched = true;
        self
    }
}

impl ExtractKey for RouteKey {
    fn extract(&self, parts: &mut Parts) -> Result<Option<KeySet>, KeyRejection> {
        let params = path_params(parts);
        let Some(route) = parts.extensions.get::<MatchedPath>() else {
            return if self.pass_unmatched { Ok(None) } else { Err(outside_of_a_router()) };
        };
        let params = params?;
        let key = written(|key| {
            if self.with_method {
                key.push_str(parts.method.as_str());
                key.push(' ');
            }
            key.push_str(route.as_str());
            for (index, (name, value)) in params.iter().enumerate() {
                key.push(if index == 0 { '?' } else { '&' });
                push_escaped(key, name);
                key.push('=');
                push_escaped(key, value);
            }
        })?;
        Ok(Some(key.into()))
    }

    fn class(&self) -> &'static str {
        "route"
    }
}
