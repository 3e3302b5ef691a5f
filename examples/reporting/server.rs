//! A web server: the part that looks like an application.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Path, State};
use axum::http::{Method, StatusCode};
use axum::routing::post;
use distlock_api::{ErrorKind, LeaseOptions, LockError, LockProvider, LockProviderExt, ReleaseOutcome};
use distlock_examples::{Failure, HttpClient, Orders, Place, report, serve};
use distlock_mongo::mongodb::Collection;
use distlock_mongo::mongodb::bson::{Document, doc};
use distlock_mongo::{MongoProvider, close_all};
use serde::{Deserialize, Serialize};

use crate::REPORTS;

/// How long a request waits for its account at most.
const PATIENCE: Duration = Duration::from_secs(10);

/// The part of a server.
#[derive(Serialize, Deserialize)]
pub(crate) struct Part {
    pub(crate) place: Place,
    pub(crate) api: String,
    pub(crate) locked: bool,
    pub(crate) lease: Duration,
}

struct Server {
    name: String,
    api: String,
    client: HttpClient,
    reports: Collection<Document>,
    /// `None` shows what happens without the lock.
    locks: Option<MongoProvider>,
}

impl Server {
    /// Returns the report. The first request for it has the API make it.
    async fn report(&self, account: &str, month: &str) -> Result<String, StatusCode> {
        let Some(locks) = &self.locks else { return self.find_or_make(account, month).await };
        // Waits until the server before has released the lock, or is dead. The grant is pushed.
        let guard = locks.acquire(format!("reporting/{account}")).timeout(PATIENCE).await.map_err(refuse)?;
        // If the lock is lost, the call is broken off before another server can begin one.
        let made = guard.run(self.find_or_make(account, month)).await.map_err(refuse)?;
        // Releases this acquisition, not the key: it cannot free the lock of another holder.
        match guard.release().await.map_err(refuse)? {
            ReleaseOutcome::Released => made,
            ReleaseOutcome::AlreadyLost => Err(StatusCode::SERVICE_UNAVAILABLE),
        }
    }

    async fn find_or_make(&self, account: &str, month: &str) -> Result<String, StatusCode> {
        let unavailable = |_| StatusCode::BAD_GATEWAY;
        let wanted = doc! { "account": account, "month": month };
        if let Some(report) = self.reports.find_one(wanted.clone()).await.map_err(unavailable)? {
            return report.get_str("text").map(str::to_owned).map_err(|_| StatusCode::INTERNAL_SERVER_ERROR);
        }
        let uri = format!("{}/accounts/{account}/reports/{month}?server={}", self.api, self.name);
        let made = self.client.call(Method::POST, &uri, String::new()).await.map_err(|_| StatusCode::BAD_GATEWAY)?;
        let text = String::from_utf8_lossy(made.body()).into_owned();
        let mut report = wanted;
        report.extend(doc! { "text": &text, "by": &self.name });
        self.reports.insert_one(report).await.map_err(unavailable)?;
        Ok(text)
    }
}

/// What the user gets. 503 means: try again.
fn refuse(error: LockError) -> StatusCode {
    match error.kind() {
        ErrorKind::Timeout | ErrorKind::Lost | ErrorKind::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

async fn serve_report(
    State(server): State<Arc<Server>>,
    Path((account, month)): Path<(String, String)>,
) -> Result<String, StatusCode> {
    server.report(&account, &month).await
}

/// Runs the server in this process until the parent stops it.
pub(crate) async fn play(name: String, part: Part, orders: Orders) -> Result<(), Failure> {
    let database = part.place.open().await?;
    let lease = LeaseOptions::new().ttl(part.lease);
    let locks = MongoProvider::builder(database.clone()).lease(lease).owner(&name).build()?;
    locks.prepare().await?;
    let used = part.locked.then(|| locks.clone());
    let reports = database.collection(REPORTS);
    let server = Server { name, api: part.api, client: HttpClient::new(), reports, locks: used };
    let router = Router::new().route("/reports/{account}/{month}", post(serve_report)).with_state(Arc::new(server));
    let (address, listening) = serve(router, 0).await?;
    report(&address);
    orders.end().await;
    listening.abort();
    close_all(database.client().clone(), [locks.close()]).await?;
    Ok(())
}
