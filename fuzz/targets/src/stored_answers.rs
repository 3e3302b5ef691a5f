//! The answers that are remembered for requests with an `Idempotency-Key`.

#[path = "../../../lock-recipes/src/idempotency/codec.rs"]
#[allow(dead_code, reason = "the rest of that package uses it")]
mod codec;

/// Reads bytes as a remembered answer: each answer has one form only.
///
/// # Panics
/// If that is not so.
pub fn stored_answers(bytes: &[u8]) {
    if let Ok(answer) = codec::decode(bytes) {
        assert_eq!(codec::encode(&answer).as_deref(), Some(bytes), "{answer:?}");
    }
}
