//! A nightly job on three replicas. Each starts it at midnight by its own clock. It is done once
//! per date, also on the night on which a replica dies in the middle of it.
//!
//! ```text
//! cargo run -p distlock-examples --bin nightly   # no server: three providers, nights of a second
//! ```
//!
//! Each replica calls `try_once(("report", date))`. A replica whose clock is late finds the work
//! *done*, however quickly the first one was. A lock alone would let it do the work again. After
//! the crash the lease ends, and the answer to the next replica names the run that was interrupted.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use distlock_api::RenewalPolicy;
use distlock_examples::{Checks, Failure, Given, Interrupt, Orders, Outcome, Program};
use distlock_memory::{MemoryOnce, MemoryStore};
use distlock_recipes::once::{Once, OnceProvider, OnceProviderExt};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

const PROGRAM: Program = Program {
    name: "nightly",
    about: "Three replicas start a job at midnight, each by its own clock. It is done once per date, also on the \
            night on which a replica dies in the middle of it. Needs no server.",
    options: &[],
};

const NIGHTS: u32 = 5;
const NIGHT: Duration = Duration::from_secs(1);
/// How late the clock of each replica is.
const LATE: [(&str, Duration); 3] =
    [("anna", Duration::ZERO), ("boris", Duration::from_millis(120)), ("carla", Duration::from_millis(250))];
/// On this night the first replica dies while it works.
const CRASH: u32 = 3;
const LEASE: Duration = Duration::from_millis(900);
/// An outcome must be remembered for longer than the clocks differ.
const KEEP: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// How often the work of each date was completed.
type Reports = Arc<Mutex<BTreeMap<u32, u32>>>;

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    PROGRAM.run(show, no_child).await
}

async fn no_child(_: String, (): (), _: Orders) -> Result<(), Failure> {
    Err("this program has no child processes".into())
}

async fn show(_: Given, interrupt: Interrupt) -> Result<Outcome, Failure> {
    let reports = Reports::default();
    let is_complete = tokio::select! {
        ended = nights(&reports) => ended.map(|()| true)?,
        () = interrupt.pressed() => false,
    };
    let reports = reports.lock().expect("not poisoned").clone();
    let twice = reports.values().filter(|times| **times > 1).count();
    println!();
    let mut checks = Checks::new(is_complete);
    checks.show("nights", NIGHTS);
    checks.show("reports", reports.len());
    checks.none("made twice", twice, "reports were made twice");
    checks.at_the_end((1..=NIGHTS).all(|date| reports.contains_key(&date)), "a night has no report");
    Ok(checks.conclude("each report was made once, although a replica died while it made one"))
}

async fn nights(reports: &Reports) -> Result<(), Failure> {
    let store = MemoryStore::new();
    let memory = MemoryOnce::with_locks(store.provider());
    let start = Instant::now();
    let mut replicas = JoinSet::new();
    for (name, late) in LATE {
        let (jobs, reports) = (memory.twin(store.provider()), reports.clone());
        replicas.spawn(async move { replica(&jobs, name, start + late, &reports).await });
    }
    while let Some(ended) = replicas.join_next().await {
        ended??;
    }
    Ok(())
}

async fn replica(jobs: &dyn OnceProvider, name: &str, midnight: Instant, reports: &Reports) -> Result<(), Failure> {
    for date in 1..=NIGHTS {
        sleep_until(midnight + date * NIGHT).await;
        loop {
            let job = jobs.try_once(("report", date)).owner(name).ttl(LEASE).keep(KEEP);
            let crashes = date == CRASH && name == LATE[0].0;
            // A process that dies renews no lease.
            let job = if crashes { job.renewal(RenewalPolicy::Never) } else { job };
            match job.await? {
                Once::Begun(work) if crashes => {
                    println!("night {date}: {name} begins, and DIES");
                    std::mem::forget(work);
                    break;
                }
                Once::Begun(mut work) => {
                    match work.interrupted().and_then(|run| run.owner.as_deref()) {
                        Some(other) => println!("night {date}: {name} begins again what {other} left"),
                        None => println!("night {date}: {name} begins"),
                    }
                    work.run(sleep(Duration::from_millis(20))).await?;
                    work.complete(format!("by {name}")).await?;
                    *reports.lock().expect("not poisoned").entry(date).or_default() += 1;
                    break;
                }
                Once::Done(report) => {
                    println!("night {date}: {name} finds it done {}", String::from_utf8_lossy(report.value()));
                    break;
                }
                // Under way: it may be the run of a replica that has died.
                _ => sleep(LEASE / 3).await,
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn each_report_is_made_once() {
        let expected: BTreeMap<u32, u32> = (1..=NIGHTS).map(|date| (date, 1)).collect();
        let reports = Reports::default();
        nights(&reports).await.unwrap();
        assert_eq!(*reports.lock().unwrap(), expected);
    }
}
