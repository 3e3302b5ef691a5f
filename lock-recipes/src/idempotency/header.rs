//! The request header that carries the key.

use std::fmt;

use http::{HeaderMap, HeaderName, HeaderValue};

pub(super) const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// The length of the longest key, in characters.
pub(super) const MAX_KEY_LEN: usize = 255;

/// Why a request has no valid key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BadHeader {
    Several,
    Length,
    Characters,
    Unterminated,
    Trailing,
}

impl fmt::Display for BadHeader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Several => "the request has several `Idempotency-Key` fields: send one",
            Self::Length => "an idempotency key has 1 to 255 characters",
            Self::Characters => {
                "an idempotency key has printable ASCII characters: quote it as a structured-field string"
            }
            Self::Unterminated => "the string of `Idempotency-Key` has no closing quote",
            Self::Trailing => "`Idempotency-Key` has more than one string: send one, without parameters",
        })
    }
}

impl std::error::Error for BadHeader {}

/// Returns the key of a request, or `None` without the header.
pub(super) fn idempotency_key(headers: &HeaderMap) -> Result<Option<String>, BadHeader> {
    let mut values = headers.get_all(IDEMPOTENCY_KEY).iter();
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return Err(BadHeader::Several);
    }
    let key = parse(value)?;
    if key.is_empty() || key.len() > MAX_KEY_LEN { Err(BadHeader::Length) } else { Ok(Some(key)) }
}

/// Reads a string of RFC 9651, 4.2.5, or a bare token, which means the same as when it is quoted.
fn parse(value: &HeaderValue) -> Result<String, BadHeader> {
    let text = value.to_str().map_err(|_| BadHeader::Characters)?.trim_matches([' ', '\t']);
    match text.strip_prefix('"') {
        Some(quoted) => unquote(quoted),
        None if text.bytes().all(is_bare) => Ok(text.to_owned()),
        None => Err(BadHeader::Characters),
    }
}

/// What a bare token may contain: all that is visible but the separators of structured fields. So a
/// list of two keys, or a key with parameters, is never read as one key.
const fn is_bare(byte: u8) -> bool {
    byte.is_ascii_graphic() && !matches!(byte, b'"' | b'\\' | b',' | b';')
}

/// Reads a string after its opening quote.
fn unquote(quoted: &str) -> Result<String, BadHeader> {
    let mut key = String::with_capacity(quoted.len());
    let mut chars = quoted.chars();
    loop {
        match chars.next().ok_or(BadHeader::Unterminated)? {
            '"' => break,
            '\\' => match chars.next().ok_or(BadHeader::Unterminated)? {
                escaped @ ('"' | '\\') => key.push(escaped),
                _ => return Err(BadHeader::Characters),
            },
            plain @ ' '..='~' => key.push(plain),
            _ => return Err(BadHeader::Characters),
        }
    }
    if chars.as_str().is_empty() { Ok(key) } else { Err(BadHeader::Trailing) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(values: &[&[u8]]) -> Result<Option<String>, BadHeader> {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(IDEMPOTENCY_KEY, HeaderValue::from_bytes(value).unwrap());
        }
        idempotency_key(&headers)
    }

    #[test]
    fn strings_and_bare_tokens_are_keys() {
        let cases: [(&str, &str); 8] = [
            (r#""8e03978e-40d5-43dd-bc93-6894a57f9324""#, "8e03978e-40d5-43dd-bc93-6894a57f9324"),
            ("8e03978e-40d5-43dd-bc93-6894a57f9324", "8e03978e-40d5-43dd-bc93-6894a57f9324"),
            ("  a/b:c=%2F\t", "a/b:c=%2F"),
            (r#""with space""#, "with space"),
            (r#""a\"b\\c""#, r#"a"b\c"#),
            (r#""a,b;c""#, "a,b;c"),
            (r#"" ""#, " "),
            ("KEY", "KEY"),
        ];
        for (given, key) in cases {
            assert_eq!(read(&[given.as_bytes()]), Ok(Some(key.into())), "{given}");
        }
        assert_eq!(read(&[]), Ok(None));
    }

    #[test]
    fn everything_else_is_refused() {
        let cases: [(&[u8], BadHeader); 14] = [
            (b"", BadHeader::Length),
            (b"\"\"", BadHeader::Length),
            (b"a b", BadHeader::Characters),
            (b"a,b", BadHeader::Characters),
            (b"a;v=1", BadHeader::Characters),
            (b"a\\b", BadHeader::Characters),
            (b"a\"", BadHeader::Characters),
            (b"\"a\\n\"", BadHeader::Characters),
            (b"\"a\tb\"", BadHeader::Characters),
            ("\"é\"".as_bytes(), BadHeader::Characters),
            (b"\"a", BadHeader::Unterminated),
            (b"\"a\\", BadHeader::Unterminated),
            (b"\"a\";v=1", BadHeader::Trailing),
            (b"\"a\", \"b\"", BadHeader::Trailing),
        ];
        for (given, error) in cases {
            assert_eq!(read(&[given]), Err(error), "{:?}", String::from_utf8_lossy(given));
        }
        assert_eq!(read(&[b"a", b"a"]), Err(BadHeader::Several));
        let long = "k".repeat(MAX_KEY_LEN);
        assert_eq!(read(&[long.as_bytes()]), Ok(Some(long.clone())));
        assert_eq!(read(&[format!("{long}k").as_bytes()]), Err(BadHeader::Length));
    }
}
