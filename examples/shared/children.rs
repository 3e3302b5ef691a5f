//! Child processes of an example: the same program, started once more for each part.
//!
//! A child gets its part, and then orders, on standard input, one line of JSON each. It reports on
//! standard output in the same way. The end of standard input is the order to stop, so a child ends
//! with its parent, however that ends. A child that does not stop by itself is ended.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, Write};
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::watch;
use tokio::time::timeout;

use crate::{Failure, Interrupt};

/// The one argument of a child.
const CHILD: &str = "--child";
/// How long a child may take to stop.
const STOP_LIMIT: Duration = Duration::from_secs(10);
/// After this long without a report, something hangs.
const SILENCE: Duration = Duration::from_secs(60);
/// The exit code of a child that did not stop in time.
const NOT_STOPPED: i32 = 70;

/// The processes that this one has started. They are killed when this is dropped.
#[derive(Debug)]
pub struct Children<R> {
    /// The program to start; this one if there is no other.
    program: Option<PathBuf>,
    members: BTreeMap<String, Member>,
    /// Those whose output has not ended.
    running: BTreeSet<String>,
    is_stopping: bool,
    reports: UnboundedReceiver<Received<R>>,
    reporters: UnboundedSender<Received<R>>,
}

/// A child's name, and a message of it or a line that is none.
type Received<R> = (String, Result<Message<R>, String>);

#[derive(Debug)]
struct Member {
    process: Child,
    orders: Option<ChildStdin>,
    is_frozen: bool,
}

/// What comes from a child.
#[derive(Debug)]
pub enum Message<R> {
    /// A report of its own.
    Report(R),
    /// Its output has ended, and so has the process.
    Ended,
}

impl<R: DeserializeOwned + Send + 'static> Children<R> {
    /// No children yet. Those to come run this program.
    #[must_use]
    pub fn new() -> Self {
        let (reporters, reports) = unbounded_channel();
        let (members, running) = (BTreeMap::new(), BTreeSet::new());
        Self { program: None, members, running, is_stopping: false, reports, reporters }
    }

    /// No children yet. Those to come run another program, as its own children.
    #[must_use]
    pub fn of(program: impl Into<PathBuf>) -> Self {
        Self { program: Some(program.into()), ..Self::new() }
    }

    /// Starts a child and sends it its part. Returns the id of the process.
    ///
    /// # Errors
    /// If the process cannot be started.
    pub async fn start(&mut self, name: &str, part: &(impl Serialize + Sync)) -> Result<u32, Failure> {
        let program = self.program.clone().map_or_else(std::env::current_exe, Ok)?;
        let mut command = Command::new(program);
        command.arg(CHILD).stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        // Ctrl-C reaches the parent alone, which stops its children.
        #[cfg(unix)]
        command.process_group(0);
        let mut process = command.spawn()?;
        let id = process.id().ok_or("the process has ended at once")?;
        let orders = process.stdin.take();
        let output = process.stdout.take().ok_or("the process has no standard output")?;
        tokio::spawn(read_reports(name.to_owned(), output, self.reporters.clone()));
        self.members.insert(name.to_owned(), Member { process, orders, is_frozen: false });
        self.running.insert(name.to_owned());
        self.send(name, part).await?;
        Ok(id)
    }

    /// Sends an order.
    ///
    /// # Errors
    /// If there is no such child, or it was told to stop.
    pub async fn send(&mut self, name: &str, order: &(impl Serialize + Sync)) -> Result<(), Failure> {
        let orders = self.member(name)?.orders.as_mut().ok_or("the child was told to stop")?;
        let mut line = serde_json::to_string(order)?;
        line.push('\n');
        orders.write_all(line.as_bytes()).await?;
        Ok(())
    }

    /// The next message of any child, in the order of arrival. `None` when all have ended.
    ///
    /// # Errors
    /// If a child prints something else than reports, or no child reports anything for a minute.
    pub async fn next(&mut self) -> Result<Option<(String, Message<R>)>, Failure> {
        if self.running.is_empty() {
            return Ok(None);
        }
        let received = timeout(SILENCE, self.reports.recv()).await;
        let received = received.map_err(|_| "no child process has reported anything for a minute")?;
        let (name, message) = received.ok_or("the reports have ended")?;
        let message = message.map_err(|line| format!("{name} printed {line:?}, which is no report"))?;
        if matches!(message, Message::Ended) {
            self.running.remove(&name);
        }
        Ok(Some((name, message)))
    }

    /// As [`next`](Self::next). At Ctrl-C it stops all children, and returns what they still
    /// report.
    ///
    /// # Errors
    /// As [`next`](Self::next).
    pub async fn next_until(&mut self, interrupt: &Interrupt) -> Result<Option<(String, Message<R>)>, Failure> {
        tokio::select! {
            biased;
            () = interrupt.pressed(), if !self.is_stopping => self.begin_stop()?,
            next = self.next() => return next,
        }
        self.next().await
    }

    /// How many children have not ended.
    #[must_use]
    pub fn running(&self) -> usize {
        self.running.len()
    }

    /// Whether the children were told to stop.
    #[must_use]
    pub fn is_stopping(&self) -> bool {
        self.is_stopping
    }

    /// Sends SIGKILL to a child, without waiting for its end.
    ///
    /// # Errors
    /// If there is no such child.
    pub fn start_kill(&mut self, name: &str) -> Result<(), Failure> {
        Ok(self.member(name)?.process.start_kill()?)
    }

    /// Kills a child (SIGKILL), and waits until it is dead. What it has reported before can still
    /// arrive.
    ///
    /// # Errors
    /// If there is no such child.
    pub async fn kill(&mut self, name: &str) -> Result<(), Failure> {
        let mut member = self.members.remove(name).ok_or("there is no such child")?;
        member.process.kill().await?;
        Ok(())
    }

    /// Freezes a child (SIGSTOP), as a hypervisor or the lid of a laptop does, or continues it.
    ///
    /// # Errors
    /// If there is no such child, or no shell.
    pub fn freeze(&mut self, name: &str, is_frozen: bool) -> Result<(), Failure> {
        let member = self.member(name)?;
        let id = member.process.id().ok_or("the child has ended")?;
        let signal = if is_frozen { "STOP" } else { "CONT" };
        let sent = std::process::Command::new("sh").args(["-c", &format!("kill -{signal} {id}")]).status()?;
        if !sent.success() {
            return Err(format!("{name} could not be sent SIG{signal}").into());
        }
        member.is_frozen = is_frozen;
        Ok(())
    }

    /// Has all children stop, and continues those that are frozen.
    ///
    /// # Errors
    /// If a frozen child cannot be continued.
    pub fn begin_stop(&mut self) -> Result<(), Failure> {
        self.is_stopping = true;
        self.members.values_mut().for_each(|member| drop(member.orders.take()));
        let frozen = self.members.iter().filter(|(_, member)| member.is_frozen);
        let frozen: Vec<String> = frozen.map(|(name, _)| name.clone()).collect();
        frozen.iter().try_for_each(|name| self.freeze(name, false))
    }

    /// Has all children stop, and waits until they have ended.
    ///
    /// # Errors
    /// If a child does not end, or ends with an error. Those that were killed do not count.
    pub async fn stop(mut self) -> Result<(), Failure> {
        self.begin_stop()?;
        for (name, member) in &mut self.members {
            let ended = timeout(STOP_LIMIT * 2, member.process.wait()).await;
            match ended.map_err(|_| format!("{name} does not end"))?? {
                status if status.success() => {}
                status => return Err(format!("{name} ended with {status}").into()),
            }
        }
        Ok(())
    }

    fn member(&mut self, name: &str) -> Result<&mut Member, Failure> {
        self.members.get_mut(name).ok_or_else(|| format!("there is no child {name}").into())
    }
}

impl<R: DeserializeOwned + Send + 'static> Default for Children<R> {
    fn default() -> Self {
        Self::new()
    }
}

async fn read_reports<R: DeserializeOwned>(name: String, output: ChildStdout, reporters: UnboundedSender<Received<R>>) {
    let mut lines = BufReader::new(output).lines();
    loop {
        let message = match lines.next_line().await {
            Ok(Some(line)) => serde_json::from_str(&line).map(Message::Report).map_err(|_| line),
            Ok(None) | Err(_) => Ok(Message::Ended),
        };
        let is_last = matches!(message, Ok(Message::Ended));
        if reporters.send((name.clone(), message)).is_err() || is_last {
            break;
        }
    }
}

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

/// The part of this process if it is a child, with its orders. `None` if it is not.
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
