//! The side of the child: the orders that it receives, and its reports.

use std::io::{BufRead, Write};
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::sync::watch;

use crate::Failure;

/// The one argument of a child.
pub(crate) const CHILD: &str = "--child";
/// How long a child may take to stop.
pub(crate) const STOP_LIMIT: Duration = Duration::from_secs(10);
/// The exit code of a child that did not stop in time.
const NOT_STOPPED: i32 = 70;

/// The orders that a child receives.
#[derive(Debug)]
pub struct Orders {
    lines: UnboundedReceiver<String>,
    has_ended: watch::Receiver<bool>,
}

impl Orders {
    /// The next order; `None` if the child is to stop.
    ///
    /// # Errors
    /// If it is not an order of this type.
    pub async fn next<T: DeserializeOwned>(&mut self) -> Result<Option<T>, Failure> {
        Ok(self.lines.recv().await.map(|line| serde_json::from_str(&line)).transpose()?)
    }

    /// Whether the child is to stop.
    #[must_use]
    pub fn have_ended(&self) -> bool {
        *self.has_ended.borrow()
    }

    /// Waits until the child is to stop.
    pub fn end(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut has_ended = self.has_ended.clone();
        async move {
            // An error means that the reader is gone: that is an end, too.
            let _ = has_ended.wait_for(|ended| *ended).await;
        }
    }
}

/// The name and the part of this process if it is a child, with its orders. `None` if it is not.
///
/// # Errors
/// If no parent sends it a part.
pub(crate) async fn part<P: DeserializeOwned>() -> Result<Option<(P, Orders)>, Failure> {
    if !std::env::args_os().skip(1).eq([CHILD]) {
        return Ok(None);
    }
    let (sender, lines) = unbounded_channel();
    let (end, has_ended) = watch::channel(false);
    // A thread and not a task: a runtime does not end before a read of its own has.
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines() {
            let Ok(line) = line else { break };
            if sender.send(line).is_err() {
                break;
            }
        }
        end.send_replace(true);
        drop(sender);
        std::thread::sleep(STOP_LIMIT);
        std::process::exit(NOT_STOPPED);
    });
    let mut orders = Orders { lines, has_ended };
    let part = orders.next().await?.ok_or("this process got no part from its parent")?;
    Ok(Some((part, orders)))
}

/// Reports to the parent. A child whose parent is gone ends here.
///
/// # Panics
/// If `report` cannot be written as JSON, such as a map whose keys are not text.
pub fn report(report: &impl Serialize) {
    let line = serde_json::to_string(report).expect("plain data");
    if writeln!(std::io::stdout(), "{line}").is_err() {
        std::process::exit(NOT_STOPPED);
    }
}
