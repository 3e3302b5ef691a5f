//! What tells two requests under the same key apart.

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HOST};
use http::request::Parts;
use http::uri::Authority;

use super::config::Content;
use super::digest::digest_of;
use crate::once::Fingerprint;

/// Returns the fingerprint of a request: a digest of its path and its query, and of what `content`
/// makes of the rest: by default its host, its content type and its body. The path counts because
/// the scope may be a route with parameters. Other headers do not count, because retries change
/// them: dates, trace ids, credentials.
pub(super) fn fingerprint(parts: &Parts, path: &str, body: &Bytes, content: Option<&Content>) -> Fingerprint {
    // No query and an empty one differ in the URI alone.
    let query = parts.uri.query().unwrap_or_default();
    let mut all = vec![path.as_bytes(), query.as_bytes()];
    if let Some(content) = content {
        let content = content(parts, body);
        all.push(&content);
        return Fingerprint::new(digest_of(&all));
    }
    let (host, kind) = (host(parts), Kind::of(parts));
    all.extend([host.as_bytes(), kind.essence.as_bytes()]);
    match &kind.boundary {
        Some(boundary) => all.extend(between(body, boundary.as_bytes())),
        None => all.push(body),
    }
    Fingerprint::new(digest_of(&all))
}

/// Returns the host to which a request was sent, without its port: that is another one at each
/// replica that a client can reach directly.
fn host(parts: &Parts) -> String {
    let header = || parts.headers.get(HOST).map(|host| Authority::try_from(host.as_bytes()).map_err(|_| host));
    let host = match parts.uri.host() {
        Some(host) => host.to_owned(),
        None => match header() {
            Some(Ok(authority)) => authority.host().to_owned(),
            Some(Err(other)) => String::from_utf8_lossy(other.as_bytes()).into_owned(),
            None => String::new(),
        },
    };
    host.to_ascii_lowercase()
}

/// The content type of a request.
struct Kind {
    /// Without spaces, case and boundary.
    essence: String,
    /// What divides the parts of a multipart body. A client chooses another one for each try.
    boundary: Option<String>,
}

impl Kind {
    fn of(parts: &Parts) -> Self {
        let text = parts.headers.get(CONTENT_TYPE).map(|value| String::from_utf8_lossy(value.as_bytes()));
        let text = text.unwrap_or_default();
        let is_multipart = text.trim_start().get(..10).is_some_and(|start| start.eq_ignore_ascii_case("multipart/"));
        let (mut essence, mut boundary) = (String::new(), None);
        for part in text.split(';').map(str::trim) {
            match part.split_once('=') {
                Some((name, value)) if is_multipart && name.trim().eq_ignore_ascii_case("boundary") => {
                    boundary = Some(value.trim().trim_matches('"').to_owned());
                }
                _ => {
                    essence.extend(
                        part.chars().filter(|char| !char.is_whitespace()).map(|char| char.to_ascii_lowercase()),
                    );
                    essence.push(';');
                }
            }
        }
        Self { essence, boundary: boundary.filter(|boundary| !boundary.is_empty()) }
    }
}

/// Returns what is between the delimiters of a multipart body: lines that begin with `--` and the
/// boundary (RFC 2046, 5.1.1).
fn between<'a>(body: &'a [u8], boundary: &[u8]) -> Vec<&'a [u8]> {
    let is_delimiter = |at: usize| body[at..].strip_prefix(b"--").is_some_and(|rest| rest.starts_with(boundary));
    let (mut parts, mut begin, mut line) = (Vec::new(), 0, 0);
    loop {
        if is_delimiter(line) {
            parts.push(&body[begin..line]);
            begin = line + 2 + boundary.len();
        }
        match body[line..].windows(2).position(|pair| pair == b"\r\n") {
            Some(end) => line += end + 2,
            None => break,
        }
    }
    parts.push(&body[begin..]);
    parts
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    struct Sent {
        uri: &'static str,
        headers: Vec<(&'static str, &'static str)>,
        body: &'static str,
    }

    fn sent(uri: &'static str, body: &'static str) -> Sent {
        Sent { uri, headers: Vec::new(), body }
    }

    impl Sent {
        fn with(mut self, name: &'static str, value: &'static str) -> Self {
            self.headers.push((name, value));
            self
        }

        fn fingerprint(&self, content: Option<&Content>) -> Fingerprint {
            let mut request = Request::post(self.uri);
            for (name, value) in &self.headers {
                request = request.header(*name, *value);
            }
            let (parts, ()) = request.body(()).unwrap().into_parts();
            fingerprint(&parts, parts.uri.path(), &Bytes::from_static(self.body.as_bytes()), content)
        }
    }

    fn all_differ<const N: usize>(requests: [Sent; N], content: Option<&Content>) {
        let all = requests.map(|request| request.fingerprint(content));
        for (index, print) in all.iter().enumerate() {
            assert_eq!(all.iter().filter(|other| *other == print).count(), 1, "{index}");
        }
    }

    fn all_are_one<const N: usize>(requests: [Sent; N], content: Option<&Content>) {
        let all = requests.map(|request| request.fingerprint(content));
        for (index, print) in all.iter().enumerate() {
            assert_eq!(*print, all[0], "{index}");
        }
    }

    #[test]
    fn path_query_host_type_and_body_count() {
        all_differ(
            [
                sent("/a", "x"),
                sent("/b", "x"),
                sent("/a?q=1", "x"),
                sent("/a?q=2", "x"),
                sent("/a", "y"),
                sent("/a", ""),
                sent("/ax", ""),
                sent("/a", "x").with("host", "one.example"),
                sent("/a", "x").with("host", "two.example"),
                sent("/a", "x").with("content-type", "text/plain"),
                sent("/a", "x").with("content-type", "application/json"),
            ],
            None,
        );
        all_are_one([sent("/a", "x"), sent("/a?", "x"), sent("/a", "x").with("date", "now")], None);
        all_are_one(
            [
                sent("/a", "x").with("host", "one.example"),
                sent("/a", "x").with("host", "One.Example:8080"),
                sent("http://one.example/a", "x"),
            ],
            None,
        );
        all_are_one(
            [
                sent("/a", "x").with("content-type", "text/plain; charset=utf-8"),
                sent("/a", "x").with("content-type", "Text/Plain;charset=UTF-8"),
            ],
            None,
        );
    }

    #[test]
    fn the_boundary_of_a_form_does_not_count_and_its_parts_do() {
        let form = |boundary, body| sent("/a", body).with("content-type", boundary);
        all_are_one(
            [
                form("multipart/form-data; boundary=aa", "--aa\r\n\r\none\r\n--aa\r\n\r\ntwo\r\n--aa--\r\n"),
                form("multipart/form-data; boundary=bbb", "--bbb\r\n\r\none\r\n--bbb\r\n\r\ntwo\r\n--bbb--\r\n"),
                form("Multipart/Form-Data;boundary=\"c\"", "--c\r\n\r\none\r\n--c\r\n\r\ntwo\r\n--c--\r\n"),
            ],
            None,
        );
        all_differ(
            [
                form("multipart/form-data; boundary=aa", "--aa\r\n\r\none\r\n--aa\r\n\r\ntwo\r\n--aa--\r\n"),
                form("multipart/form-data; boundary=aa", "--aa\r\n\r\none\r\n--bb\r\n\r\ntwo\r\n--aa--\r\n"),
                form("multipart/form-data; boundary=aa", "--aa\r\n\r\none\r\n--aa\r\n\r\nTWO\r\n--aa--\r\n"),
                form("multipart/mixed; boundary=aa", "--aa\r\n\r\none\r\n--aa\r\n\r\ntwo\r\n--aa--\r\n"),
                form("multipart/form-data; boundary=", "--aa\r\n\r\none\r\n--aa\r\n\r\ntwo\r\n--aa--\r\n"),
                form("text/plain; boundary=aa", "--aa\r\n\r\none\r\n--aa\r\n\r\ntwo\r\n--aa--\r\n"),
                form("text/plain; boundary=bb", "--bb\r\n\r\none\r\n--bb\r\n\r\ntwo\r\n--bb--\r\n"),
                form("multipart/form-data; boundary=aa", ""),
                form("multipart/form-data; boundary=aa", "\r"),
            ],
            None,
        );
    }

    #[test]
    fn a_function_takes_the_place_of_host_type_and_body() {
        let content = |_: &Parts, body: &Bytes| body.slice(..1);
        all_are_one(
            [sent("/a", "x1"), sent("/a", "x2").with("host", "one.example").with("content-type", "text/plain")],
            Some(&content),
        );
        all_differ([sent("/a", "x1"), sent("/a", "y1"), sent("/b", "x1"), sent("/a?q=1", "x1")], Some(&content));
    }
}
