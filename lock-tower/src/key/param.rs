//! A key out of path parameters.

use http::request::Parts;

use super::names::{namespace, push_escaped, written};
use super::route::path_params;
use super::{ExtractKey, InvalidExtractor};
use crate::keys::KeySet;
use crate::refusal::KeyRejection;

/// Path parameters within a namespace: parameter `id` of `/orders/7/ship` in namespace `order` is the key `order/7`.
///
/// The route is not part of the key: every route that names the same resource shares its lock.
///
/// # Where to put the layer
/// Inside of the router, on routes that have the parameters. Elsewhere every request is answered 500 and logged as an error, because serving it without its lock
/// would be worse. A layer is not told the routes it is put on, so [`checked_for`](Self::checked_for) lets you name them: then a typing mistake is found at start-up.
///
/// ```
/// use axum::{Router, routing::{post, put}};
/// use distlock_memory::MemoryProvider;
/// use distlock_tower::{LockLayer, key::ParamKey};
///
/// const ORDER: &str = "/orders/{id}";
/// const SHIP: &str = "/orders/{id}/ship";
///
/// let order = ParamKey::new("order", ["id"])?.checked_for([ORDER, SHIP])?;
/// let app: Router = Router::new()
///     .route(ORDER, put(|| async { "changed" }))
///     .route(SHIP, post(|| async { "shipped" }))
///     .route_layer(LockLayer::new(MemoryProvider::new(), order));
/// # Ok::<(), distlock_tower::key::InvalidExtractor>(())
/// ```
#[derive(Clone, Debug)]
pub struct ParamKey {
    namespace: String,
    names: Vec<String>,
}

impl ParamKey {
    /// The values of these path parameters, in this order, in a namespace.
    ///
    /// # Errors
    /// When the namespace is empty or contains `/`, `%` or control characters, when no parameter is named, or one twice.
    pub fn new<N: Into<String>>(
        in_namespace: &str,
        names: impl IntoIterator<Item = N>,
    ) -> Result<Self, InvalidExtractor> {
        let namespace = namespace(in_namespace)?;
        let names: Vec<String> = names.into_iter().map(Into::into).collect();
        if names.is_empty() {
            return Err(InvalidExtractor::new("no path parameter is named"));
        }
        for (index, name) in names.iter().enumerate() {
            if name.is_empty() || names[..index].contains(name) {
                return Err(InvalidExtractor::new(format!("path parameter {name:?} is empty or named twice")));
            }
        }
        Ok(Self { namespace, names })
    }

    /// Makes sure that each of these routes, in axum's notation, has the parameters.
    ///
    /// # Errors
    /// When one does not.
    pub fn checked_for<'a>(self, routes: impl IntoIterator<Item = &'a str>) -> Result<Self, InvalidExtractor> {
        for route in routes {
            for name in &self.names {
                if !has_param(route, name) {
                    return Err(InvalidExtractor::new(format!("route {route:?} has no parameter {name:?}")));
                }
            }
        }
        Ok(self)
    }
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
        let mut missing = None;
        let key = written(|key| {
            key.push_str(&self.namespace);
            for name in &self.names {
                let Some(value) = value(name) else {
                    missing.get_or_insert(name);
                    continue;
                };
                key.push('/');
                push_escaped(key, value);
            }
        });
        if let Some(name) = missing {
            return Err(KeyRejection::misconfigured(format!("the matched route has no path parameter {name:?}")));
        }
        Ok(Some(key?.into()))
    }

    /// The namespace.
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
        assert!(mistake(ParamKey::new("a/b", ["id"])).contains("namespace"));
        assert!(mistake(ParamKey::new("order", [""; 0])).contains("no path parameter"));
        assert!(mistake(ParamKey::new("order", ["id", "id"])).contains("twice"));
        let key = || ParamKey::new("order", ["id", "rest"]).unwrap();
        assert!(mistake(key().checked_for(["/orders/{id}"])).contains("\"rest\""));
        assert!(mistake(key().checked_for(["/orders/{id}/{{rest}}"])).contains("\"rest\""));
        assert!(key().checked_for(["/orders/{id}/{*rest}"]).is_ok());
    }
}
