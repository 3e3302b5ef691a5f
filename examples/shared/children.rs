//! The supervisor of the examples: child processes, each of them the same program, started once
//! more for a part.
//!
//! A child gets its name and its part, and then orders, on standard input, one line of JSON each.
//! It reports on standard output in the same way. The end of standard input is the order to stop,
//! so a child ends with its parent, however that ends. A child that does not stop by itself is
//! ended.

use std::collections::{BTreeMap, BTreeSet};
use std::future::pending;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::{Instant, timeout};

use crate::child::{CHILD, STOP_LIMIT};
use crate::{Failure, Interrupt};

/// After this long without a report, something hangs.
const SILENCE: Duration = Duration::from_secs(60);

/// Prints events with the time since the start of a run.
#[derive(Clone, Copy, Debug)]
pub struct Clock(Instant);

impl Clock {
    /// Prints an event.
    pub fn say(&self, what: &str) {
        println!("{:8.3} s  {what}", self.0.elapsed().as_secs_f64());
    }
}

/// The processes that this one has started. They are killed when this is dropped.
#[derive(Debug)]
pub struct Children<R> {
    /// When the run began.
    pub clock: Clock,
    program: PathBuf,
    interrupt: Option<Interrupt>,
    members: BTreeMap<String, Member>,
    /// Those whose output has not ended.
    running: BTreeSet<String>,
    /// The child that is frozen, and what it does when it wakes up.
    sleeper: Option<(String, &'static str)>,
    is_stopping: bool,
    reports: UnboundedReceiver<Received<R>>,
    reporters: UnboundedSender<Received<R>>,
}

/// A child's name with its report or a line that is none; `None` at the end of its output.
type Received<R> = (String, Option<Result<R, String>>);

#[derive(Debug)]
struct Member {
    process: Child,
    orders: Option<ChildStdin>,
}

impl<R: DeserializeOwned + Send + 'static> Children<R> {
    /// No children yet. Those to come run this program, and stop at Ctrl-C.
    ///
    /// # Errors
    /// If the program cannot be found.
    pub fn new(interrupt: &Interrupt) -> Result<Self, Failure> {
        Ok(Self { interrupt: Some(interrupt.clone()), ..Self::of(std::env::current_exe()?) })
    }

    /// No children yet. Those to come run another program, as its own children.
    #[must_use]
    pub fn of(program: impl Into<PathBuf>) -> Self {
        let (reporters, reports) = unbounded_channel();
        Self {
            clock: Clock(Instant::now()),
            program: program.into(),
            interrupt: None,
            members: BTreeMap::new(),
            running: BTreeSet::new(),
            sleeper: None,
            is_stopping: false,
            reports,
            reporters,
        }
    }

    /// Starts a child and sends it its part.
    ///
    /// # Errors
    /// If the process cannot be started.
    pub async fn start(&mut self, name: &str, part: &(impl Serialize + Sync)) -> Result<(), Failure> {
        let mut command = Command::new(&self.program);
        command.arg(CHILD).stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        // Ctrl-C reaches the parent alone, which stops its children.
        #[cfg(unix)]
        command.process_group(0);
        let mut process = command.spawn()?;
        let orders = process.stdin.take();
        let output = process.stdout.take().ok_or("the process has no standard output")?;
        tokio::spawn(read_reports(name.to_owned(), output, self.reporters.clone()));
        self.members.insert(name.to_owned(), Member { process, orders });
        self.running.insert(name.to_owned());
        self.send(name, &(name, part)).await
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

    /// Returns the next report of any child, in the order of arrival; `None` when all have ended.
    /// At Ctrl-C it stops all children, and returns what they still report. A sleeper that is the
    /// last child is woken.
    ///
    /// # Errors
    /// If a child prints something else than reports, or no child reports anything for a minute.
    pub async fn next(&mut self) -> Result<Option<(String, R)>, Failure> {
        while !self.running.is_empty() {
            let interrupt = self.interrupt.clone().filter(|_| !self.is_stopping);
            let pressed = async {
                match &interrupt {
                    Some(interrupt) => interrupt.pressed().await,
                    None => pending().await,
                }
            };
            let received = tokio::select! {
                biased;
                () = pressed => {
                    self.begin_stop()?;
                    continue;
                }
                received = timeout(SILENCE, self.reports.recv()) => received,
            };
            let received = received.map_err(|_| "no child process has reported anything for a minute")?;
            match received.ok_or("the reports have ended")? {
                (name, Some(Ok(report))) => return Ok(Some((name, report))),
                (name, Some(Err(line))) => return Err(format!("{name} printed {line:?}, which is no report").into()),
                (name, None) => {
                    self.running.remove(&name);
                    // Without locks, the others may have done all the work before it fell asleep.
                    if self.running.len() == 1 {
                        self.wake().await?;
                    }
                }
            }
        }
        Ok(None)
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

    /// Freezes a child (SIGSTOP), as a hypervisor or the lid of a laptop does, until
    /// [`wake`](Self::wake). `late_act` is what it does then, for the output.
    ///
    /// # Errors
    /// If there is no such child, or no shell.
    pub fn put_to_sleep(&mut self, name: &str, late_act: &'static str) -> Result<(), Failure> {
        self.signal(name, "STOP")?;
        self.sleeper = Some((name.to_owned(), late_act));
        Ok(())
    }

    /// Wakes the sleeper, if there is one, with an order to continue.
    ///
    /// # Errors
    /// If the child has ended.
    pub async fn wake(&mut self) -> Result<(), Failure> {
        let Some((name, late_act)) = self.sleeper.take() else { return Ok(()) };
        self.clock.say(&format!("{name} WAKES UP, and {late_act}"));
        self.send(&name, &()).await?;
        self.signal(&name, "CONT")
    }

    /// Whether a child is frozen.
    #[must_use]
    pub fn has_sleeper(&self) -> bool {
        self.sleeper.is_some()
    }

    /// Has all children stop, and continues the one that is frozen.
    ///
    /// # Errors
    /// If the frozen child cannot be continued.
    pub fn begin_stop(&mut self) -> Result<(), Failure> {
        self.is_stopping = true;
        self.members.values_mut().for_each(|member| drop(member.orders.take()));
        let Some((name, _)) = self.sleeper.take() else { return Ok(()) };
        self.signal(&name, "CONT")
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

    fn signal(&mut self, name: &str, signal: &str) -> Result<(), Failure> {
        let id = self.member(name)?.process.id().ok_or("the child has ended")?;
        let sent = std::process::Command::new("sh").args(["-c", &format!("kill -{signal} {id}")]).status()?;
        sent.success().then_some(()).ok_or_else(|| format!("{name} could not be sent SIG{signal}").into())
    }
}

async fn read_reports<R: DeserializeOwned>(name: String, output: ChildStdout, reporters: UnboundedSender<Received<R>>) {
    let mut lines = BufReader::new(output).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let report = serde_json::from_str(&line).map_err(|_| line);
        if reporters.send((name.clone(), Some(report))).is_err() {
            return;
        }
    }
    // An error means that the parent no longer listens.
    let _ = reporters.send((name, None));
}
