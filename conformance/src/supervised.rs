//! A server process that can be killed, stopped and started again, and must not outlive its owner.

use std::ffi::OsStr;
use std::net::{Ipv4Addr, TcpListener};
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Mutex;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::{Instant, sleep, timeout};

use crate::fixture::FixtureError;
use crate::signal;

const SCRIPT: &str = include_str!("supervised.sh");
const ANSWER_LIMIT: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_millis(20);

/// The process, which [`launch`](Self::launch) starts. It ends, and its folder goes, when this is
/// dropped, and with this process, however that ends.
pub(crate) struct Supervised {
    folder: PathBuf,
    script: tokio::sync::Mutex<Script>,
    pid: Mutex<u32>,
}

/// The shell script that starts the process, each time it is told to.
struct Script {
    process: Child,
    orders: Option<ChildStdin>,
    pids: Lines<BufReader<ChildStdout>>,
}

impl Supervised {
    /// `runner` runs the script: `env`, or what makes a namespace for it. With a `disk`, a size such
    /// as `512m`, what is in the folder `db` is on a disk of that size.
    pub(crate) fn new<S: AsRef<OsStr>>(
        mut runner: Command,
        folder: PathBuf,
        disk: Option<&str>,
        server: impl IntoIterator<Item = S>,
    ) -> Result<Self, FixtureError> {
        runner.args(["sh", "-c", SCRIPT, "supervised"]).arg(&folder).arg(disk.unwrap_or_default()).args(server);
        // A group of its own: Ctrl-C reaches the tests alone, and their end stops the server in order.
        runner.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut process = runner.spawn()?;
        let orders = process.stdin.take();
        let pids = BufReader::new(process.stdout.take().expect("piped")).lines();
        let script = tokio::sync::Mutex::new(Script { process, orders, pids });
        Ok(Self { folder, script, pid: Mutex::default() })
    }

    /// Starts the process, which must not run.
    pub(crate) async fn launch(&self) -> Result<(), FixtureError> {
        let mut script = self.script.lock().await;
        let orders = script.orders.as_mut().ok_or("the server has been stopped for good")?;
        orders.write_all(b"start\n").await?;
        orders.flush().await?;
        let line = timeout(ANSWER_LIMIT, script.pids.next_line()).await.map_err(|_| "the server's script hangs")??;
        *self.pid.lock().expect("not poisoned") = line.ok_or("the server's script has ended")?.trim().parse()?;
        Ok(())
    }

    /// The process that was started last.
    pub(crate) fn pid(&self) -> u32 {
        *self.pid.lock().expect("not poisoned")
    }

    /// What it has written, errors too.
    pub(crate) fn log(&self) -> PathBuf {
        self.folder.join("server.log")
    }

    /// Its last lines, for errors.
    pub(crate) fn last_words(&self) -> String {
        let log = std::fs::read(self.log()).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let last: Vec<&str> = log.lines().rev().take(3).collect();
        format!("{last:?}")
    }

    /// Sends a signal, and waits until it is in a state by `/proc`.
    async fn bring(&self, name: &str, is: impl Fn(u32) -> bool) -> Result<(), FixtureError> {
        signal::send(name, self.pid()).await?;
        if self.is_soon(is).await { Ok(()) } else { Err(format!("it got SIG{name}, and nothing changed").into()) }
    }

    /// Whether it is in this state by `/proc`, before long.
    async fn is_soon(&self, is: impl Fn(u32) -> bool) -> bool {
        let deadline = Instant::now() + ANSWER_LIMIT;
        while !is(self.pid()) {
            if Instant::now() > deadline {
                return false;
            }
            sleep(POLL).await;
        }
        true
    }

    /// Kills it, and waits until it is dead.
    ///
    /// # Errors
    /// When it goes on.
    pub(crate) async fn kill(&self) -> Result<(), FixtureError> {
        self.bring("KILL", signal::is_dead).await
    }

    /// Stops it, and waits until it stands.
    ///
    /// # Errors
    /// When it goes on.
    pub(crate) async fn pause(&self) -> Result<(), FixtureError> {
        self.bring("STOP", is_stopped).await
    }

    /// Lets it go on.
    ///
    /// # Errors
    /// When it stands, or is dead.
    pub(crate) async fn resume(&self) -> Result<(), FixtureError> {
        self.bring("CONT", |pid| !signal::is_dead(pid) && !is_stopped(pid)).await
    }

    /// Ends it and waits until its folder is removed.
    pub(crate) async fn stop(&self) {
        let mut script = self.script.lock().await;
        drop(script.orders.take());
        let _ = script.process.wait().await;
    }
}

#[cfg(feature = "mongodb")]
impl Supervised {
    /// The script, which lives on while the process is dead.
    pub(crate) async fn script(&self) -> Option<u32> {
        self.script.lock().await.process.id()
    }

    pub(crate) fn folder(&self) -> &std::path::Path {
        &self.folder
    }
}

/// A port of loopback on which no one listens yet.
pub(crate) fn free_port() -> std::io::Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}

fn is_stopped(pid: u32) -> bool {
    signal::state(pid) == Some('T')
}
