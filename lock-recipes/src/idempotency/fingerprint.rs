//! What tells two requests under the same key apart.

use super::digest::digest_of;
use crate::once::Fingerprint;

/// Returns the fingerprint of a request: a digest of its path, its query and its body. The path
/// counts because the scope may be a route with parameters. Other headers do not count, because
/// retries change them: dates, trace ids, credentials.
pub(super) fn fingerprint(path: &str, query: Option<&str>, body: &[u8]) -> Fingerprint {
    // No query and an empty one differ in the URI alone.
    Fingerprint::new(digest_of(&[path.as_bytes(), query.unwrap_or_default().as_bytes(), body]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_query_and_body_count() {
        let all = [
            fingerprint("/a", None, b"x"),
            fingerprint("/b", None, b"x"),
            fingerprint("/a", Some("q=1"), b"x"),
            fingerprint("/a", Some("q=2"), b"x"),
            fingerprint("/a", None, b"y"),
            fingerprint("/a", None, b""),
            fingerprint("/ax", None, b""),
        ];
        for (index, print) in all.iter().enumerate() {
            assert_eq!(all.iter().filter(|other| *other == print).count(), 1, "{index}");
        }
        assert_eq!(fingerprint("/a", None, b"x"), fingerprint("/a", Some(""), b"x"));
    }
}
