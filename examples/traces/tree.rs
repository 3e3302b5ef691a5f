//! A trace as a tree of its spans.

use std::collections::BTreeMap;
use std::fmt;

use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, Span};

/// One trace: its spans in the order of their beginning.
pub(crate) struct Trace(Vec<Seen>);

struct Seen {
    service: String,
    is_of_driver: bool,
    attributes: BTreeMap<String, String>,
    span: Span,
}

impl Trace {
    /// Returns the traces that begin with a request, in the order of their beginning. Others are of
    /// the start and the end of the services.
    pub(crate) fn all(received: Vec<ResourceSpans>) -> Vec<Self> {
        let mut traces: BTreeMap<Vec<u8>, Vec<Seen>> = BTreeMap::new();
        for of_service in received {
            let resource = of_service.resource.map(|resource| attributes(resource.attributes)).unwrap_or_default();
            let service = resource.get("service.name").cloned().unwrap_or_default();
            for of_scope in of_service.scope_spans {
                let is_of_driver = of_scope.scope.is_some_and(|scope| scope.name == "mongodb");
                for mut span in of_scope.spans {
                    let attributes = attributes(std::mem::take(&mut span.attributes));
                    let seen = Seen { service: service.clone(), is_of_driver, attributes, span };
                    traces.entry(seen.span.trace_id.clone()).or_default().push(seen);
                }
            }
        }
        let mut traces: Vec<Self> = traces.into_values().map(Self).collect();
        traces.iter_mut().for_each(|Self(spans)| spans.sort_by_key(|seen| seen.span.start_time_unix_nano));
        traces.retain(|trace| trace.roots().any(|root| root.span.name.contains("/orders/")));
        traces.sort_by_key(|Self(spans)| spans.first().map(|seen| seen.span.start_time_unix_nano));
        traces
    }

    fn roots(&self) -> impl Iterator<Item = &Seen> {
        self.0.iter().filter(|seen| self.parent(seen).is_none())
    }

    fn parent(&self, of: &Seen) -> Option<&Seen> {
        self.0.iter().find(|seen| seen.span.span_id == of.span.parent_span_id)
    }

    fn children(&self, of: &Seen) -> impl Iterator<Item = &Seen> {
        self.0.iter().filter(|seen| seen.span.parent_span_id == of.span.span_id)
    }

    fn find(&self, service: &str, name: &str) -> Option<&Seen> {
        self.0.iter().find(|seen| seen.service == service && seen.span.name == name)
    }

    /// Whether a service has a span of this name.
    pub(crate) fn has(&self, service: &str, name: &str) -> bool {
        self.find(service, name).is_some()
    }

    /// Whether the hold of a service begins after its wait, both in the span of a request.
    pub(crate) fn holds_after_wait(&self, service: &str) -> bool {
        let both = ["distlock.acquire", "distlock.hold"].map(|name| self.find(service, name));
        let [Some(wait), Some(hold)] = both else { return false };
        let parents = [wait, hold].map(|span| self.parent(span).map(|parent| &parent.span));
        let is_request = |parent: Option<&Span>| parent.is_some_and(|parent| parent.name.starts_with("POST /"));
        is_request(parents[0])
            && parents[0] == parents[1]
            && wait.span.end_time_unix_nano <= hold.span.start_time_unix_nano
    }

    /// Returns the spans of commands that the driver has sent within a wait or a request.
    pub(crate) fn of_driver(&self) -> impl Iterator<Item = &[u8]> {
        let commands = self.0.iter().filter(|seen| seen.is_of_driver && self.parent(seen).is_some());
        commands.map(|seen| &*seen.span.span_id)
    }

    /// Returns the services and the names of the spans that failed.
    pub(crate) fn failed(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().filter(|seen| seen.has_failed()).map(|seen| (&*seen.service, &*seen.span.name))
    }

    /// Whether a span names the key of a lock.
    pub(crate) fn names_keys(&self) -> bool {
        self.0.iter().any(|seen| seen.attributes.contains_key("lock.key"))
    }

    /// Returns the spans as lines of the tree.
    pub(crate) fn rows(&self) -> Vec<Row<'_>> {
        let mut rows = Vec::new();
        let start = self.0.first().map_or(0, |seen| seen.span.start_time_unix_nano);
        self.roots().for_each(|root| self.add(&mut rows, root, start, 0));
        rows
    }

    fn add<'a>(&'a self, rows: &mut Vec<Row<'a>>, seen: &'a Seen, start: u64, depth: usize) {
        let millis = |nanos: u64| nanos as f64 / 1e6;
        let Span { name, start_time_unix_nano: begins, end_time_unix_nano: ends, .. } = &seen.span;
        let shown = ["lock.outcome", "lock.key", "error"];
        let more = shown.iter().filter_map(|name| seen.attributes.get(*name)).map(String::as_str);
        rows.push(Row {
            depth,
            service: &seen.service,
            name,
            begins: millis(begins.saturating_sub(start)),
            took: millis(ends.saturating_sub(*begins)),
            more: more.collect::<Vec<_>>().join(", "),
            kind: match (seen.has_failed(), seen.is_of_driver, &**name) {
                (true, ..) => Kind::Failed,
                (_, true, _) => Kind::Driver,
                (_, _, "distlock.hold") => Kind::Hold,
                (_, _, "distlock.acquire") => Kind::Wait,
                _ => Kind::Application,
            },
        });
        self.children(seen).for_each(|child| self.add(rows, child, start, depth + 1));
    }
}

/// One line of the tree. Times are milliseconds.
pub(crate) struct Row<'a> {
    pub(crate) depth: usize,
    pub(crate) service: &'a str,
    pub(crate) name: &'a str,
    pub(crate) begins: f64,
    pub(crate) took: f64,
    pub(crate) more: String,
    pub(crate) kind: Kind,
}

#[derive(Clone, Copy)]
pub(crate) enum Kind {
    Application,
    Wait,
    Hold,
    Driver,
    Failed,
}

impl Seen {
    fn has_failed(&self) -> bool {
        self.span.status.as_ref().is_some_and(|status| status.code() == StatusCode::Error)
    }
}

impl fmt::Display for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "  at ms    took  of     span")?;
        self.rows().iter().try_for_each(|Row { depth, service, name, begins, took, more, .. }| {
            let what = format!("{:indent$}{name}", "", indent = 2 * depth);
            let line = format!("{begins:7.1} {took:7.1}  {service:5}  {what:40}  {more}");
            writeln!(f, "{}", line.trim_end().chars().take(100).collect::<String>())
        })
    }
}

fn attributes(all: Vec<KeyValue>) -> BTreeMap<String, String> {
    let text = |value: Option<AnyValue>| match value?.value? {
        Value::StringValue(text) => Some(text),
        Value::IntValue(number) => Some(number.to_string()),
        Value::BoolValue(value) => Some(value.to_string()),
        _ => None,
    };
    all.into_iter().filter_map(|KeyValue { key, value }| Some((key, text(value)?))).collect()
}
