//! Counts: waits and their percentiles, lost updates, and the labels of answers.

use std::collections::BTreeMap;
use std::time::Duration;

/// How long requests waited, in steps of 0.1 ms. It stays small however long the program runs.
#[derive(Clone, Debug, Default)]
pub(crate) struct Waits {
    steps: BTreeMap<u64, u64>,
    count: u64,
    sum: Duration,
}

const STEP_MICROS: u64 = 100;

impl Waits {
    pub(crate) fn add(&mut self, wait: Duration) {
        let micros = u64::try_from(wait.as_micros()).unwrap_or(u64::MAX);
        *self.steps.entry(micros.div_ceil(STEP_MICROS)).or_default() += 1;
        self.count += 1;
        self.sum += wait;
    }

    pub(crate) fn mean(&self) -> Option<Duration> {
        (self.count > 0).then(|| self.sum.div_f64(self.count as f64))
    }

    /// The shortest wait that at least this share of all waits did not exceed (the nearest rank),
    /// rounded up to a step.
    pub(crate) fn percentile(&self, percent: u64) -> Option<Duration> {
        let rank = (self.count * percent).div_ceil(100).max(1);
        let mut seen = 0;
        let (step, _) = self.steps.iter().find(|(_, count)| {
            seen += **count;
            seen >= rank
        })?;
        Some(Duration::from_micros(step * STEP_MICROS))
    }
}

/// How many of `writes` updates, each of which added one, are missing from the counter.
pub(crate) fn lost_updates(writes: u64, counter: u64) -> u64 {
    writes.saturating_sub(counter)
}

/// The label of an answer that is a success.
pub(crate) const OK: &str = "ok";

/// The label of an answer: `ok`, or its status with the reason in the layer's problem document.
pub(crate) fn label(status: u16, body: &[u8]) -> String {
    if (200..300).contains(&status) {
        return OK.to_owned();
    }
    let problem: Option<serde_json::Value> = serde_json::from_slice(body).ok();
    let reason = problem.as_ref().and_then(|problem| problem["type"].as_str()?.strip_prefix("urn:distlock:problem:"));
    reason.map_or_else(|| status.to_string(), |reason| format!("{status} {reason}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waits(millis: impl IntoIterator<Item = u64>) -> Waits {
        let mut waits = Waits::default();
        millis.into_iter().for_each(|wait| waits.add(Duration::from_millis(wait)));
        waits
    }

    #[test]
    fn percentiles_are_of_the_nearest_rank() {
        let hundred = waits((1..=100).rev());
        assert_eq!(hundred.percentile(50), Some(Duration::from_millis(50)));
        assert_eq!(hundred.percentile(99), Some(Duration::from_millis(99)));
        assert_eq!(hundred.percentile(100), Some(Duration::from_millis(100)));
        assert_eq!(waits([7]).percentile(1), Some(Duration::from_millis(7)));
        assert_eq!(waits([1, 1, 1, 900]).percentile(75), Some(Duration::from_millis(1)));
        assert_eq!(waits([1, 1, 1, 900]).percentile(76), Some(Duration::from_millis(900)));
    }

    #[test]
    fn without_waits_there_is_no_percentile() {
        assert_eq!(waits([]).percentile(50), None);
        assert_eq!(waits([]).mean(), None);
        assert_eq!(waits([2, 4]).mean(), Some(Duration::from_millis(3)));
    }

    #[test]
    fn answers_are_labelled_by_status_and_reason() {
        assert_eq!(label(204, b""), "ok");
        assert_eq!(label(503, br#"{"type":"urn:distlock:problem:full","status":503}"#), "503 full");
        assert_eq!(label(502, b"oops"), "502");
        assert_eq!(label(503, br#"{"type":7}"#), "503");
    }

    #[test]
    fn what_is_not_in_the_counter_is_lost() {
        assert_eq!(lost_updates(10, 10), 0);
        assert_eq!(lost_updates(10, 7), 3);
    }
}
