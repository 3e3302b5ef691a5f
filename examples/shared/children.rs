//! Processes of an example's own: the same program, started once more for each part that somebody
//! plays.
//!
//! A child hears its part, and then orders, on standard input, a line of JSON each, and reports on
//! standard output in the same way. It dies with its parent, whatever that dies of: the end of
//! standard input is the order to stop, and who does not stop by itself is ended.

use std::collections::BTreeMap;
use std::io::{BufRead, Write};
use std::process::Stdio;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, Command};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::timeout;

use crate::Failure;

/// The one argument of a child.
const CHILD: &str = "--child";
/// What a child may take to stop in order.
const FAREWELL: Duration = Duration::from_secs(10);
/// If nobody reports anything for so long, something hangs.
const SILENCE: Duration = Duration::from_secs(60);
/// How a child ends that has not stopped in order.
const ORPHANED: i32 = 70;

/// The processes that this one has started. They are killed when this is dropped.
#[derive(Debug)]
pub struct Children<R> {
    members: BTreeMap<String, Member>,
    reports: UnboundedReceiver<(String, Result<Said<R>, String>)>,
    reporters: UnboundedSender<(String, Result<Said<R>, String>)>,
}

#[derive(Debug)]
struct Member {
    process: Child,
    orders: Option<ChildStdin>,
}

/// What comes from a child.
#[derive(Debug)]
pub enum Said<R> {
    /// A line of its own.
    Report(R),
    /// Its output has ended, and so has the process.
    Ended,
}

impl<R: DeserializeOwned + Send + 'static> Children<R> {
    /// None so far.
    #[must_use]
    pub fn none() -> Self {
        let (reporters, reports) = unbounded_channel();
        Self { members: BTreeMap::new(), reports, reporters }
    }

    /// Starts one, and hands it its part. Returns the number of the process.
    ///
    /// # Errors
    /// If the process cannot be started.
    pub async fn start(&mut self, name: &str, part: &(impl Serialize + Sync)) -> Result<u32, Failure> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg(CHILD).stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        // Ctrl-C is for the parent, with which they end.
        #[cfg(unix)]
        command.process_group(0);
        let mut process = command.spawn()?;
        let number = process.id().ok_or("it has ended at once")?;
        let orders = process.stdin.take();
        let mut lines = BufReader::new(process.stdout.take().ok_or("no standard output")?).lines();
        let (reporters, who) = (self.reporters.clone(), name.to_owned());
        tokio::spawn(async move {
            loop {
                let said = match lines.next_line().await {
                    Ok(Some(line)) => serde_json::from_str(&line).map(Said::Report).map_err(|_| line),
                    Ok(None) | Err(_) => Ok(Said::Ended),
                };
                let last = matches!(said, Ok(Said::Ended));
                if reporters.send((who.clone(), said)).is_err() || last {
                    break;
                }
            }
        });
        self.members.insert(name.to_owned(), Member { process, orders });
        self.tell(name, part).await?;
        Ok(number)
    }

    /// Gives an order.
    ///
    /// # Errors
    /// If there is no such child any more.
    pub async fn tell(&mut self, name: &str, order: &(impl Serialize + Sync)) -> Result<(), Failure> {
        let orders = self.member(name)?.orders.as_mut().ok_or("it has been told to stop")?;
        let mut line = serde_json::to_string(order)?;
        line.push('\n');
        orders.write_all(line.as_bytes()).await?;
        Ok(())
    }

    /// The next report of any of them, in the order of its coming.
    ///
    /// # Errors
    /// If a child says something else than reports, or none says anything for a minute.
    pub async fn next(&mut self) -> Result<(String, Said<R>), Failure> {
        let next = timeout(SILENCE, self.reports.recv()).await.map_err(|_| "nobody reports anything any more")?;
        let (who, said) = next.ok_or("nobody is there")?;
        match said {
            Ok(said) => Ok((who, said)),
            Err(line) => Err(format!("{who} says {line:?}").into()),
        }
    }

    /// Kills one the hard way (SIGKILL), and waits until it is dead. What it had said before can
    /// still come.
    ///
    /// # Errors
    /// If there is no such child.
    pub async fn kill(&mut self, name: &str) -> Result<(), Failure> {
        let mut member = self.members.remove(name).ok_or("there is no such child")?;
        member.process.kill().await?;
        Ok(())
    }

    /// Freezes one (SIGSTOP), as a hypervisor or the lid of a laptop does, or lets it go on.
    ///
    /// # Errors
    /// If there is no such child, or no shell.
    pub async fn freeze(&mut self, name: &str, frozen: bool) -> Result<(), Failure> {
        let number = self.member(name)?.process.id().ok_or("it has ended")?;
        let signal = if frozen { "-STOP" } else { "-CONT" };
        let script = format!("kill {signal} {number}");
        let sent = Command::new("sh").args(["-c", &script]).status().await?;
        if sent.success() { Ok(()) } else { Err(format!("{name} could not be stopped or continued").into()) }
    }

    /// Tells all of them to stop, and waits until they have ended in order.
    ///
    /// # Errors
    /// If one does not end, or ends with an error. Those that were killed do not count.
    pub async fn stop(mut self) -> Result<(), Failure> {
        for member in self.members.values_mut() {
            drop(member.orders.take());
        }
        for (name, member) in &mut self.members {
            let ended = timeout(FAREWELL * 2, member.process.wait()).await;
            match ended.map_err(|_| format!("{name} does not end"))?? {
                status if status.success() => {}
                status => return Err(format!("{name} ended with {status}").into()),
            }
        }
        Ok(())
    }

    fn member(&mut self, name: &str) -> Result<&mut Member, Failure> {
        self.members.get_mut(name).ok_or_else(|| format!("{name} is not there").into())
    }
}

/// What a child is told.
#[derive(Debug)]
pub struct Orders(UnboundedReceiver<String>);

impl Orders {
    /// The next order; none if the child is to stop.
    ///
    /// # Errors
    /// If it is not an order of this kind.
    pub async fn next<T: DeserializeOwned>(&mut self) -> Result<Option<T>, Failure> {
        Ok(self.0.recv().await.map(|line| serde_json::from_str(&line)).transpose()?)
    }

    /// Waits until the child is to stop, and forgets orders that come before.
    pub async fn end(&mut self) {
        while self.0.recv().await.is_some() {}
    }
}

/// The part of this process, if it is a child; none if it was started by a person.
///
/// # Errors
/// If it has no parent that tells it a part.
pub async fn part<T: DeserializeOwned>() -> Result<Option<(T, Orders)>, Failure> {
    if !std::env::args_os().skip(1).eq([CHILD]) {
        return Ok(None);
    }
    let (said, heard) = unbounded_channel();
    // A thread and no task: a runtime does not end before what it reads has.
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines() {
            let Ok(line) = line else { break };
            if said.send(line).is_err() {
                break;
            }
        }
        drop(said);
        std::thread::sleep(FAREWELL);
        std::process::exit(ORPHANED);
    });
    let mut orders = Orders(heard);
    let part = orders.next().await?.ok_or("nobody tells this process its part")?;
    Ok(Some((part, orders)))
}

/// Reports to the parent. A child whose parent has gone ends here.
///
/// # Panics
/// If this cannot be said in JSON, such as a map whose keys are no text.
pub fn report(what: &impl Serialize) {
    let line = serde_json::to_string(what).expect("plain data");
    if writeln!(std::io::stdout(), "{line}").is_err() {
        std::process::exit(ORPHANED);
    }
}
