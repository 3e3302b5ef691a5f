//! A web shop whose orders all change the same few stock counters, by reading, waiting a moment and
//! writing back. One [`LockLayer`](distlock_tower::LockLayer) makes that safe; without it, updates
//! are lost. Watch who holds what, the queues, waits and refusals.
//!
//! Run with
//!
//! ```text
//! cargo run -p distlock-examples --features mongodb --bin replicas                                   # no server: one replica in this process
//! cargo run -p distlock-examples --features mongodb --bin replicas -- --mongodb mongodb://localhost  # two replicas as OS processes; one is killed in the middle
//! cargo run -p distlock-examples --features mongodb --bin replicas -- --no-lock                      # without the layer: the lost updates are counted
//! ```
//!
//! It prints the address of a page that shows the same live. With `--serve` it goes on until
//! Ctrl-C.
//!
//! Options: `--seconds N` (default 8), `--rate N` orders per second (default 40), `--port N` of the
//! page (default any), `--database NAME` (default `distlock_replicas`).

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

use std::pin::pin;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use distlock_examples::{Failure, HttpClient, conclude, serve};
use distlock_memory::MemoryProvider;
use tokio::time::{Instant, sleep, sleep_until};

use crate::board::Board;
use crate::fleet::Fleet;
use crate::proxy::Proxy;

const ITEMS: [&str; 3] = ["apples", "pears", "plums"];
const REPLICAS: [&str; 2] = ["A", "B"];
/// Short, so that a dead replica's locks are free again soon; a real service would take the default
/// of 30 s.
const LEASE: Duration = Duration::from_secs(2);
/// Longer than the lease, so that who waits for a dead replica's lock gets it.
const WAIT: Duration = Duration::from_secs(3);

/// What the command line asks for.
#[derive(Clone, Debug)]
pub(crate) struct Arguments {
    mongodb: Option<String>,
    database: String,
    locked: bool,
    serve: bool,
    seconds: u64,
    rate: u32,
    port: u16,
    /// This process is the n-th replica of another one, with the warehouse at that address.
    replica: Option<(usize, String)>,
}

const USAGE: &str = "\
usage: replicas [--mongodb URI] [OPTION]...

  --mongodb URI   two replicas as processes, one of which is killed; without it, one in this process
  --database NAME where the locks are (default distlock_replicas)
  --no-lock       without the layer: the lost updates are counted
  --seconds N     how long orders come in (default 8)
  --rate N        orders per second (default 40)
  --port N        of the live page (default: any)
  --serve         continue until Ctrl-C
  --help          this text
";

/// `None` if the caller asked for help.
fn arguments() -> Result<Option<Arguments>, Failure> {
    use lexopt::prelude::*;

    let mut arguments = Arguments {
        mongodb: None,
        database: "distlock_replicas".to_owned(),
        locked: true,
        serve: false,
        seconds: 8,
        rate: 40,
        port: 0,
        replica: None,
    };
    let mut parser = lexopt::Parser::from_env();
    while let Some(argument) = parser.next()? {
        match argument {
            Long("mongodb") => arguments.mongodb = Some(parser.value()?.string()?),
            Long("database") => arguments.database = parser.value()?.string()?,
            Long("no-lock") => arguments.locked = false,
            Long("serve") => arguments.serve = true,
            Long("seconds") => arguments.seconds = parser.value()?.parse()?,
            Long("rate") => arguments.rate = parser.value()?.parse()?,
            Long("port") => arguments.port = parser.value()?.parse()?,
            Long("replica") => arguments.replica = Some((parser.value()?.parse()?, parser.value()?.string()?)),
            Long("help") | Short('h') => return Ok(None),
            _ => return Err(format!("{}\n\n{USAGE}", argument.unexpected()).into()),
        }
    }
    // After the middle, when a replica is killed, its leases must have time to expire.
    let shortest = if arguments.mongodb.is_some() { 6 } else { 2 };
    if !(shortest..=600).contains(&arguments.seconds) || !(2..=500).contains(&arguments.rate) {
        return Err(format!("use {shortest} to 600 seconds and 2 to 500 orders per second").into());
    }
    if arguments.replica.as_ref().is_some_and(|(index, _)| *index >= REPLICAS.len()) {
        return Err("there is no such replica".into());
    }
    Ok(Some(arguments))
}

async fn run(arguments: &Arguments) -> Result<bool, Failure> {
    let names = if arguments.mongodb.is_some() { &REPLICAS[..] } else { &REPLICAS[..1] };
    let board = Board::new(names, &ITEMS, arguments.locked);
    let client = HttpClient::new();
    let (warehouse, _) = serve(warehouse::router(board.clone()), 0).await?;
    let (page, _) = serve(page::router(board.clone()), arguments.port).await?;

    let (mut fleet, addresses) = match &arguments.mongodb {
        Some(uri) => {
            // A clear error before anything starts.
            replica::on_mongodb(uri, arguments, "replicas").await?.1.shutdown().await;
            Fleet::start(&warehouse, names).await?
        }
        None => {
            let shop = replica::router(names[0], &warehouse, arguments.locked.then(MemoryProvider::new))?;
            (Fleet::none(), vec![serve(shop, 0).await?.0])
        }
    };
    let (shop, _) = serve(proxy::router(Arc::new(Proxy::new(addresses, client.clone(), board.clone()))), 0).await?;

    let layer = if arguments.locked { "behind a LockLayer" } else { "WITHOUT any lock" };
    let which = match &arguments.mongodb {
        Some(_) => "two replicas as OS processes over one MongoDB",
        None => "one replica in this process, no server",
    };
    println!("{which}, {layer}; {} orders/s for {} s\nwatch live: {page}\n", arguments.rate, arguments.seconds);

    let start = Instant::now();
    board.change(|state, now| state.start = now);
    let ticker = tokio::spawn(show::every_second(board.clone()));
    let length = Duration::from_secs(arguments.seconds);
    let load = customers::order(client, shop, arguments.rate, (!arguments.serve).then_some(length));
    let kill = async {
        sleep_until(start + length / 2).await;
        fleet.kill_one_at_work(&board).await
    };
    let mut load = pin!(load);
    tokio::select! {
        () = &mut load => {} // by Ctrl-C
        killed = kill => {
            killed?;
            load.await;
        }
    }
    ticker.abort();

    let good = show::summary(&board);
    fleet.stop().await?;
    // Time for open pages to get the last word.
    sleep(page::EVERY * 3).await;
    Ok(good)
}

#[tokio::main]
async fn main() -> ExitCode {
    let outcome = match arguments() {
        Ok(None) => {
            print!("{USAGE}");
            Ok(true)
        }
        Ok(Some(arguments)) => match &arguments.replica {
            Some((index, warehouse)) => replica::process(REPLICAS[*index], warehouse, &arguments).await.map(|()| true),
            None => run(&arguments).await,
        },
        Err(error) => Err(error),
    };
    conclude("replicas", outcome)
}
