//! One request through two services and MongoDB as a trace of OpenTelemetry.
//!
//! ```text
//! # on a replica set that is found or started for the run, or `-- --mongodb URI`:
//! cargo run -p distlock-examples --features traces --bin traces
//! # the same, and draws the first trace:
//! cargo run -p distlock-examples --features traces --bin traces -- --save examples/pictures/traces
//! # the same, to a collector of your own instead of this program's:
//! cargo run -p distlock-examples --features traces --bin traces -- --otlp http://localhost:4317
//! ```
//!
//! A shop takes orders, one at a time for each item, and books them in the stock, which is another
//! service. The shop has a lock per item, and the stock locks its document of the item. Both are
//! processes of their own, which talk HTTP and export their spans by OTLP. This program is the
//! customer and the collector.
//!
//! distlock knows nothing of OpenTelemetry: it has spans of `tracing`, and so has the application.
//! The spans of the commands are those of the MongoDB driver.

mod collector;
mod draw;
mod service;
mod telemetry;
mod tree;

use std::collections::BTreeSet;
use std::process::ExitCode;

use axum::http::Method;
use distlock_examples::{Checks, Children, Database, Failure, Given, HttpClient, Interrupt, MONGODB, Opt, Outcome};
use distlock_examples::{Program, shut_down};
use distlock_mongo::mongodb::bson::{Document, doc};

use collector::Collector;
use service::{Part, Role};
use tree::Trace;

const PROGRAM: Program = Program {
    name: "traces",
    about: "Shows a request through two services and MongoDB as one trace.",
    options: &[
        MONGODB,
        Opt::text("otlp", "URI", "the OTLP collector of the spans, by gRPC; without it, this program shows them"),
        Opt::flag("keys", "spans name the keys of their locks"),
        Opt::text("save", "FILE", "writes the picture of the first trace to FILE.svg"),
    ],
};

/// The collection of the stock.
const STOCK: &str = "stock";
/// An item that the stock has, and one that it lacks.
const ITEMS: [&str; 2] = ["book", "unicorn"];
/// What a complete run has proved.
const PROVED: &str = "each request is one trace, with each wait, each hold and the failure in its place";

async fn show(given: Given, interrupt: Interrupt) -> Result<Outcome, Failure> {
    let server = Database::open(given.text("mongodb"), "traces").await?;
    let database = server.place.open().await?;
    database.collection::<Document>(STOCK).insert_one(doc! { "_id": ITEMS[0], "pieces": 5 }).await?;
    let collector = match given.text("otlp") {
        Some(_) => None,
        None => Some(Collector::start().await?),
    };
    let otlp = given.text("otlp").or(collector.as_ref().map(Collector::address)).unwrap_or_default();
    let mut children = Children::new(&interrupt)?;
    let mut stock = None;
    for (name, role) in [("stock", Role::Stock), ("shop", Role::Shop)] {
        let part = Part { place: server.place.clone(), otlp: otlp.to_owned(), keys: given.flag("keys"), role, stock };
        children.start(name, &part).await?;
        stock = children.next().await?.map(|(_, address): (_, String)| address);
    }
    let mut answers = Vec::new();
    if let Some(shop) = stock.filter(|_| !interrupt.is_pressed()) {
        let customer = HttpClient::new();
        for item in ITEMS {
            let answer = customer.call(Method::POST, &format!("{shop}/orders/{item}"), String::new()).await;
            answers.push(answer.map_or(0, |answer| answer.status().as_u16()));
        }
    }
    // Each exports what it still has.
    children.stop().await?;
    shut_down(database).await;
    server.close().await?;
    let mut checks = Checks::new(!interrupt.is_pressed());
    checks.at_the_end(answers == [200, 404], format!("the answers were {answers:?}"));
    if let Some(collector) = collector {
        let traces = Trace::all(collector.stop());
        traces.iter().for_each(|trace| println!("{trace}"));
        check(&traces, given.flag("keys"), &mut checks);
        if let (Some(file), Some(trace)) = (given.text("save"), traces.first()) {
            std::fs::write(format!("{file}.svg"), draw::picture(trace))?;
        }
    }
    Ok(checks.conclude(PROVED))
}

fn check(traces: &[Trace], keys: bool, checks: &mut Checks) {
    checks.show("traces", traces.len());
    checks.at_the_end(traces.len() == ITEMS.len(), "a request is not one trace");
    let [sold, missing] = traces else { return };
    for (trace, service) in [(sold, "shop"), (sold, "stock"), (missing, "shop")] {
        for name in ["distlock.acquire", "distlock.hold"] {
            checks.at_the_end(trace.has(service, name), format!("{service} has no span {name}"));
        }
    }
    checks.at_the_end(trace_orders(sold), "a hold does not begin after its wait, in the span of its request");
    let stores: BTreeSet<_> = sold.of_driver().collect();
    checks.show("commands", stores.len());
    checks.at_the_end(stores.len() >= 4, "commands of the driver are missing");
    let failed: Vec<_> = missing.failed().collect();
    let is_named = |name: &str| failed.iter().any(|(service, span)| (*service, *span) == ("stock", name));
    checks.at_the_end(is_named("distlock.acquire"), format!("the failure is not where it was: {failed:?}"));
    checks.at_the_end(sold.failed().next().is_none(), "a span failed for no reason");
    checks.at_the_end(traces.iter().any(Trace::names_keys) == keys, "keys are not as they were wanted");
}

/// Whether each wait and each hold is in the span of a request, the hold after the wait.
fn trace_orders(trace: &Trace) -> bool {
    ["shop", "stock"].into_iter().all(|service| trace.holds_after_wait(service))
}

#[tokio::main]
async fn main() -> ExitCode {
    PROGRAM.run(show, service::play).await
}
