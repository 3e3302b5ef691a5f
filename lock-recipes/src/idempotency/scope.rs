//! The key under which the outcome of a request is remembered.

use std::fmt::Write;

use distlock_api::style::push_escaped;
use distlock_api::{LockError, LockKey};

use super::digest::digest_of;

/// What a key of a client belongs to. Two requests are one piece of work only if all of it is
/// equal.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scope<'a> {
    /// `None` for everyone.
    pub(super) who: Option<&'a str>,
    pub(super) method: &'a str,
    pub(super) route: Route<'a>,
    pub(super) key: &'a str,
}

/// The matched route, or the path of a request without one.
#[derive(Clone, Copy, Debug)]
pub(super) enum Route<'a> {
    #[cfg_attr(not(feature = "axum"), allow(dead_code))]
    Matched(&'a str),
    Path(&'a str),
}

impl Scope<'_> {
    /// Returns the key of the record: `idempotency/` and the four parts, each escaped, so that no
    /// part can be spelt to look like two. A key that would be too long is a digest, under
    /// `idempotency-sha256/`.
    pub(super) fn record_key(&self) -> Result<LockKey, LockError> {
        let mut text = String::from("idempotency/");
        match self.who {
            None => text.push('*'),
            Some(who) => push_part(&mut text, '=', who),
        }
        text.push('/');
        push_escaped(&mut text, self.method);
        text.push('/');
        match self.route {
            Route::Matched(route) => push_part(&mut text, '=', route),
            Route::Path(path) => push_part(&mut text, '~', path),
        }
        text.push('/');
        push_escaped(&mut text, self.key);
        if text.len() <= LockKey::MAX_LEN {
            return LockKey::new(text);
        }
        let mut short = String::from("idempotency-sha256/");
        for byte in digest_of(&[text.as_bytes()]) {
            // Writing to a string does not fail.
            let _ = write!(short, "{byte:02x}");
        }
        LockKey::new(short)
    }
}

fn push_part(text: &mut String, kind: char, part: &str) {
    text.push(kind);
    push_escaped(text, part);
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn key(who: Option<&str>, method: &str, route: Route<'_>, key: &str) -> String {
        Scope { who, method, route, key }.record_key().unwrap().as_str().to_owned()
    }

    #[test]
    fn a_key_is_readable() {
        let known = key(Some("user 7"), "POST", Route::Matched("/orders/{id}"), "k-1");
        assert_eq!(known, "idempotency/=user%207/POST/=%2Forders%2F{id}/k-1");
        assert_eq!(key(None, "PATCH", Route::Path("/a"), "k"), "idempotency/*/PATCH/~%2Fa/k");
    }

    #[test]
    fn no_two_scopes_share_a_key() {
        let long = "x".repeat(2000);
        let parts = ["", "a", "b", "a/a", "a/b", "*", "=a", "a%2Fb", "POST", long.as_str()];
        let mut keys = BTreeSet::new();
        let mut scopes = 0;
        for who in parts.map(Some).into_iter().chain([None]) {
            for method in ["POST", "PATCH", "a"] {
                for route in parts.into_iter().flat_map(|part| [Route::Matched(part), Route::Path(part)]) {
                    for name in parts {
                        keys.insert(key(who, method, route, name));
                        scopes += 1;
                    }
                }
            }
        }
        assert_eq!(keys.len(), scopes);
        assert!(keys.iter().all(|key| key.len() <= LockKey::MAX_LEN));
    }

    #[test]
    fn a_short_key_cannot_be_the_digest_of_a_long_one() {
        let long = key(Some(&"x".repeat(2000)), "POST", Route::Path("/"), "k");
        assert!(long.starts_with("idempotency-sha256/"), "{long}");
        assert!(key(Some("x"), "POST", Route::Path("/"), "k").starts_with("idempotency/"));
    }
}
