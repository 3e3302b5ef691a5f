//! The fields that spans of locks have in common.

use std::fmt::Display;

use tracing::field::display;
use tracing::{Level, Span};

use crate::error::LockError;

/// Records a key as the field `lock.key` of a span, if the target `distlock::keys` is enabled at
/// the level `TRACE`. A key may name a person, and a span often leaves the house.
pub fn record_key(span: &Span, key: &impl Display) {
    if tracing::enabled!(target: "distlock::keys", Level::TRACE) {
        span.record("lock.key", display(key));
    }
}

/// Marks a span as failed: the field `otel.status_code` becomes `ERROR`, and `error` this error.
/// [`record_error`] does so with an error of a lock.
pub fn record_failure(span: &Span, error: &impl Display) {
    span.record("otel.status_code", "ERROR");
    span.record("error", display(error));
}

/// Marks a span as failed with an error of a lock, whose key is left out as [`record_key`] does.
pub fn record_error(span: &Span, error: &LockError) {
    record_failure(span, &error.clone().without_key());
}
