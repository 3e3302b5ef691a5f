//! Spans of `tracing` to OpenTelemetry, and the context of a trace in the headers of requests.

use axum::extract::{MatchedPath, Request};
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use axum::middleware::Next;
use axum::response::Response;
use distlock_examples::Failure;
use opentelemetry::global;
use opentelemetry::propagation::{Extractor, Injector};
use opentelemetry::trace::TracerProvider;
use opentelemetry_otlp::{SpanExporter, WithExportConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::SdkTracerProvider;
use tracing::field::Empty;
use tracing::{Instrument, Span, info_span};
use tracing_opentelemetry::OpenTelemetrySpanExt;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// Exports the spans of this process, under the name of its service, to a collector. Shut what is
/// returned down at the end.
pub(crate) fn export(service: &str, collector: &str, keys: bool) -> Result<SdkTracerProvider, Failure> {
    let exporter = SpanExporter::builder().with_tonic().with_endpoint(collector).build()?;
    let resource = Resource::builder().with_service_name(service.to_owned()).build();
    let provider = SdkTracerProvider::builder().with_batch_exporter(exporter).with_resource(resource).build();
    // For the driver, which takes its parent from the span that is entered.
    global::set_tracer_provider(provider.clone());
    global::set_text_map_propagator(TraceContextPropagator::new());
    let mut filter = Targets::new().with_default(LevelFilter::INFO);
    if keys {
        filter = filter.with_target("distlock::keys", LevelFilter::TRACE);
    }
    let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("traces"));
    tracing_subscriber::registry().with(layer.with_filter(filter)).try_init()?;
    Ok(provider)
}

/// Serves a request in a span of its own, a child of the caller's.
pub(crate) async fn in_span(request: Request, next: Next) -> Response {
    let route = request.extensions().get::<MatchedPath>().map_or("", MatchedPath::as_str);
    let span = info_span!(
        "request",
        otel.name = format!("{} {route}", request.method()),
        otel.kind = "server",
        otel.status_code = Empty,
        http.response.status_code = Empty,
    );
    let caller = global::get_text_map_propagator(|propagator| propagator.extract(&Headers(request.headers())));
    // Without a caller's span it is the first of its trace.
    let _ = span.set_parent(caller);
    let response = next.run(request).instrument(span.clone()).await;
    span.record("http.response.status_code", response.status().as_u16());
    if response.status().is_server_error() {
        span.record("otel.status_code", "ERROR");
    }
    response
}

/// Adds the present span to the headers of a request.
pub(crate) fn inject(headers: &mut HeaderMap) {
    let context = Span::current().context();
    global::get_text_map_propagator(|propagator| propagator.inject_context(&context, &mut HeadersMut(headers)));
}

struct Headers<'a>(&'a HeaderMap);

impl Extractor for Headers<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key)?.to_str().ok()
    }

    fn keys(&self) -> Vec<&str> {
        self.0.keys().map(HeaderName::as_str).collect()
    }
}

struct HeadersMut<'a>(&'a mut HeaderMap);

impl Injector for HeadersMut<'_> {
    fn set(&mut self, key: &str, value: String) {
        if let (Ok(name), Ok(value)) = (HeaderName::try_from(key), HeaderValue::try_from(value)) {
            self.0.insert(name, value);
        }
    }
}
