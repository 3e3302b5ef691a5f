//! What a recorder of metrics has got.

use metrics_util::debugging::{DebugValue, Snapshotter};

/// What has changed since the last call, as `label label = number`; of a histogram the number of
/// samples.
pub(crate) fn measured(snapshotter: &Snapshotter, name: &str) -> Vec<String> {
    let mut lines = Vec::new();
    for (key, _, _, value) in snapshotter.snapshot().into_vec() {
        let key = key.key();
        let value = match value {
            DebugValue::Counter(count) => count as f64,
            DebugValue::Gauge(gauge) => gauge.into_inner(),
            DebugValue::Histogram(samples) => samples.len() as f64,
        };
        if key.name() == name && value != 0.0 {
            let labels: Vec<_> = key.labels().map(|label| label.value()).collect();
            lines.push(format!("{} = {value}", labels.join(" ")));
        }
    }
    lines.sort();
    lines
}
