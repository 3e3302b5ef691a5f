//! One replica of the service: the part that looks like an application.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::{Method, StatusCode};
use axum::routing::post;
use axum::{Extension, Router};
use distlock_api::LeaseOptions;
use distlock_api::once::OnceProvider;
use distlock_examples::{Database, Failure, HttpClient, Orders, report, serve};
use distlock_mongo::MongoOnce;
use distlock_tower::{IdempotencyLayer, IdempotentRun};
use serde::{Deserialize, Serialize};

/// How soon the work of a dead replica counts as interrupted. A real service would keep the
/// default of 30 s.
const LEASE: Duration = Duration::from_secs(2);

/// The part of a replica.
#[derive(Serialize, Deserialize)]
pub(crate) struct Setting {
    pub(crate) name: String,
    pub(crate) mongodb: String,
    pub(crate) database: String,
    pub(crate) bank: String,
    pub(crate) keyed: bool,
}

struct Service {
    name: String,
    bank: String,
    client: HttpClient,
}

impl Service {
    async fn call_bank(&self, method: Method, payment: &str) -> Result<(StatusCode, String), StatusCode> {
        let uri = format!("{}/charges/{payment}", self.bank);
        let answer = self.client.call(method, &uri, self.name.clone()).await.map_err(|_| StatusCode::BAD_GATEWAY)?;
        Ok((answer.status(), String::from_utf8_lossy(answer.body()).into_owned()))
    }
}

/// Charges a payment, and returns its receipt.
async fn pay(
    State(service): State<Arc<Service>>,
    run: Option<Extension<IdempotentRun>>,
    payment: String,
) -> Result<(StatusCode, String), StatusCode> {
    // A run that was interrupted may have charged it.
    if run.is_some_and(|Extension(run)| run.interrupted().is_some()) {
        let (status, receipt) = service.call_bank(Method::GET, &payment).await?;
        if status.is_success() {
            return Ok((StatusCode::CREATED, receipt));
        }
    }
    let (_, receipt) = service.call_bank(Method::POST, &payment).await?;
    Ok((StatusCode::CREATED, receipt))
}

/// Runs the replica in this process until the parent stops it.
pub(crate) async fn play(setting: Setting, orders: Orders) -> Result<(), Failure> {
    let mongo = Database::client(&setting.mongodb).await?;
    let lease = LeaseOptions::new().ttl(LEASE);
    let database = mongo.database(&setting.database);
    let once = Arc::new(MongoOnce::builder(database).lease(lease).owner(&*setting.name).connect().await?);
    let mut router = Router::new().route("/payments", post(pay));
    if setting.keyed {
        // All clients are one here. A real service names the authenticated user.
        let layer = IdempotencyLayer::for_everyone(once.clone()).required().run_interrupted_again();
        router = router.route_layer(layer.wait_up_to(Duration::from_secs(10)));
    }
    let service = Service { name: setting.name, bank: setting.bank, client: HttpClient::new() };
    let (address, listening) = serve(router.with_state(Arc::new(service)), 0).await?;
    report(&address);
    orders.end().await;
    listening.abort();
    once.close().await?;
    mongo.shutdown().await;
    Ok(())
}
