//! The service, the part that looks like an application: an order changes a counter by reading it,
//! waiting a moment and writing it back. That would be a race without the layer. `GET` reads the
//! counter twice, and must not see a write in between: such requests share the lock.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, Method, StatusCode};
use axum::routing::post;
use distlock_api::{LeaseOptions, LockProvider};
use distlock_examples::{Failure, HttpClient, Orders, Place, report, segment};
use distlock_mongo::{MongoProvider, close_all};
use distlock_tower::{HeldLock, LockLayer, key::ParamKey};
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;
use tokio::time::sleep;

use crate::LEASE;

const ORDERS: &str = "/orders/{item}";
/// Longer than the lease, so that a request that waits for a dead replica's lock gets it.
const WAIT: Duration = Duration::from_secs(3);
/// How long the service works between reading and writing.
pub(crate) const MOMENT: Duration = Duration::from_millis(20);
/// More waiting requests per item are refused at once.
const QUEUE: usize = 12;
/// The header with the number that the street gives to each request.
pub(crate) const REQUEST: &str = "x-request";

/// The part of a replica that has a process of its own.
#[derive(Serialize, Deserialize)]
pub(crate) struct Part {
    pub(crate) place: Place,
    pub(crate) warehouse: String,
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
        let layer = LockLayer::new(locks, item).shared_for_safe_methods();
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
    let counter = shop.counter(&item, held, &headers, false);
    let sold = shop.read(&counter).await?;
    sleep(MOMENT).await;
    let written = shop.client.call(Method::PUT, &counter, (sold + 1).to_string()).await;
    match written {
        Ok(answer) if answer.status().is_success() => Ok((sold + 1).to_string()),
        _ => Err(StatusCode::BAD_GATEWAY),
    }
}

/// Looks twice how many pieces were sold.
async fn look(
    State(shop): State<Arc<Shop>>,
    Path(item): Path<String>,
    held: Option<HeldLock>,
    headers: HeaderMap,
) -> Result<String, StatusCode> {
    let counter = shop.counter(&item, held, &headers, true);
    let before = shop.read(&counter).await?;
    sleep(MOMENT).await;
    let after = shop.read(&counter).await?;
    Ok(format!("{before} {after}"))
}

impl Shop {
    /// The address of the counter of an item. It says who asks, for the display.
    fn counter(&self, item: &str, held: Option<HeldLock>, headers: &HeaderMap, reads: bool) -> String {
        let Self { name, warehouse, .. } = self;
        let request = headers.get(REQUEST).and_then(|number| number.to_str().ok()?.parse::<u64>().ok()).unwrap_or(0);
        // Unescaped, `apples?` would be the counter of `apples` under the lock of another name.
        let item = segment(item);
        let token = held.map_or(0, |held| held.fencing_token().get());
        format!("{warehouse}/sold/{item}?request={request}&replica={name}&token={token}&reads={reads}")
    }

    async fn read(&self, counter: &str) -> Result<u64, StatusCode> {
        let answer = self.client.call(Method::GET, counter, String::new()).await;
        let answer = answer.map_err(|_| StatusCode::BAD_GATEWAY)?;
        String::from_utf8_lossy(answer.body()).parse().map_err(|_| StatusCode::BAD_GATEWAY)
    }
}

/// Runs the replica of this process until the parent stops it. Reports its address.
pub(crate) async fn play(name: String, part: Part, orders: Orders) -> Result<(), Failure> {
    let database = part.place.open().await?;
    let lease = LeaseOptions::new().ttl(LEASE);
    let locks = MongoProvider::builder(database.clone()).lease(lease).owner(&name).build()?;
    locks.prepare().await?;
    let router = router(&name, &part.warehouse, part.locked.then(|| locks.clone()))?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    report(&format!("http://{}", listener.local_addr()?));
    axum::serve(listener, router).with_graceful_shutdown(orders.end()).await?;
    close_all(database.client().clone(), [locks.close()]).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use axum::body::Bytes;
    use axum::http::Request;
    use distlock_examples::serve;
    use distlock_memory::MemoryProvider;

    use super::*;
    use crate::board::{Board, State as Stock};
    use crate::warehouse;

    /// Each name is a lock of its own, so a counter must have one name only.
    #[tokio::test]
    async fn a_counter_has_one_name() {
        let board = Board::new(Stock::new(&["A"], &["apples"], true));
        let (warehouse, _) = serve(warehouse(board.clone()), 0).await.unwrap();
        let (shop, _) = serve(router("A", &warehouse, Some(MemoryProvider::new())).unwrap(), 0).await.unwrap();
        let sell = async |item: &str| {
            let request = Request::post(format!("{shop}/orders/{item}")).header(REQUEST, "1&reads=true").body(());
            let answer = HttpClient::new().send(request.unwrap().into_parts().0, Bytes::new()).await.unwrap();
            (answer.status().is_success(), board.change(|state, _| state.items[0].sold))
        };
        let with_query = "apples%3Frequest=1&replica=A&token=9&reads=false%23";
        for item in [with_query, "apples%3F", "apples%23", "x%2F..%2Fapples", "apples%2F"] {
            assert_eq!(sell(item).await, (false, 0), "{item}");
        }
        for (sold, item) in [(1, "apples"), (2, "%61pples"), (3, "apples?a=b")] {
            assert_eq!(sell(item).await, (true, sold), "{item}");
        }
    }
}
