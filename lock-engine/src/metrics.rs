//! Metrics of the engine, with the feature `metrics`. A recorder that panics harms no lease.

#[cfg(feature = "metrics")]
mod imp {
    use std::sync::Arc;
    use std::time::Duration;

    use distlock_api::style::contained;

    /// A batch that is sent now: how long each of its requests has waited for company.
    pub(crate) fn batch(store: &str, requests: &'static str, waited: &[Duration]) {
        contained(|| {
            let store: Arc<str> = store.into();
            metrics::histogram!("distlock_batch_size", "store" => store.clone(), "requests" => requests)
                .record(waited.len() as f64);
            let gathering = metrics::histogram!("distlock_gather_seconds", "store" => store, "requests" => requests);
            waited.iter().for_each(|waited| gathering.record(*waited));
        });
    }

    /// Calls that got in line for a permit, or left it.
    pub(crate) fn in_line(lane: &'static str, change: f64) {
        contained(|| metrics::gauge!("distlock_calls_in_line", "lane" => lane).increment(change));
    }
}

#[cfg(not(feature = "metrics"))]
mod imp {
    use std::time::Duration;

    pub(crate) fn batch(_: &str, _: &'static str, _: &[Duration]) {}

    pub(crate) fn in_line(_: &'static str, _: f64) {}
}

pub(crate) use imp::{batch, in_line};
