//! What runs in the child processes: they take a task on standard input, and report on standard
//! output, a JSON document per line.

mod churn;
mod contend;
mod crowd;
mod hold;
mod keys_once;
pub mod protocol;
mod relay;
mod renew_each;
mod serve;

use std::io::Write;
use std::sync::Arc;

use tokio::io::{AsyncBufReadExt, BufReader, Lines, Stdin};

use self::protocol::{Message, Report, Spec, Task, Window};
use crate::Outcome;
use crate::clock;
use crate::commands::{self, Monitor};
use crate::locks;

/// Standard input. Its end is the order to go, so that no child outlives its parent.
struct Orders(Lines<BufReader<Stdin>>);

impl Orders {
    async fn next<T: serde::de::DeserializeOwned>(&mut self) -> Outcome<T> {
        let line = self.0.next_line().await?.ok_or("the parent has gone")?;
        Ok(serde_json::from_str(&line)?)
    }
}

/// Runs a child from start to end.
pub async fn run() -> Outcome<()> {
    let mut orders = Orders(BufReader::new(tokio::io::stdin()).lines());
    let spec: Spec = orders.next().await?;
    match perform(spec, &mut orders).await {
        Ok(report) => say(&Message::Report(Box::new(report))),
        Err(error) => say(&Message::Failed(error.to_string())),
    }
}

async fn perform(spec: Spec, orders: &mut Orders) -> Outcome<Report> {
    let monitor = Arc::new(Monitor::default());
    match spec.task {
        Task::KeysOnce { who } => return keys_once::run(&who).await,
        Task::Churn(task) => return churn::run(&spec.uri, spec.settings, task).await,
        Task::Relay(task) => {
            let relay = relay::Relay::open(spec.who, &spec.uri, task).await?;
            let window = ready(orders).await?;
            return observe(&monitor, window, orders, relay.run(window)).await;
        }
        Task::RenewEach { leases, cadence_ms } => {
            let renewing = renew_each::start(&spec.uri, leases, cadence_ms, &monitor).await?;
            let window = ready(orders).await?;
            return observe(&monitor, window, orders, renewing.run(window)).await;
        }
        Task::Serve(task) => {
            let address = serve::start(&spec, task, &monitor).await?;
            say(&Message::Listening(address))?;
            let window = ready(orders).await?;
            observe(&monitor, window, orders, serve::until_end(window)).await
        }
        Task::Contend(task) => {
            let locks = locks::connect(spec.who, &spec.uri, spec.settings, &monitor).await?;
            contend::warm_up(&*locks).await?;
            let window = ready(orders).await?;
            if task.log {
                monitor.keep_log();
            }
            observe(&monitor, window, orders, contend::run(vec![locks], task, window, window.start)).await
        }
        Task::Crowd(ref task) => {
            let providers = crowd::connect(&spec, task.providers, &monitor).await?;
            let window = ready(orders).await?;
            if task.contend.log {
                monitor.keep_log();
            }
            observe(&monitor, window, orders, crowd::run(providers, task, window)).await
        }
        Task::Hold { prefix, keys } => {
            let locks = locks::connect(spec.who, &spec.uri, spec.settings, &monitor).await?;
            let held = hold::acquire(&*locks, &prefix, keys).await?;
            let window = ready(orders).await?;
            observe(&monitor, window, orders, hold::run(held, window)).await
        }
        Task::Wait { prefix, keys } => {
            let locks = locks::connect(spec.who, &spec.uri, spec.settings, &monitor).await?;
            contend::warm_up(&*locks).await?;
            let waiting = hold::wait(locks, &prefix, keys);
            let window = ready(orders).await?;
            observe(&monitor, window, orders, waiting.run(window)).await
        }
    }
}

/// Reports that it is ready, and reads when to measure.
async fn ready(orders: &mut Orders) -> Outcome<Window> {
    say(&Message::Ready)?;
    orders.next().await
}

/// Adds to a report what was sent, and what processor time went by, in the window.
async fn observe(
    monitor: &Arc<Monitor>,
    window: Window,
    orders: &mut Orders,
    work: impl Future<Output = Outcome<Report>>,
) -> Outcome<Report> {
    let watch = async {
        clock::sleep_until(window.start).await;
        let (sent, cpu) = (monitor.counts(), clock::cpu());
        clock::sleep_until(window.stop).await;
        (commands::difference(&sent, &monitor.counts()), clock::cpu() - cpu)
    };
    let mut report = tokio::select! {
        (report, (commands, cpu_ns)) = async { tokio::join!(work, watch) } => Report { commands, cpu_ns, ..report? },
        gone = orders.next::<Window>() => return Err(gone.err().unwrap_or_else(|| "one window is enough".into())),
    };
    report.log = monitor.take_log();
    Ok(report)
}

fn say(message: &Message) -> Outcome<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(&line)?;
    Ok(stdout.flush()?)
}
