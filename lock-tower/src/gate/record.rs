//! The metrics of requests, without effect unless the feature `metrics` is on.

use std::time::Duration;

#[cfg(feature = "metrics")]
mod imp {
    use std::sync::Arc;
    use std::time::Duration;

    use distlock_api::style::contained;

    use crate::refusal::Reason;

    type Class = Arc<str>;

    pub(crate) fn wait(class: &Class, outcome: &'static str, wait: Duration) {
        contained(|| {
            metrics::histogram!("distlock_tower_wait_seconds", "class" => class.clone(), "outcome" => outcome)
                .record(wait);
        });
    }

    pub(crate) fn hold(class: &Class, outcome: &'static str, hold: Duration) {
        contained(|| {
            metrics::histogram!("distlock_tower_hold_seconds", "class" => class.clone(), "outcome" => outcome)
                .record(hold);
        });
    }

    pub(crate) fn refusal(class: &Class, reason: Reason) {
        contained(|| {
            metrics::counter!("distlock_tower_refusals_total", "class" => class.clone(), "reason" => reason.as_str())
                .increment(1);
        });
    }

    pub(crate) fn failed_open(class: &Class) {
        contained(|| metrics::counter!("distlock_tower_failed_open_total", "class" => class.clone()).increment(1));
    }

    /// A waiter that counts in the queue depth until dropped.
    pub(crate) struct Queued(Class);

    impl Queued {
        pub(crate) fn enter(class: &Class) -> Self {
            contained(|| metrics::gauge!("distlock_tower_queue_depth", "class" => class.clone()).increment(1.0));
            Self(class.clone())
        }
    }

    impl Drop for Queued {
        fn drop(&mut self) {
            contained(|| metrics::gauge!("distlock_tower_queue_depth", "class" => self.0.clone()).decrement(1.0));
        }
    }
}

#[cfg(not(feature = "metrics"))]
mod imp {
    use std::sync::Arc;
    use std::time::Duration;

    use crate::refusal::Reason;

    pub(crate) fn wait(_: &Arc<str>, _: &'static str, _: Duration) {}
    pub(crate) fn hold(_: &Arc<str>, _: &'static str, _: Duration) {}
    pub(crate) fn refusal(_: &Arc<str>, _: Reason) {}
    pub(crate) fn failed_open(_: &Arc<str>) {}

    pub(crate) struct Queued;

    impl Queued {
        pub(crate) fn enter(_: &Arc<str>) -> Self {
            Self
        }
    }
}

pub(crate) use imp::{Queued, failed_open, hold, refusal, wait};

/// A duration as the fields of spans and events have it.
pub(super) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
