//! The dashboard and the alert rules of the guide name metrics that exist, and all of them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

const DASHBOARD: &str = include_str!("../../src/guide/grafana.json");
const ALERTS: &str = include_str!("../../src/guide/alerts.yml");
const OPERATING: &str = include_str!("../../src/guide/operating.md");

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Counter,
    Gauge,
    Histogram,
}

/// The metrics that the packages register, from their source.
fn registered() -> BTreeMap<String, Kind> {
    let mut metrics = BTreeMap::new();
    for package in ["lock-api", "lock-engine", "lock-recipes", "lock-tower"] {
        collect(&Path::new(env!("CARGO_MANIFEST_DIR")).join(package).join("src"), &mut metrics);
    }
    metrics
}

fn collect(folder: &Path, metrics: &mut BTreeMap<String, Kind>) {
    for entry in fs::read_dir(folder).expect("the workspace's source") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            collect(&path, metrics);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let source = fs::read_to_string(&path).expect("UTF-8");
            for (call, kind) in
                [("counter!(", Kind::Counter), ("gauge!(", Kind::Gauge), ("histogram!(", Kind::Histogram)]
            {
                for rest in source.split(call).skip(1) {
                    // The name may be on a line of its own.
                    let name = rest.trim_start().strip_prefix('"').and_then(|rest| rest.split('"').next());
                    metrics.insert(name.expect("a name").to_owned(), kind);
                }
            }
        }
    }
}

/// The names in a text that begin like those of metrics, without the suffixes of histograms.
fn used(text: &str, metrics: &BTreeMap<String, Kind>) -> BTreeSet<String> {
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    words
        .filter(|word| word.starts_with("distlock_") && *word != "distlock_")
        .map(|word| {
            let base = ["_bucket", "_count", "_sum"].iter().find_map(|suffix| word.strip_suffix(suffix));
            let base = base.filter(|base| metrics.get(*base) == Some(&Kind::Histogram));
            base.unwrap_or(word).to_owned()
        })
        .collect()
}

#[test]
fn the_guide_names_registered_metrics_only() {
    let metrics = registered();
    assert!(metrics.len() > 5, "{metrics:?}");
    for (file, text) in [("grafana.json", DASHBOARD), ("alerts.yml", ALERTS), ("operating.md", OPERATING)] {
        for name in used(text, &metrics) {
            assert!(metrics.contains_key(&name), "{file} names {name}, which no package registers");
        }
    }
}

#[test]
fn the_dashboard_shows_every_metric() {
    let metrics = registered();
    let shown = used(DASHBOARD, &metrics);
    for name in metrics.keys() {
        assert!(shown.contains(name), "the dashboard does not show {name}");
    }
}

#[test]
fn names_fit_the_kinds() {
    let metrics = registered();
    for (name, kind) in &metrics {
        match kind {
            Kind::Counter => assert!(name.ends_with("_total"), "{name}"),
            Kind::Gauge => {}
            Kind::Histogram => {
                let plain = [DASHBOARD, ALERTS].iter().any(|text| text.contains(&format!("{name}{{")));
                assert!(!plain, "{name} is a histogram: use its buckets");
            }
        }
    }
}
