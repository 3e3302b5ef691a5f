//! A key from the matched route.

use std::fmt::Display;
use std::str::FromStr;

use axum::extract::rejection::RawPathParamsRejection;
use axum::extract::{FromRequestParts, MatchedPath, RawPathParams};
use distlock_api::style::push_escaped;
use http::request::Parts;

use super::ExtractKey;
use super::names::written;
use super::value::Canonical;
use crate::keys::KeySet;
use crate::refusal::KeyRejection;

/// Returns the path parameters of a request, at once although axum's trait is asynchronous.
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
        "no matched route: add the layer inside the router, with `Router::route_layer` or `MethodRouter::layer`",
    )
}

pub(super) fn not_of_type(name: &str, of_type: &str) -> KeyRejection {
    KeyRejection::bad_key(format!("path parameter {name:?} is not a valid {of_type}"))
}

fn without_type(name: &str) -> KeyRejection {
    KeyRejection::misconfigured(format!(
        "`RouteKey` has no type for path parameter {name:?}: add `.typed::<T>({name:?})` with the type that the \
         handler reads, or `.text({name:?})`"
    ))
}

/// The route that a request matched, with its path parameters: `/orders/{id}?id=7`.
///
/// The route is part of the key. So `/users/1` and `/orders/1` are different locks, and so are
/// `/orders/1` and `/orders/1/ship`. For one lock across several routes use
/// [`ParamKey`](super::ParamKey).
///
/// # Path parameters
/// Each needs the type with which the handler reads it, because `/orders/07` may be order 7 as
/// well:
/// [`typed`](Self::typed), or [`text`](Self::text). Otherwise the request is answered 500, and the
/// logged error names what is missing. See [the module](super#what-a-value-means).
///
/// # Where to put the layer
/// Put it inside the router, with `Router::route_layer` or on a method router, because only there
/// the route is known. Around the router, every request is answered 500 and logged as an error,
/// because serving it without its lock would be worse. axum's `Router::layer` also covers the
/// fallback, where no route has matched. With it, use [`pass_unmatched`](Self::pass_unmatched).
///
/// ```
/// use axum::{Router, routing::put};
/// use distlock_memory::MemoryProvider;
/// use distlock_tower::{LockLayer, key::RouteKey};
///
/// let locks = LockLayer::new(MemoryProvider::new(), RouteKey::any_method().typed::<u64>("id"));
/// let app: Router = Router::new().route("/orders/{id}", put(|| async { "changed" })).route_layer(locks);
/// ```
#[derive(Clone, Debug)]
pub struct RouteKey {
    with_method: bool,
    pass_unmatched: bool,
    params: Vec<(String, Canonical)>,
}

impl RouteKey {
    /// Makes keys without the method: `PUT /orders/7` waits for `DELETE /orders/7`.
    #[must_use]
    pub fn any_method() -> Self {
        Self::new(false)
    }

    /// Makes keys with the method: `PUT /orders/7` does not wait for `DELETE /orders/7`.
    #[must_use]
    pub fn per_method() -> Self {
        Self::new(true)
    }

    /// Reads the path parameter of this name as the handler does, in every route that has it.
    #[must_use]
    pub fn typed<T: FromStr + Display>(self, name: impl Into<String>) -> Self {
        self.param(name.into(), Canonical::of::<T>())
    }

    /// Reads the path parameter of this name as text: percent-decoded, and otherwise byte for byte.
    #[must_use]
    pub fn text(self, name: impl Into<String>) -> Self {
        self.param(name.into(), Canonical::TEXT)
    }

    fn new(with_method: bool) -> Self {
        Self { with_method, pass_unmatched: false, params: Vec::new() }
    }

    fn param(mut self, name: String, value: Canonical) -> Self {
        self.params.retain(|(known, _)| *known != name);
        self.params.push((name, value));
        self
    }

    fn push(&self, key: &mut String, name: &str, value: &str) -> Result<(), KeyRejection> {
        let known = self.params.iter().find(|(known, _)| known == name);
        let (_, canonical) = known.ok_or_else(|| without_type(name))?;
        canonical.push(key, value).map_err(|of_type| not_of_type(name, of_type))
    }

    /// Lets requests that matched no route pass without a lock. Defaults to answering 500.
    ///
    /// With this option a layer around the router, instead of inside, **locks nothing**.
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
        let mut outcome = Ok(());
        let key = written(|key| {
            if self.with_method {
                key.push_str(parts.method.as_str());
                key.push(' ');
            }
            key.push_str(route.as_str());
            outcome = params.iter().enumerate().try_for_each(|(index, (name, value))| {
                key.push(if index == 0 { '?' } else { '&' });
                push_escaped(key, name);
                key.push('=');
                self.push(key, name, value)
            });
        });
        outcome?;
        Ok(Some(key?.into()))
    }

    fn class(&self) -> &'static str {
        "route"
    }
}
