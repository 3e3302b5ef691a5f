//! The service: an order changes a counter by reading it, waiting a moment and writing it back.
//! That would be a race without the layer. `GET` reads the counter twice, and must not see a write
//! in between: such requests share the lock.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use distlock_api::{LeaseOptions, LockProvider};
use distlock_examples::{Database, Failure, HttpClient, Orders, report};
use distlock_mongo::MongoProvider;
use distlock_mongo::mongodb::Client as MongoClient;
use distlock_tower::{HeldLock, LockLayer, key::ParamKey};
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;
use tokio::time::sleep;

use crate::warehouse::Counter;
use crate::{LEASE, WAIT};

const ORDERS: &str = "/orders/{item}";
/// How long the service works between reading and writing.
pub(crate) const MOMENT: Duration = Duration::from_millis(20);
/// More waiting requests per item are refused at once.
const QUEUE: usize = 12;

/// The header with the number that the proxy gives to each request.
pub(crate) const REQUEST: &str = "x-request";

/// The part of a replica that has a process of its own.
#[derive(Serialize, Deserialize)]
pub(crate) struct Part {
    pub(crate) name: String,
    pub(crate) warehouse: String,
    pub(crate) mongodb: String,
    pub(crate) database: String,
    pub(crate) locked: bool,
}

struct Shop {
    name: String,
    warehouse: String,
    client: HttpClient,
}

/// The shop, with the layer around its route if there is a provider.
pub(crate) fn router(name: &str, warehouse: &str, locks: Option<impl LockProvider>) -> Result<Router, Failure> {
    let shop = Shop { name: name.to_owned(), warehouse: warehouse.to_owned(), client: HttpClient::new() };
    let mut router = Router::new().route(ORDERS, post(order).get(look));
    if let Some(locks) = locks {
        // As text, because the warehouse compares names byte by byte. A number or a UUID would be
        // `typed`, so that all spellings of it are one key.
        let item = ParamKey::text("stock", "item")?.checked_for([ORDERS])?;
        let layer = LockLayer::new(locks, item).shared_for_safe_methods()?;
        router = router.route_layer(layer.wait_up_to(WAIT).max_waiters_per_key(QUEUE));
    }
    Ok(router.with_state(Arc::new(shop)))
}

/// Sells one piece.
async fn order(
    State(shop): State<Arc<Shop>>,
    Path(item): Path<String>,
    held: Option<HeldLock>,
    headers: HeaderMap,
) -> Result<String, StatusCode> {
    let counter = counter(&shop, &item, held, &headers);
    let sold = counter.read().await.ok_or(StatusCode::BAD_GATEWAY)?;
    sleep(MOMENT).await;
    counter.write(sold + 1).await.ok_or(StatusCode::BAD_GATEWAY)?;
    Ok((sold + 1).to_string())
}

/// Looks twice how many pieces were sold.
async fn look(
    State(shop): State<Arc<Shop>>,
    Path(item): Path<String>,
    held: Option<HeldLock>,
    headers: HeaderMap,
) -> Result<String, StatusCode> {
    let counter = counter(&shop, &item, held, &headers).only_reading();
    let before = counter.read().await.ok_or(StatusCode::BAD_GATEWAY)?;
    sleep(MOMENT).await;
    let after = counter.read().await.ok_or(StatusCode::BAD_GATEWAY)?;
    Ok(format!("{before} {after}"))
}

/// The counter of an item, for a request.
fn counter<'a>(shop: &'a Shop, item: &str, held: Option<HeldLock>, headers: &HeaderMap) -> Counter<'a> {
    let request = headers.get(REQUEST).and_then(|number| number.to_str().ok()).unwrap_or("0");
    let token = held.map_or(0, |held| held.fencing_token().get());
    Counter::new(&shop.client, (&shop.warehouse, item), (request, &shop.name, token))
}

/// Locks on MongoDB, and their client, which must be shut down before the program ends.
pub(crate) async fn on_mongodb(
    uri: &str,
    database: &str,
    owner: &str,
) -> Result<(MongoProvider, MongoClient), Failure> {
    let client = Database::client(uri).await?;
    let lease = LeaseOptions::new().ttl(LEASE);
    let locks = MongoProvider::builder(client.database(database)).lease(lease).owner(owner).build()?;
    locks.prepare().await?;
    Ok((locks, client))
}

/// Runs the replica of this process until the parent stops it. Reports its address.
pub(crate) async fn play(part: Part, orders: Orders) -> Result<(), Failure> {
    let (locks, client) = on_mongodb(&part.mongodb, &part.database, &part.name).await?;
    let router = router(&part.name, &part.warehouse, part.locked.then(|| locks.clone()))?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    report(&format!("http://{}", listener.local_addr()?));
    axum::serve(listener, router).with_graceful_shutdown(orders.end()).await?;
    locks.close().await?;
    client.shutdown().await;
    Ok(())
}
