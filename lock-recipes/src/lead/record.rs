//! The metrics of candidates, with the feature `metrics`. A recorder that panics ends no term.

#[cfg(feature = "metrics")]
mod imp {
    use std::sync::Arc;
    use std::time::Duration;

    use distlock_api::style::contained;

    pub(crate) fn candidates(name: &Arc<str>, status: &'static str, change: f64) {
        contained(|| {
            metrics::gauge!("distlock_lead_candidates", "name" => name.clone(), "status" => status).increment(change);
        });
    }

    pub(crate) fn term(name: &Arc<str>, outcome: &'static str, term: Duration) {
        contained(|| {
            metrics::histogram!("distlock_lead_term_seconds", "name" => name.clone(), "outcome" => outcome)
                .record(term);
        });
    }
}

#[cfg(not(feature = "metrics"))]
mod imp {
    use std::sync::Arc;
    use std::time::Duration;

    pub(crate) fn candidates(_: &Arc<str>, _: &'static str, _: f64) {}

    pub(crate) fn term(_: &Arc<str>, _: &'static str, _: Duration) {}
}

pub(super) use imp::{candidates, term};
