//! A key out of path parameters.

use std::fmt::Display;
use std::str::FromStr;

use http::request::Parts;

use super::names::{namespace, written};
use super::route::{not_of_type, path_params};
use super::value::Canonical;
use super::{ExtractKey, InvalidExtractor};
use crate::keys::KeySet;
use crate::refusal::KeyRejection;

/// Path parameters within a namespace: parameter `id` of `/orders/7/ship` in namespace `order` is
/// the key `order/7`.
///
/// The route is not part of the key: every route that names the same resource shares its lock.
///
/// # The type
/// Use the type with which the handler reads the parameter, the `u64` of its `Path<u64>`. Otherwise
/// `/orders/07` has another key than `/orders/7`, and changes the same order. See [the
/// module](super#what-a-value-means).
///
/// # Where to put the layer
/// Put it inside the router, on routes that have the parameters. Elsewhere every request is
/// answered 500 and logged as an error, because serving it without its lock would be worse. A layer
/// does not know its routes. Name them with [`checked_for`](Self::checked_for), and a misspelled
/// parameter is found at start-up.
///
/// ```
/// use axum::{Router, routing::{post, put}};
/// use distlock_memory::MemoryProvider;
/// use distlock_tower::{LockLayer, key::ParamKey};
///
/// const ORDER: &str = "/orders/{id}";
/// const SHIP: &str = "/orders/{id}/ship";
///
/// let order = ParamKey::typed::<u64>("order", "id")?.checked_for([ORDER, SHIP])?;
/// let app: Router = Router::new()
///     .route(ORDER, put(|| async { "changed" }))
///     .route(SHIP, post(|| async { "shipped" }))
///     .route_layer(LockLayer::new(MemoryProvider::new(), order));
/// # Ok::<(), distlock_tower::key::InvalidExtractor>(())
/// ```
#[derive(Clone, Debug)]
pub struct ParamKey {
    namespace: String,
    params: Vec<(String, Canonical)>,
}

impl ParamKey {
    /// Makes keys from this path parameter, read as the handler reads it.
    ///
    /// # Errors
    /// When the namespace is empty or contains `/`, `%` or control characters, or the name of
    /// the parameter is empty.
    pub fn typed<T: FromStr + Display>(in_namespace: &str, name: impl Into<String>) -> Result<Self, InvalidExtractor> {
        Self::of(in_namespace)?.with::<T>(name)
    }

    /// Makes keys from the text of this path parameter, percent-decoded and otherwise byte for
    /// byte.
    ///
    /// # Errors
    /// As [`typed`](Self::typed).
    pub fn text(in_namespace: &str, name: impl Into<String>) -> Result<Self, InvalidExtractor> {
        Self::of(in_namespace)?.with_text(name)
    }

    /// Adds another path parameter to the keys, after those before it.
    ///
    /// # Errors
    /// When the name is empty, or that of an earlier parameter.
    pub fn with<T: FromStr + Display>(self, name: impl Into<String>) -> Result<Self, InvalidExtractor> {
        self.param(name.into(), Canonical::of::<T>())
    }

    /// Adds the text of another path parameter to the keys.
    ///
    /// # Errors
    /// As [`with`](Self::with).
    pub fn with_text(self, name: impl Into<String>) -> Result<Self, InvalidExtractor> {
        self.param(name.into(), Canonical::TEXT)
    }

    fn of(in_namespace: &str) -> Result<Self, InvalidExtractor> {
        Ok(Self { namespace: namespace(in_namespace)?, params: Vec::new() })
    }

    fn param(mut self, name: String, value: Canonical) -> Result<Self, InvalidExtractor> {
        if name.is_empty() || self.params.iter().any(|(known, _)| *known == name) {
            return Err(InvalidExtractor::new(format!("path parameter {name:?} is empty or named twice")));
        }
        self.params.push((name, value));
        Ok(self)
    }

    /// Checks that each of these routes, in axum's notation, has the parameters. It does not limit
    /// the extractor to them.
    ///
    /// # Errors
    /// When a route lacks a parameter.
    pub fn checked_for<'a>(self, routes: impl IntoIterator<Item = &'a str>) -> Result<Self, InvalidExtractor> {
        for route in routes {
            for (name, _) in &self.params {
                if !has_param(route, name) {
                    return Err(InvalidExtractor::new(format!("route {route:?} has no parameter {name:?}")));
                }
            }
        }
        Ok(self)
    }
}

fn missing(name: &str) -> KeyRejection {
    KeyRejection::misconfigured(format!("the matched route has no path parameter {name:?}"))
}

fn has_param(route: &str, name: &str) -> bool {
    route.split('/').any(|segment| {
        let captured = segment.strip_prefix('{').and_then(|rest| rest.strip_suffix('}'));
        captured.is_some_and(|captured| captured.strip_prefix('*').unwrap_or(captured) == name)
    })
}

impl ExtractKey for ParamKey {
    fn extract(&self, parts: &mut Parts) -> Result<Option<KeySet>, KeyRejection> {
        let params = path_params(parts)?;
        let value = |name: &str| params.iter().find(|(candidate, _)| *candidate == name).map(|(_, value)| value);
        let mut outcome = Ok(());
        let key = written(|key| {
            key.push_str(&self.namespace);
            outcome = self.params.iter().try_for_each(|(name, canonical)| {
                let value = value(name).ok_or_else(|| missing(name))?;
                key.push('/');
                canonical.push(key, value).map_err(|of_type| not_of_type(name, of_type))
            });
        });
        outcome?;
        Ok(Some(key?.into()))
    }

    /// Returns the namespace.
    fn class(&self) -> &str {
        &self.namespace
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mistakes_are_found_at_start_up() {
        let mistake = |key: Result<ParamKey, InvalidExtractor>| key.unwrap_err().to_string();
        assert!(mistake(ParamKey::text("a/b", "id")).contains("namespace"));
        assert!(mistake(ParamKey::text("order", "")).contains("empty"));
        assert!(mistake(ParamKey::text("order", "id").unwrap().with::<u8>("id")).contains("twice"));
        let key = || ParamKey::typed::<u64>("order", "id").unwrap().with_text("rest").unwrap();
        assert!(mistake(key().checked_for(["/orders/{id}"])).contains("\"rest\""));
        assert!(mistake(key().checked_for(["/orders/{id}/{{rest}}"])).contains("\"rest\""));
        assert!(key().checked_for(["/orders/{id}/{*rest}"]).is_ok());
    }
}
