//! Header fields of requests: the client's key, and how long a caller or a proxy waits.

#[path = "../../../lock-tower/src/http/deadline.rs"]
#[allow(unreachable_pub, rustdoc::all, reason = "it is a part of another package")]
mod deadline;
#[path = "../../../lock-recipes/src/idempotency/header.rs"]
mod header;

use http::{HeaderMap, HeaderName, HeaderValue};

use deadline::DeadlineUnit;

/// Reads each line as a field `Idempotency-Key`: a key has few, visible characters, and is the same
/// when it is quoted.
///
/// # Panics
/// If that is not so.
pub fn idempotency_header(bytes: &[u8]) {
    let Ok(Some(key)) = header::idempotency_key(&fields(&header::IDEMPOTENCY_KEY, bytes)) else { return };
    assert!((1..=header::MAX_KEY_LEN).contains(&key.len()), "{key:?}");
    assert!(key.bytes().all(|byte| (b' '..=b'~').contains(&byte)), "{key:?}");
    let quoted = format!("\"{}\"", key.replace('\\', r"\\").replace('"', r#"\""#));
    let again = header::idempotency_key(&fields(&header::IDEMPOTENCY_KEY, quoted.as_bytes()));
    assert_eq!(again, Ok(Some(key)));
}

/// Reads bytes as each header that names a deadline: the nearest one counts, and none makes a wait
/// longer.
///
/// # Panics
/// If that is not so.
pub fn forwarded_headers(bytes: &[u8]) {
    let grpc = HeaderName::from_static("grpc-timeout");
    let (seconds, milliseconds) = (HeaderName::from_static("x-seconds"), HeaderName::from_static("x-milliseconds"));
    let more = [(seconds.clone(), DeadlineUnit::Seconds), (milliseconds.clone(), DeadlineUnit::Milliseconds)];
    let each = [&grpc, &seconds, &milliseconds].map(|name| deadline::deadline(&fields(name, bytes), &more));
    assert_eq!(each[0], deadline::grpc_timeout(&fields(&grpc, bytes)));
    let mut all = fields(&grpc, bytes);
    for (name, _) in &more {
        all.extend(fields(name, bytes));
    }
    assert_eq!(deadline::deadline(&all, &more), each.into_iter().flatten().min());
    assert_eq!(deadline::deadline(&all, &[]), each[0], "a header that is not configured counts");
}

/// Returns the lines as fields of this name, without those that no server accepts.
fn fields(name: &HeaderName, bytes: &[u8]) -> HeaderMap {
    let values = bytes.split(|byte| *byte == b'\n').filter_map(|value| HeaderValue::from_bytes(value).ok());
    let mut fields = HeaderMap::new();
    values.for_each(|value| _ = fields.append(name, value));
    fields
}
