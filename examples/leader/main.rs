//! One leader among three processes. The leader writes; it is killed, it falls asleep, it resigns,
//! and each time another process takes over.
//!
//! ```text
//! # on a replica set that is found or started for the run:
//! cargo run -p distlock-examples --features mongodb --bin leader
//! # on one of yours:
//! cargo run -p distlock-examples --features mongodb --bin leader -- --mongodb mongodb://localhost
//! # without the check of the term, to see the late write of a leader of the past:
//! cargo run -p distlock-examples --features mongodb --bin leader -- --no-fence
//! ```
//!
//! # What it shows
//! Each candidate is an OS process. The one that leads adds lines to a register, a document, each
//! under its term. An observer in the parent process prints who leads.
//!
//! The first leader is killed (SIGKILL). The second one falls asleep (SIGSTOP) before a write, for
//! longer than its lease, and sends the write when it wakes up: the register refuses it. The third
//! one resigns, and the next one leads at once. At the end the register is compared with what the
//! leaders have reported.

mod supervisor;
mod verdict;
mod worker;

use std::process::ExitCode;
use std::time::Duration;

use distlock_examples::{Failure, read_options};

const USAGE: &str = "\
usage: leader [OPTION]...

Three processes, one leader: it is killed, falls asleep, and resigns.

  --mongodb URI  a replica set; without it, one is found or started for the run
  --writes N     writes of each leader, 3 to 1000 (default 10)
  --lease N      seconds of a lease, 1 to 30 (default 2)
  --no-fence     the register does not check the term: a late write is accepted
  --help         this text
";

/// The leadership.
const KEY: &str = "writer";
/// The default. Short, so that another process soon takes over. A real service would keep 30 s. On
/// a busy machine, a leader cannot always renew a short lease in time.
const LEASE: Duration = Duration::from_secs(2);
/// The collection of the register.
const REGISTERS: &str = "registers";
/// The `_id` of the register.
const REGISTER: &str = "the register";

/// The command line.
struct Arguments {
    mongodb: Option<String>,
    fenced: bool,
    writes: usize,
    lease: Duration,
}

fn arguments() -> Result<Option<Arguments>, Failure> {
    let defaults = Arguments { mongodb: None, fenced: true, writes: 10, lease: LEASE };
    read_options(USAGE, defaults, |arguments, option, values| {
        match option {
            "mongodb" => arguments.mongodb = Some(values.text()?),
            "no-fence" => arguments.fenced = false,
            "writes" => arguments.writes = values.number(3..=1000)?,
            "lease" => arguments.lease = Duration::from_secs(values.number(1..=30)?),
            _ => return Ok(false),
        }
        Ok(true)
    })
}

#[tokio::main]
async fn main() -> ExitCode {
    distlock_examples::run("leader", arguments, supervisor::show, worker::play).await
}
