//! The format of a remembered outcome.
//!
//! | bytes | content |
//! |---|---|
//! | 1 | the version, 1 |
//! | 1 | the kind: 1 for an answer, 2 for work that is done, but whose answer was not kept |
//! | 2 | the status |
//!
//! An answer continues with the number of headers (2 bytes). Each header is the length of its name
//! (2), the name, the length of its value (4) and the value. Then follow the length of the body (4)
//! and the body. Numbers are big-endian. Nothing follows.

use std::fmt;

use bytes::Bytes;
use http::{HeaderName, HeaderValue, StatusCode};

const VERSION: u8 = 1;
const ANSWER: u8 = 1;
const NOT_KEPT: u8 = 2;

/// What is remembered of work that is done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Remembered {
    Answer(KeptAnswer),
    /// The status of the answer that was not kept.
    NotKept(StatusCode),
}

/// An answer that is sent again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct KeptAnswer {
    pub(super) status: StatusCode,
    pub(super) headers: Vec<(HeaderName, HeaderValue)>,
    pub(super) body: Bytes,
}

/// Why bytes are no outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DecodeError {
    Version(u8),
    Kind(u8),
    Status(u16),
    Header,
    Truncated,
    Trailing(usize),
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the remembered outcome cannot be read: ")?;
        match self {
            Self::Version(version) => {
                write!(f, "its format has version {version}, this process reads version {VERSION}: update it")
            }
            Self::Kind(kind) => write!(f, "its kind {kind} is unknown"),
            Self::Status(status) => write!(f, "{status} is no HTTP status"),
            Self::Header => f.write_str("one of its headers is not valid"),
            Self::Truncated => f.write_str("it ends too early"),
            Self::Trailing(bytes) => write!(f, "{bytes} bytes follow its end"),
        }
    }
}

impl std::error::Error for DecodeError {}

/// Returns the bytes of an outcome. `None` if it has more headers or longer ones than the format
/// can say.
pub(super) fn encode(outcome: &Remembered) -> Option<Vec<u8>> {
    match outcome {
        Remembered::NotKept(status) => Some(encode_not_kept(*status).to_vec()),
        Remembered::Answer(answer) => encode_answer(answer),
    }
}

/// Returns the bytes of work that is done, but whose answer was not kept.
pub(super) fn encode_not_kept(status: StatusCode) -> [u8; 4] {
    let [high, low] = status.as_u16().to_be_bytes();
    [VERSION, NOT_KEPT, high, low]
}

fn encode_answer(answer: &KeptAnswer) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(answer.body.len() + 256);
    bytes.extend([VERSION, ANSWER]);
    bytes.extend(answer.status.as_u16().to_be_bytes());
    bytes.extend(u16::try_from(answer.headers.len()).ok()?.to_be_bytes());
    for (name, value) in &answer.headers {
        bytes.extend(u16::try_from(name.as_str().len()).ok()?.to_be_bytes());
        bytes.extend(name.as_str().as_bytes());
        bytes.extend(u32::try_from(value.len()).ok()?.to_be_bytes());
        bytes.extend(value.as_bytes());
    }
    bytes.extend(u32::try_from(answer.body.len()).ok()?.to_be_bytes());
    bytes.extend(&answer.body);
    Some(bytes)
}

/// Reads an outcome. Every byte must be as this version writes it.
pub(super) fn decode(bytes: &[u8]) -> Result<Remembered, DecodeError> {
    let mut rest = bytes;
    match take::<1>(&mut rest)? {
        [VERSION] => {}
        [version] => return Err(DecodeError::Version(version)),
    }
    let [kind] = take::<1>(&mut rest)?;
    let status = u16::from_be_bytes(take(&mut rest)?);
    let status = StatusCode::from_u16(status).map_err(|_| DecodeError::Status(status))?;
    let outcome = match kind {
        NOT_KEPT => Remembered::NotKept(status),
        ANSWER => Remembered::Answer(decode_answer(status, &mut rest)?),
        kind => return Err(DecodeError::Kind(kind)),
    };
    if rest.is_empty() { Ok(outcome) } else { Err(DecodeError::Trailing(rest.len())) }
}

fn decode_answer(status: StatusCode, rest: &mut &[u8]) -> Result<KeptAnswer, DecodeError> {
    let count = u16::from_be_bytes(take(rest)?);
    let mut headers = Vec::new();
    for _ in 0..count {
        let len = u16::from_be_bytes(take(rest)?);
        let name = take_slice(rest, len.into())?;
        // `HeaderName` folds case, but only lower case is written.
        let lower = name.iter().all(|byte| !byte.is_ascii_uppercase());
        let name = HeaderName::from_bytes(name).ok().filter(|_| lower).ok_or(DecodeError::Header)?;
        let value = take_long(rest)?;
        headers.push((name, HeaderValue::from_bytes(value).map_err(|_| DecodeError::Header)?));
    }
    let body = Bytes::copy_from_slice(take_long(rest)?);
    Ok(KeptAnswer { status, headers, body })
}

fn take<const N: usize>(rest: &mut &[u8]) -> Result<[u8; N], DecodeError> {
    let (taken, left) = rest.split_first_chunk().ok_or(DecodeError::Truncated)?;
    *rest = left;
    Ok(*taken)
}

fn take_long<'a>(rest: &mut &'a [u8]) -> Result<&'a [u8], DecodeError> {
    let len = u32::from_be_bytes(take(rest)?);
    take_slice(rest, usize::try_from(len).map_err(|_| DecodeError::Truncated)?)
}

fn take_slice<'a>(rest: &mut &'a [u8], len: usize) -> Result<&'a [u8], DecodeError> {
    let (taken, left) = rest.split_at_checked(len).ok_or(DecodeError::Truncated)?;
    *rest = left;
    Ok(taken)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(status: u16, headers: &[(&'static str, &'static [u8])], body: &'static [u8]) -> Remembered {
        let headers = headers
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_bytes(value).unwrap()));
        Remembered::Answer(KeptAnswer {
            status: StatusCode::from_u16(status).unwrap(),
            headers: headers.collect(),
            body: Bytes::from_static(body),
        })
    }

    fn samples() -> [Remembered; 5] {
        [
            answer(201, &[("content-type", b"application/json"), ("location", b"/orders/7")], b"{\"id\":7}"),
            answer(200, &[("x-a", b""), ("x-a", b"\xff obs-text"), ("x-a", b"2")], b"\0\xff"),
            answer(999, &[], b""),
            answer(404, &[], b"none"),
            Remembered::NotKept(StatusCode::OK),
        ]
    }

    #[test]
    fn outcomes_are_read_as_they_were_written() {
        for outcome in samples() {
            assert_eq!(decode(&encode(&outcome).unwrap()), Ok(outcome));
        }
    }

    #[test]
    fn the_format_does_not_change() {
        let outcome = answer(201, &[("a", b"b")], b"cd");
        assert_eq!(encode(&outcome).unwrap(), b"\x01\x01\x00\xc9\x00\x01\x00\x01a\x00\x00\x00\x01b\x00\x00\x00\x02cd");
        assert_eq!(encode(&Remembered::NotKept(StatusCode::OK)).unwrap(), b"\x01\x02\x00\xc8");
    }

    #[test]
    fn every_part_of_an_outcome_is_truncated() {
        for outcome in samples() {
            let bytes = encode(&outcome).unwrap();
            for len in 0..bytes.len() {
                assert_eq!(decode(&bytes[..len]), Err(DecodeError::Truncated), "{len} of {outcome:?}");
            }
        }
    }

    #[test]
    fn nothing_else_is_read() {
        let cases: [(&[u8], DecodeError); 8] = [
            (b"\x00\x01\x00\xc8", DecodeError::Version(0)),
            (b"\x02anything", DecodeError::Version(2)),
            (b"\x01\x03\x00\xc8", DecodeError::Kind(3)),
            (b"\x01\x02\x00\x63", DecodeError::Status(99)),
            (b"\x01\x02\x00\xc8\x00", DecodeError::Trailing(1)),
            (b"\x01\x01\x00\xc8\x00\x01\x00\x01A\x00\x00\x00\x00\x00\x00\x00\x00", DecodeError::Header),
            (b"\x01\x01\x00\xc8\x00\x01\x00\x01a\x00\x00\x00\x01\n\x00\x00\x00\x00", DecodeError::Header),
            (b"\x01\x01\x00\xc8\x00\x00\xff\xff\xff\xffbody", DecodeError::Truncated),
        ];
        for (bytes, error) in cases {
            assert_eq!(decode(bytes), Err(error), "{bytes:?}");
        }
    }
}
