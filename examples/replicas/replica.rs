//! The service itself: an order changes a counter by reading it, waiting a moment and writing it
//! back – a race, if it were not for the layer.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use distlock_api::{LeaseOptions, LockProvider};
use distlock_examples::{Failure, HttpClient};
use distlock_mongo::MongoProvider;
use distlock_mongo::mongodb::Client as MongoClient;
use distlock_tower::{HeldLock, LockLayer, key::ParamKey};
use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;
use tokio::time::sleep;

use crate::warehouse::Counter;
use crate::{Arguments, LEASE, WAIT};

const ORDERS: &str = "/orders/{item}";
/// What the service does between reading and writing.
pub(crate) const MOMENT: Duration = Duration::from_millis(20);
/// More waiting requests per item are refused at once.
const QUEUE: usize = 12;

/// The proxy's number of a request, by which the display follows it.
pub(crate) const REQUEST: &str = "x-request";

struct Shop {
    name: String,
    warehouse: String,
    client: HttpClient,
}

/// The shop, with the layer around its route if there is a provider.
pub(crate) fn router(name: &str, warehouse: &str, locks: Option<impl LockProvider>) -> Result<Router, Failure> {
    let shop = Shop { name: name.to_owned(), warehouse: warehouse.to_owned(), client: HttpClient::new() };
    let mut router = Router::new().route(ORDERS, post(order));
    if let Some(locks) = locks {
        let item = ParamKey::text("stock", "item")?.checked_for([ORDERS])?;
        router = router.route_layer(LockLayer::new(locks, item).wait_up_to(WAIT).max_waiters_per_key(QUEUE));
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
    let request = headers.get(REQUEST).and_then(|number| number.to_str().ok()).unwrap_or("0");
    let token = held.map_or(0, |held| held.fencing_token().get());
    let counter = Counter::new(&shop.client, (&shop.warehouse, &item), (request, &shop.name, token));

    let sold = counter.read().await.ok_or(StatusCode::BAD_GATEWAY)?;
    sleep(MOMENT).await;
    counter.write(sold + 1).await.ok_or(StatusCode::BAD_GATEWAY)?;
    Ok((sold + 1).to_string())
}

/// Locks on MongoDB, and their client, which wants to be shut down before the program ends.
pub(crate) async fn on_mongodb(
    uri: &str,
    arguments: &Arguments,
    name: &str,
) -> Result<(MongoProvider, MongoClient), Failure> {
    let client = MongoClient::with_uri_str(uri).await?;
    let lease = LeaseOptions::new().ttl(LEASE);
    let locks = MongoProvider::builder(client.database(&arguments.database)).lease(lease).owner(name).build()?;
    locks.prepare().await?;
    Ok((locks, client))
}

/// A replica in a process of its own. It says its address in one line, and ends in order when its
/// standard input does.
pub(crate) async fn process(name: &str, warehouse: &str, arguments: &Arguments) -> Result<(), Failure> {
    let uri = arguments.mongodb.as_deref().ok_or("replicas need --mongodb")?;
    let (locks, client) = on_mongodb(uri, arguments, name).await?;
    let router = router(name, warehouse, arguments.locked.then(|| locks.clone()))?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("http://{}", listener.local_addr()?);
    let until_parent_is_done = async {
        let mut nothing = Vec::new();
        let _ = tokio::io::stdin().read_to_end(&mut nothing).await;
    };
    axum::serve(listener, router).with_graceful_shutdown(until_parent_is_done).await?;
    locks.close().await?;
    client.shutdown().await;
    Ok(())
}
