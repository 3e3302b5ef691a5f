//! A web shop whose counters are read, changed and written back by several replicas. The
//! [`LockLayer`](distlock_tower::LockLayer) makes that safe; without it, updates are lost. Requests
//! that only read share the lock: they are served together, but never while an order is. The
//! terminal and a live page show the holders, queues and refusals.
//!
//! ```text
//! # no server: one replica in this process
//! cargo run -p distlock-examples --features mongodb --bin replicas
//! # two replicas as OS processes; one is killed in the middle of the run
//! cargo run -p distlock-examples --features mongodb --bin replicas -- --mongodb mongodb://localhost
//! # without the layer, to count the lost updates
//! cargo run -p distlock-examples --features mongodb --bin replicas -- --no-lock
//! ```

mod board;
mod page;
mod shop;
mod show;

use std::io::{IsTerminal, stdout};
use std::pin::pin;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Path, Query, State as Shared};
use axum::http::{Method, Request, StatusCode};
use axum::routing::get;
use distlock_examples::{
    Children, Database, Failure, Given, HttpClient, Interrupt, NoAnswer, Opt, Outcome, Program, serve,
};
use distlock_memory::MemoryProvider;
use serde::Deserialize;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

use crate::board::{Board, OK, State};
use crate::shop::{MOMENT, Part, REQUEST};

const PROGRAM: Program = Program {
    name: "replicas",
    about: "A web shop behind a lock layer, with a live page.",
    options: &[
        Opt::text("mongodb", "URI", "two replicas as processes, one is killed; else one in this process"),
        Opt::flag("no-lock", "without the layer: counts the lost updates"),
        Opt::number("seconds", 8, 2..=600, "how long orders come in, with --mongodb from 6"),
        Opt::number("rate", 40, 2..=500, "orders per second"),
        Opt::number("port", 0, 0..=65_535, "of the live page; 0 is any"),
        Opt::flag("serve", "orders come in until Ctrl-C"),
        Opt::flag("stay", "keep the live page after the run, until Ctrl-C (default on a terminal)"),
    ],
};

const ITEMS: [&str; 3] = ["apples", "pears", "plums"];
const REPLICAS: [&str; 2] = ["A", VICTIM];
/// The replica that is killed.
const VICTIM: &str = "B";
/// Short, so that a dead replica's locks are soon free. A real service would keep 30 s.
const LEASE: Duration = Duration::from_secs(2);
/// How many requests are under way at most.
const AT_ONCE: usize = 256;
/// How long to look for a moment in which the victim has read a counter and will not write it soon.
const PATIENCE: Duration = Duration::from_secs(1);

async fn show(given: Given, interrupt: Interrupt) -> Result<Outcome, Failure> {
    let (uri, locked, seconds) = (given.text("mongodb"), !given.flag("no-lock"), given.number("seconds"));
    // After the middle of the run, when a replica is killed, its leases must have time to expire.
    if uri.is_some() && seconds < 6 {
        return Err("with --mongodb, --seconds takes a number from 6 to 600".into());
    }
    let names = if uri.is_some() { &REPLICAS[..] } else { &REPLICAS[..1] };
    let board = Board::new(State::new(names, &ITEMS, locked));
    let (warehouse, _) = serve(warehouse(board.clone()), 0).await?;
    let mut fleet = Children::<String>::new(&interrupt)?;
    let (mut database, mut addresses) = (None, Vec::new());
    if let Some(uri) = uri {
        let database = database.insert(Database::open(Some(uri), "replicas").await?);
        for name in REPLICAS {
            let part = Part { place: database.place.clone(), warehouse: warehouse.clone(), locked };
            fleet.start(name, &part).await?;
            addresses.push(fleet.next().await?.ok_or("a replica did not start")?.1);
        }
    } else {
        let shop = shop::router(names[0], &warehouse, locked.then(MemoryProvider::new))?;
        addresses.push(serve(shop, 0).await?.0);
    }
    let (page, _) = serve(page::router(board.clone()), u16::try_from(given.number("port"))?).await?;
    let which = match uri {
        Some(_) => "two replicas as OS processes over one MongoDB",
        None => "one replica in this process, no server",
    };
    let layer = if locked { "behind a LockLayer" } else { "WITHOUT any lock" };
    let is_endless = given.flag("serve");
    let until = if is_endless { "until Ctrl-C".to_owned() } else { format!("for {seconds} s") };
    println!("{which}, {layer}; {} orders/s {until}\nwatch live: {page}\n", given.number("rate"));

    board.begin();
    let length = Duration::from_secs(seconds);
    let end = (!is_endless).then(|| Instant::now() + length);
    let ticker = tokio::spawn(show::every_second(board.clone()));
    let kill = async {
        sleep(length / 2).await;
        match uri {
            Some(_) => kill_one_at_work(&mut fleet, &board).await,
            None => Ok(()),
        }
    };
    let street = Arc::new(Street::new(addresses, board.clone()));
    let mut load = pin!(street.fill(u32::try_from(given.number("rate"))?, end, &interrupt));
    tokio::select! {
        () = &mut load => {} // by Ctrl-C
        killed = kill => {
            killed?;
            load.await;
        }
    }
    ticker.abort();
    let outcome = show::summary(&board, is_endless || !interrupt.is_pressed());
    fleet.stop().await?;
    // Time for open pages to get the summary.
    sleep(page::EVERY * 3).await;
    if (given.flag("stay") || stdout().is_terminal()) && !interrupt.is_pressed() {
        println!("\nthe page stays until Ctrl-C: {page}");
        interrupt.pressed().await;
    }
    if let Some(database) = database {
        database.close().await?;
    }
    Ok(outcome)
}

/// Kills one replica in the middle of an order, so that its lock stays behind.
async fn kill_one_at_work(fleet: &mut Children<String>, board: &Board) -> Result<(), Failure> {
    let end = Instant::now() + PATIENCE;
    loop {
        // In one step, so that nothing is written in between.
        let killed = board.change(|state, now| {
            let is_at_work = state.has_begun(VICTIM, now, MOMENT.as_secs_f64() / 2.0);
            if !is_at_work && Instant::now() < end {
                return Ok(None);
            }
            state.killed(VICTIM, now);
            fleet.start_kill(VICTIM).map(|()| Some(is_at_work))
        })?;
        if let Some(is_at_work) = killed {
            let how = if is_at_work { "in the middle of an order" } else { "while it is idle" };
            println!("         replica {VICTIM} is killed {how}");
            return fleet.kill(VICTIM).await;
        }
        sleep(Duration::from_millis(2)).await;
    }
}

/// Where the customers come from. They try the living replicas in turn.
struct Street {
    /// The address of each replica, and whether it is dead.
    replicas: Vec<(String, AtomicBool)>,
    next: AtomicUsize,
    client: HttpClient,
    board: Board,
}

impl Street {
    fn new(addresses: Vec<String>, board: Board) -> Self {
        let replicas = addresses.into_iter().map(|address| (address, AtomicBool::new(false))).collect();
        Self { replicas, next: AtomicUsize::new(0), client: HttpClient::new(), board }
    }

    /// Sends each order twice at once, as double clicks do, and with it two requests that only
    /// read. At a steady rate, until the end or Ctrl-C. Then waits for the answers.
    async fn fill(self: &Arc<Self>, rate: u32, end: Option<Instant>, interrupt: &Interrupt) {
        let mut ticks = interval(Duration::from_secs(2) / rate);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let mut requests = JoinSet::new();
        loop {
            tokio::select! {
                now = ticks.tick() => {
                    if end.is_some_and(|end| now >= end) {
                        break;
                    }
                    // Half of the orders are for the first item.
                    let item = ITEMS[if fastrand::bool() { 0 } else { fastrand::usize(1..ITEMS.len()) }];
                    if requests.len() < AT_ONCE {
                        for method in [Method::POST, Method::POST, Method::GET, Method::GET] {
                            let street = self.clone();
                            requests.spawn(async move { street.send(method, item).await });
                        }
                    }
                }
                Some(_) = requests.join_next() => {}
                () = interrupt.pressed() => break,
            }
        }
        while requests.join_next().await.is_some() {}
    }

    async fn send(&self, method: Method, item: &str) {
        let Some(number) = self.board.change(|state, now| state.arrived(item, now)) else { return };
        let (reads, label) = (method == Method::GET, self.answer(method, item, number).await);
        self.board.change(|state, now| state.answered(number, reads, &label, now));
    }

    /// Tries the next living replica. Tries another only if the first cannot have seen the request.
    /// Returns the label of the answer.
    async fn answer(&self, method: Method, item: &str, number: u64) -> String {
        let turn = self.next.fetch_add(1, Relaxed);
        for step in 0..self.replicas.len() {
            let (address, is_dead) = &self.replicas[(turn + step) % self.replicas.len()];
            if is_dead.load(Relaxed) {
                continue;
            }
            let request = Request::builder().method(method.clone()).uri(format!("{address}/orders/{item}"));
            let Ok(request) = request.header(REQUEST, number).body(()) else { break };
            match self.client.send(request.into_parts().0, Bytes::new()).await {
                Ok(response) => return label(response.status().as_u16(), response.body()),
                Err(failure) => {
                    is_dead.store(true, Relaxed);
                    if matches!(failure, NoAnswer::Broken) {
                        return "replica died".to_owned();
                    }
                }
            }
        }
        "no replica".to_owned()
    }
}

/// The label of an answer: `ok`, or its status with the reason in the layer's problem document.
fn label(status: u16, body: &[u8]) -> String {
    if (200..300).contains(&status) {
        return OK.to_owned();
    }
    let problem: Option<serde_json::Value> = serde_json::from_slice(body).ok();
    let reason = problem.as_ref().and_then(|problem| problem["type"].as_str()?.strip_prefix("urn:distlock:problem:"));
    reason.map_or_else(|| status.to_string(), |reason| format!("{status} {reason}"))
}

/// The reader or writer of a counter, for the display.
#[derive(Deserialize)]
struct Caller {
    request: u64,
    replica: String,
    token: u64,
    reads: bool,
}

/// The counters, which all replicas read and write over HTTP. No request does both, so only a lock
/// makes the two one step.
fn warehouse(board: Board) -> Router {
    let read = async |Shared(board): Shared<Board>, Path(item): Path<String>, Query(by): Query<Caller>| {
        let caller = (by.request, &*by.replica, by.token, by.reads);
        let sold = board.change(|state, now| state.read(&item, caller, now));
        sold.map(|sold| sold.to_string()).ok_or(StatusCode::NOT_FOUND)
    };
    let write =
        async |Shared(board): Shared<Board>, Path(item): Path<String>, Query(by): Query<Caller>, sold: String| {
            let Ok(sold) = sold.parse() else { return StatusCode::BAD_REQUEST };
            let written = board.change(|state, now| state.write(&item, by.request, sold, now));
            written.map_or(StatusCode::NOT_FOUND, |()| StatusCode::NO_CONTENT)
        };
    Router::new().route("/sold/{item}", get(read).put(write)).with_state(board)
}

#[tokio::main]
async fn main() -> ExitCode {
    PROGRAM.run(show, shop::play).await
}
