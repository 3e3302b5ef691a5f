//! The report of a call, with its metrics if the feature `metrics` is on.

use std::future::Future;
use std::sync::Arc;

use distlock_api::style::{record_error, record_key};
use distlock_api::{LockKey, Result};
use tracing::Instrument;
use tracing::field::Empty;

use super::Once;

/// Makes a call of [`once_with`](super::OnceProvider::once_with), and reports it under a name as
/// the [module](super#spans-and-metrics) says. Reports nothing without a name. For backends.
///
/// # Errors
/// Those of `call`.
///
/// # Cancel safety
/// As cancel safe as `call`. One that is dropped is not counted.
pub async fn report_once(
    name: Option<&Arc<str>>,
    key: &LockKey,
    call: impl Future<Output = Result<Once>>,
) -> Result<Once> {
    let Some(name) = name else { return call.await };
    let span = tracing::info_span!(
        "distlock.once",
        lock.provider = %name,
        lock.key = Empty,
        lock.outcome = Empty,
        otel.status_code = Empty,
        error = Empty,
    );
    record_key(&span, key);
    let answer = call.instrument(span.clone()).await;
    let outcome = outcome(&answer);
    span.record("lock.outcome", outcome);
    if let Err(error) = &answer {
        record_error(&span, error);
    }
    record::answered(name, outcome);
    answer
}

fn outcome(answer: &Result<Once>) -> &'static str {
    match answer {
        Ok(Once::Begun(work)) if work.interrupted().is_some() => "begun_again",
        Ok(Once::Begun(_)) => "begun",
        Ok(Once::Busy(_)) => "busy",
        Ok(Once::Done(_)) => "done",
        Ok(Once::Interrupted(_)) => "interrupted",
        Ok(Once::Mismatch(_)) => "mismatch",
        Err(error) => error.kind().as_str(),
    }
}

#[cfg(feature = "metrics")]
mod record {
    use std::sync::Arc;

    use distlock_api::style::contained;

    pub(super) fn answered(name: &Arc<str>, outcome: &'static str) {
        contained(|| {
            metrics::counter!("distlock_once_total", "provider" => name.clone(), "outcome" => outcome).increment(1);
        });
    }
}

#[cfg(not(feature = "metrics"))]
mod record {
    use std::sync::Arc;

    pub(super) fn answered(_: &Arc<str>, _: &'static str) {}
}
