//! Keys from the paths of requests.

use std::fmt::Write;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::routing::any;
use distlock_tower::key::{ExtractKey, ParamKey, RouteKey};
use http::{StatusCode, Uri};
use http_body_util::BodyExt;
use tower::ServiceExt;

use crate::block_on;

/// The longest value: its key is shorter than the longest key.
const LONGEST: usize = 200;

/// Reads bytes as a path, and as two values that a NUL divides: different values are different
/// keys, and no value adds a part to its key.
///
/// # Panics
/// If that is not so.
pub fn path_keys(bytes: &[u8]) {
    if let Ok(uri) = Uri::try_from(bytes) {
        keys(uri);
    }
    let mut values = bytes.splitn(2, |byte| *byte == 0).filter(|value| !value.is_empty());
    let (Some(first), Some(second)) = (values.next(), values.next()) else { return };
    let [first, second] = [first, second].map(|value| &value[..value.len().min(LONGEST)]);
    let both = [first, second].map(|value| {
        let keys = keys(path(value));
        assert_eq!(keys.is_some(), std::str::from_utf8(value).is_ok(), "{value:?}");
        keys
    });
    if let [Some(one), Some(other)] = both {
        let same = first == second;
        assert_eq!([one.0 == other.0, one.1 == other.1], [same, same], "{one:?} {other:?}");
    }
}

/// Returns a path whose value is encoded.
fn path(value: &[u8]) -> Uri {
    let mut path = String::from("/items/");
    for byte in value {
        // Writing to a string does not fail.
        let _ = write!(path, "%{byte:02X}");
    }
    path.parse().expect("a path of visible characters")
}

/// Returns the key of the value, and that of the route, if a router gets this far.
fn keys(uri: Uri) -> Option<(String, String)> {
    let router: Router = Router::new().route("/items/{item}", any(answer_keys));
    let answer = async {
        let request = Request::builder().uri(uri).body(Body::empty()).ok()?;
        let response = router.oneshot(request).await.unwrap_or_else(|never| match never {});
        let is_refused = response.status() != StatusCode::OK;
        let text = response.into_body().collect().await.expect("a body in memory").to_bytes();
        (!is_refused).then(|| String::from_utf8(text.into()).expect("two keys"))
    };
    let text = block_on(answer)?;
    let (item, route) = text.split_once('\n').expect("keys without line ends");
    assert!(item.strip_prefix("item/").is_some_and(|value| !value.contains('/')), "{item}");
    assert!(!text.replacen('\n', "", 1).chars().any(char::is_control), "{text:?}");
    Some((item.to_owned(), route.to_owned()))
}

async fn answer_keys(request: Request) -> Result<String, StatusCode> {
    let (mut parts, _) = request.into_parts();
    let item = ParamKey::text("item", "item").expect("valid names").extract(&mut parts);
    let route = RouteKey::any_method().text("item").extract(&mut parts);
    let (Ok(Some(item)), Ok(Some(route))) = (item, route) else { return Err(StatusCode::BAD_REQUEST) };
    Ok([&item, &route].map(|keys| keys.as_slice()[0].as_str()).join("\n"))
}
