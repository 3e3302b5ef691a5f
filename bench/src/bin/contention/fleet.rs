//! Child processes, seen from the parent.

use std::net::SocketAddr;
use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::timeout;

use crate::Outcome;
use crate::clock;
use crate::worker::protocol::{Message, Report, Spec, Window};

/// The argument that makes this program a child.
pub const WORKER: &str = "worker";

/// The time before the window, so that every child reads of it in time.
const LEAD: Duration = Duration::from_millis(200);
/// For connecting and warming up.
const READY_LIMIT: Duration = Duration::from_secs(60);
/// For reporting after the window.
const REPORT_LIMIT: Duration = Duration::from_secs(30);

/// A child process. It is killed when this is dropped.
pub struct Worker {
    child: Child,
    orders: ChildStdin,
    messages: Lines<BufReader<ChildStdout>>,
}

impl Worker {
    /// Starts one, which begins to prepare itself.
    pub async fn start(spec: &Spec) -> Outcome<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .arg(WORKER)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let orders = child.stdin.take().ok_or("a child without standard input")?;
        let messages = BufReader::new(child.stdout.take().ok_or("a child without standard output")?).lines();
        let mut worker = Self { child, orders, messages };
        worker.say(spec).await?;
        Ok(worker)
    }

    /// Waits until it is prepared, at most as long as usual.
    pub async fn ready(&mut self) -> Outcome<()> {
        self.ready_within(READY_LIMIT).await
    }

    /// Waits until it is prepared.
    pub async fn ready_within(&mut self, limit: Duration) -> Outcome<()> {
        match timeout(limit, self.hear()).await.map_err(|_| "a child does not get ready")?? {
            Message::Ready => Ok(()),
            Message::Failed(problem) => Err(problem.into()),
            Message::Report(_) | Message::Listening(_) => Err("a child reports before its window".into()),
        }
    }

    /// Where a child listens that serves requests.
    pub async fn address(&mut self) -> Outcome<SocketAddr> {
        match timeout(READY_LIMIT, self.hear()).await.map_err(|_| "a child does not listen")?? {
            Message::Listening(address) => Ok(address),
            Message::Failed(problem) => Err(problem.into()),
            Message::Ready | Message::Report(_) => Err("a child does not report where it listens".into()),
        }
    }

    /// Sends the window in which to measure.
    pub async fn measure(&mut self, window: Window) -> Outcome<()> {
        self.say(&window).await
    }

    /// Waits for the end of the window and for what was measured.
    pub async fn report(self, window: Window) -> Outcome<Report> {
        clock::sleep_until(window.stop).await;
        self.report_within(REPORT_LIMIT).await
    }

    /// Waits for what was measured.
    pub async fn report_within(mut self, limit: Duration) -> Outcome<Report> {
        match timeout(limit, self.hear()).await.map_err(|_| "a child does not report")?? {
            Message::Report(report) => {
                // It has nothing left to do, and must not disturb the next measurement.
                self.child.kill().await?;
                Ok(*report)
            }
            Message::Failed(problem) => Err(problem.into()),
            Message::Ready | Message::Listening(_) => Err("a child is ready twice".into()),
        }
    }

    /// `kill -9`, and the end of it.
    pub async fn kill(mut self) -> Outcome<()> {
        Ok(self.child.kill().await?)
    }

    async fn say(&mut self, order: &impl serde::Serialize) -> Outcome<()> {
        let mut line = serde_json::to_vec(order)?;
        line.push(b'\n');
        self.orders.write_all(&line).await?;
        Ok(self.orders.flush().await?)
    }

    async fn hear(&mut self) -> Outcome<Message> {
        let line = self.messages.next_line().await?.ok_or("a child ended without a word")?;
        Ok(serde_json::from_str(&line)?)
    }
}

/// Starts a child per spec and waits until all are prepared.
pub async fn start_all(specs: &[Spec]) -> Outcome<Vec<Worker>> {
    let mut workers = Vec::new();
    for spec in specs {
        workers.push(Worker::start(spec).await?);
    }
    for worker in &mut workers {
        worker.ready().await?;
    }
    Ok(workers)
}

/// Lets all of them measure from now on for `length`; returns the window.
pub async fn measure_all(workers: &mut [Worker], length: Duration) -> Outcome<Window> {
    let window = window(length);
    for worker in workers {
        worker.measure(window).await?;
    }
    Ok(window)
}

/// A window that begins soon.
pub fn window(length: Duration) -> Window {
    let start = clock::now() + LEAD.as_nanos() as u64;
    Window { start, stop: start + length.as_nanos() as u64 }
}

/// A window that begins `settle` later than soon.
pub fn window_after(settle: Duration, length: Duration) -> Window {
    let soon = window(length);
    let settle = settle.as_nanos() as u64;
    Window { start: soon.start + settle, stop: soon.stop + settle }
}

/// Starts children, lets them measure together after `settle`, and collects their reports.
pub async fn run_settled(specs: &[Spec], settle: Duration, length: Duration) -> Outcome<(Window, Vec<Report>)> {
    let mut workers = start_all(specs).await?;
    let window = window_after(settle, length);
    for worker in &mut workers {
        worker.measure(window).await?;
    }
    Ok((window, reports(workers, window).await?))
}

/// All reports, in the order of the children.
pub async fn reports(workers: Vec<Worker>, window: Window) -> Outcome<Vec<Report>> {
    let mut reports = Vec::new();
    for worker in workers {
        reports.push(worker.report(window).await?);
    }
    Ok(reports)
}

/// Starts children, lets them measure together, and collects their reports.
pub async fn run(specs: &[Spec], length: Duration) -> Outcome<(Window, Vec<Report>)> {
    let mut workers = start_all(specs).await?;
    let window = measure_all(&mut workers, length).await?;
    Ok((window, reports(workers, window).await?))
}
