//! The metrics of idempotent requests, without effect unless the feature `metrics` is on.

use std::sync::Arc;
use std::time::Duration;

#[cfg(feature = "metrics")]
mod imp {
    use distlock_api::style::contained;

    use super::{Arc, Duration};

    pub(in super::super) fn event(class: &Arc<str>, event: &'static str) {
        contained(|| {
            metrics::counter!("distlock_idempotency_total", "class" => class.clone(), "event" => event).increment(1);
        });
    }

    pub(in super::super) fn wait(class: &Arc<str>, outcome: &'static str, wait: Duration) {
        contained(|| {
            metrics::histogram!(
                "distlock_idempotency_wait_seconds", "class" => class.clone(), "outcome" => outcome
            )
            .record(wait);
        });
    }
}

#[cfg(not(feature = "metrics"))]
mod imp {
    use super::{Arc, Duration};

    pub(in super::super) fn event(_: &Arc<str>, _: &'static str) {}
    pub(in super::super) fn wait(_: &Arc<str>, _: &'static str, _: Duration) {}
}

pub(super) use imp::{event, wait};
