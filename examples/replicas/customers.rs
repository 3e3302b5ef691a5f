//! The customers.

use std::time::Duration;

use axum::http::Method;
use distlock_examples::{HttpClient, Interrupt};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::ITEMS;

/// How many requests are under way at most.
const AT_ONCE: usize = 256;
const TWICE: u32 = 2;

/// Sends each order twice at once, as double clicks do, and with it two requests that only read. At
/// a steady rate, for a time or until Ctrl-C. Then waits for the answers.
pub(crate) async fn order(
    client: HttpClient,
    shop: String,
    rate: u32,
    length: Option<Duration>,
    interrupt: &Interrupt,
) {
    let end = length.map(|length| Instant::now() + length);
    let mut ticks = interval(Duration::from_secs(1) * TWICE / rate);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let mut orders = JoinSet::new();
    loop {
        tokio::select! {
            now = ticks.tick() => {
                if end.is_some_and(|end| now >= end) {
                    break;
                }
                if orders.len() < AT_ONCE {
                    let uri = format!("{shop}/orders/{}", item());
                    for method in [Method::POST, Method::POST, Method::GET, Method::GET] {
                        let (client, uri) = (client.clone(), uri.clone());
                        // The proxy counts the answers.
                        orders.spawn(async move { client.call(method, &uri, String::new()).await.is_ok() });
                    }
                }
            }
            Some(_) = orders.join_next() => {}
            () = interrupt.pressed() => break,
        }
    }
    while orders.join_next().await.is_some() {}
}

/// The item of an order. Half of the orders are for the first item.
fn item() -> &'static str {
    if fastrand::bool() { ITEMS[0] } else { ITEMS[fastrand::usize(1..ITEMS.len())] }
}
