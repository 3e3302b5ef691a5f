//! The two services.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::{Request, StatusCode};
use axum::middleware::from_fn;
use axum::routing::post;
use distlock_api::{ErrorKind, LockError, LockProvider, LockProviderExt};
use distlock_examples::{Failure, HttpClient, Orders, Place, report, segment, serve};
use distlock_mongo::mongodb::Client;
use distlock_mongo::mongodb::bson::Document;
use distlock_mongo::{Change, DocumentLocks, MongoProvider, close_all};
use mongodb::otel::OpentelemetryOptions;
use serde::{Deserialize, Serialize};
use tokio::task::spawn_blocking;
use tokio::time::sleep;
use tracing::{Instrument, info_span};

use crate::{STOCK, telemetry};

/// The part of a child.
#[derive(Serialize, Deserialize)]
pub(crate) struct Part {
    pub(crate) place: Place,
    pub(crate) otlp: String,
    pub(crate) keys: bool,
    pub(crate) role: Role,
    /// The address of the stock, for the shop.
    pub(crate) stock: Option<String>,
}

#[derive(Clone, Copy, Serialize, Deserialize)]
pub(crate) enum Role {
    Shop,
    Stock,
}

/// Runs a service until the parent stops it. Reports its address.
pub(crate) async fn play(name: String, part: Part, orders: Orders) -> Result<(), Failure> {
    let exported = telemetry::export(&name, &part.otlp, part.keys)?;
    let enabled = OpentelemetryOptions::builder().enabled(true).build();
    let database = part.place.open_with(|options| options.tracing = Some(enabled)).await?;
    let client = database.client().clone();
    let serving = match (part.role, part.stock) {
        (Role::Shop, Some(stock)) => {
            let locks = MongoProvider::builder(database).instrumented("orders").connect().await?;
            let shop = Shop { locks: locks.clone(), stock, client: HttpClient::new() };
            let router = Router::new().route("/orders/{item}", post(order)).with_state(Arc::new(shop));
            serve_until(router, orders.end(), client, locks).await
        }
        _ => {
            let stock = DocumentLocks::builder(&database.collection(STOCK)).instrumented("stock").connect().await?;
            let locks = stock.provider();
            let router = Router::new().route("/stock/{item}", post(book)).with_state(stock);
            serve_until(router, orders.end(), client, locks).await
        }
    };
    // It blocks until the last spans are exported.
    spawn_blocking(move || exported.shutdown()).await??;
    serving
}

async fn serve_until(
    router: Router,
    end: impl Future<Output = ()>,
    client: Client,
    locks: MongoProvider,
) -> Result<(), Failure> {
    let (address, serving) = serve(router.route_layer(from_fn(telemetry::in_span)), 0).await?;
    report(&address);
    end.await;
    serving.abort();
    Ok(close_all(client, [locks.close()]).await?)
}

struct Shop {
    locks: MongoProvider,
    stock: String,
    client: HttpClient,
}

/// Takes an order, one of an item at a time.
async fn order(State(shop): State<Arc<Shop>>, Path(item): Path<String>) -> Result<&'static str, StatusCode> {
    let lock = shop.locks.acquire(("orders", &item)).timeout(Duration::from_secs(5));
    let booked = lock.run(async |_| shop.book(&item).await).await.map_err(|error| status(&error))?;
    booked.map(|()| "sold")
}

impl Shop {
    /// Books a piece in the stock.
    async fn book(&self, item: &str) -> Result<(), StatusCode> {
        let call = async {
            let request = Request::post(format!("{}/stock/{}", self.stock, segment(item))).body(());
            let (mut parts, ()) = request.map_err(|_| StatusCode::BAD_REQUEST)?.into_parts();
            telemetry::inject(&mut parts.headers);
            let answer = self.client.send(parts, Bytes::new()).await.map_err(|_| StatusCode::BAD_GATEWAY)?;
            if answer.status().is_success() { Ok(()) } else { Err(answer.status()) }
        };
        call.instrument(info_span!("call", otel.name = "POST stock", otel.kind = "client")).await
    }
}

/// Takes a piece out of the stock, and commits it with the release of the lock.
async fn book(State(stock): State<DocumentLocks<Document>>, Path(item): Path<String>) -> Result<(), StatusCode> {
    let guard = stock.lock(&item).timeout(Duration::from_secs(5)).await.map_err(|error| status(&error))?;
    sleep(Duration::from_millis(5)).await; // someone goes to the shelf
    let pieces = guard.document().get_i32("pieces").map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)?;
    guard.commit(Change::new().set("pieces", pieces - 1)).await.map_err(|_| StatusCode::SERVICE_UNAVAILABLE)?;
    Ok(())
}

fn status(error: &LockError) -> StatusCode {
    if error.kind() == ErrorKind::NotFound { StatusCode::NOT_FOUND } else { StatusCode::SERVICE_UNAVAILABLE }
}
