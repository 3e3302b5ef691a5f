//! A receiver of spans by OTLP over gRPC, as every collector has it.

use std::mem;
use std::sync::{Arc, Mutex, PoisonError};

use distlock_examples::{Failure, serve};
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{TraceService, TraceServiceServer};
use opentelemetry_proto::tonic::collector::trace::v1::{ExportTraceServiceRequest, ExportTraceServiceResponse};
use opentelemetry_proto::tonic::trace::v1::ResourceSpans;
use tokio::task::JoinHandle;
use tonic::service::Routes;
use tonic::{Request, Response, Status};

type Received = Arc<Mutex<Vec<ResourceSpans>>>;

/// The collector of this process.
pub(crate) struct Collector {
    address: String,
    received: Received,
    serving: JoinHandle<()>,
}

impl Collector {
    /// Listens on a free port of this machine.
    pub(crate) async fn start() -> Result<Self, Failure> {
        let received = Received::default();
        let service = TraceServiceServer::new(Receiver(received.clone()));
        let (address, serving) = serve(Routes::new(service).into_axum_router(), 0).await?;
        Ok(Self { address, received, serving })
    }

    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// Stops, and returns what was received.
    pub(crate) fn stop(self) -> Vec<ResourceSpans> {
        self.serving.abort();
        mem::take(&mut *self.received.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

struct Receiver(Received);

#[tonic::async_trait]
impl TraceService for Receiver {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        let spans = request.into_inner().resource_spans;
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend(spans);
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}
