//! A web shop whose orders all change the same few stock counters, by reading, waiting a moment and
//! writing back. One [`LockLayer`](distlock_tower::LockLayer) makes that safe; without it, updates
//! are lost. Requests that only read share the lock: they are served together, but never while an
//! order is. The terminal and a live page show the holders, queues, waits and refusals.
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
mod customers;
mod fleet;
mod page;
mod proxy;
mod replica;
mod show;
mod tally;
mod verdict;
mod warehouse;

use std::io::{IsTerminal, stdout};
use std::pin::pin;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use distlock_examples::{Children, Failure, HttpClient, Interrupt, Outcome, read_options, serve};
use distlock_memory::MemoryProvider;
use tokio::time::{Instant, sleep, sleep_until};

use crate::board::Board;
use crate::proxy::Proxy;

const ITEMS: [&str; 3] = ["apples", "pears", "plums"];
const REPLICAS: [&str; 2] = ["A", "B"];
/// Short, so that a dead replica's locks are soon free. A real service would keep the default,
/// 30 s.
const LEASE: Duration = Duration::from_secs(2);
/// Longer than the lease, so that a request that waits for a dead replica's lock gets it.
const WAIT: Duration = Duration::from_secs(3);

const USAGE: &str = "\
usage: replicas [OPTION]...

A web shop behind a lock layer, with a live page.

  --mongodb URI    two replicas as processes, one is killed; else one replica in this process
  --database NAME  where the locks are (default distlock_replicas)
  --no-lock        without the layer: counts the lost updates
  --seconds N      how long orders come in, 2 to 600, with --mongodb from 6 (default 8)
  --rate N         orders per second, 2 to 500 (default 40)
  --port N         of the live page (default: any)
  --serve          orders come in until Ctrl-C
  --stay           keep the live page after the run, until Ctrl-C (default on a terminal)
  --help           this text
";

/// The command line.
#[derive(Clone, Debug)]
struct Arguments {
    mongodb: Option<String>,
    database: String,
    locked: bool,
    serve: bool,
    stay: bool,
    seconds: u64,
    rate: u32,
    port: u16,
}

fn arguments() -> Result<Option<Arguments>, Failure> {
    let defaults = Arguments {
        mongodb: None,
        database: "distlock_replicas".to_owned(),
        locked: true,
        serve: false,
        stay: stdout().is_terminal(),
        seconds: 8,
        rate: 40,
        port: 0,
    };
    let arguments = read_options(USAGE, defaults, |arguments, option, values| {
        match option {
            "mongodb" => arguments.mongodb = Some(values.text()?),
            "database" => arguments.database = values.text()?,
            "no-lock" => arguments.locked = false,
            "serve" => arguments.serve = true,
            "stay" => arguments.stay = true,
            "seconds" => arguments.seconds = values.number(2..=600)?,
            "rate" => arguments.rate = values.number(2..=500)?,
            "port" => arguments.port = values.number(0..=u16::MAX)?,
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    // After the middle of the run, when a replica is killed, its leases must have time to expire.
    if arguments.as_ref().is_some_and(|arguments| arguments.mongodb.is_some() && arguments.seconds < 6) {
        return Err("with --mongodb, --seconds takes a number from 6 to 600".into());
    }
    Ok(arguments)
}

async fn show(arguments: Arguments) -> Result<Outcome, Failure> {
    let names = if arguments.mongodb.is_some() { &REPLICAS[..] } else { &REPLICAS[..1] };
    let board = Board::new(names, &ITEMS, arguments.locked);
    let client = HttpClient::new();
    let (warehouse, _) = serve(warehouse::router(board.clone()), 0).await?;
    let (page, _) = serve(page::router(board.clone()), arguments.port).await?;

    let mut fleet = Children::new();
    let addresses = match &arguments.mongodb {
        Some(uri) => {
            // A clear error before anything starts.
            replica::on_mongodb(uri, &arguments.database, "replicas").await?.1.shutdown().await;
            fleet::start(&mut fleet, uri, &warehouse, &arguments).await?
        }
        None => {
            let shop = replica::router(names[0], &warehouse, arguments.locked.then(MemoryProvider::new))?;
            vec![serve(shop, 0).await?.0]
        }
    };
    let (shop, _) = serve(proxy::router(Arc::new(Proxy::new(addresses, client.clone(), board.clone()))), 0).await?;

    let interrupt = Interrupt::listen();
    let layer = if arguments.locked { "behind a LockLayer" } else { "WITHOUT any lock" };
    let which = match &arguments.mongodb {
        Some(_) => "two replicas as OS processes over one MongoDB",
        None => "one replica in this process, no server",
    };
    let length = (!arguments.serve).then_some(Duration::from_secs(arguments.seconds));
    let until = length.map_or("until Ctrl-C".to_owned(), |length| format!("for {} s", length.as_secs()));
    println!("{which}, {layer}; {} orders/s {until}\nwatch live: {page}\n", arguments.rate);
    println!("{}", show::heading());

    let start = Instant::now();
    board.change(|state, now| state.start = now);
    let ticker = tokio::spawn(show::every_second(board.clone()));
    let kill = async {
        sleep_until(start + Duration::from_secs(arguments.seconds) / 2).await;
        match arguments.mongodb {
            Some(_) => fleet::kill_one_at_work(&mut fleet, &board).await,
            None => Ok(()),
        }
    };
    let mut load = pin!(customers::order(client, shop, arguments.rate, length, &interrupt));
    tokio::select! {
        () = &mut load => {} // by Ctrl-C
        killed = kill => {
            killed?;
            load.await;
        }
    }
    ticker.abort();

    let outcome = show::summary(&board, arguments.serve || !interrupt.is_pressed());
    fleet.stop().await?;
    // Time for open pages to get the summary.
    sleep(page::EVERY * 3).await;
    if arguments.stay && !interrupt.is_pressed() {
        println!("\nthe page stays until Ctrl-C: {page}");
        interrupt.pressed().await;
    }
    Ok(outcome)
}

#[tokio::main]
async fn main() -> ExitCode {
    distlock_examples::run("replicas", arguments, show, replica::play).await
}
