//! A server process that can be killed, stopped and started again, and does not outlive its owner.

use std::ffi::OsStr;
use std::fmt;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Mutex;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::{Instant, sleep, timeout};

use crate::failure::FixtureError;
use crate::process;

const SCRIPT: &str = include_str!("supervised.sh");
const ANSWER_LIMIT: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_millis(20);

/// A server process for your own [`Arena`](crate::Arena), which can be killed, stopped and started
/// again. For one server that listens on TCP, [`LocalServer`](crate::LocalServer) is enough.
///
/// [`launch`](Self::launch) starts the process. It ends and its folder is removed when this is
/// dropped, or when this process ends for any reason.
pub struct Supervised {
    folder: PathBuf,
    script: tokio::sync::Mutex<Script>,
    pid: Mutex<u32>,
}

/// The shell script that starts the process, once for each order.
struct Script {
    process: Child,
    orders: Option<ChildStdin>,
    pids: Lines<BufReader<ChildStdout>>,
}

impl Supervised {
    /// Prepares a server by its command line. Its output is appended to a log in `folder`, which
    /// must exist. The folder is **removed at the end** with everything in it.
    ///
    /// `runner` runs the script that starts the server: `env`, or a command that makes a namespace
    /// for it, such as `unshare`. With a `disk`, a size such as `512m`, the subfolder `db` is on a
    /// disk of that size. This needs a mount namespace.
    ///
    /// # Errors
    /// The runner cannot be started.
    ///
    /// # Panics
    /// Never: the script's output is a pipe.
    pub fn new<S: AsRef<OsStr>>(
        mut runner: Command,
        folder: PathBuf,
        disk: Option<&str>,
        server: impl IntoIterator<Item = S>,
    ) -> Result<Self, FixtureError> {
        runner.args(["sh", "-c", SCRIPT, "supervised"]).arg(&folder).arg(disk.unwrap_or_default()).args(server);
        // A separate process group: Ctrl-C reaches only the tests, and their end stops the server
        // in order.
        runner.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut process = runner.spawn()?;
        let orders = process.stdin.take();
        let pids = BufReader::new(process.stdout.take().expect("piped")).lines();
        let script = tokio::sync::Mutex::new(Script { process, orders, pids });
        Ok(Self { folder, script, pid: Mutex::default() })
    }

    /// Starts the process, which must not be running. Returns when the process has an id. The
    /// caller must find out when it accepts requests.
    ///
    /// # Errors
    /// The server was [stopped](Self::stop), or its script has ended or hangs.
    ///
    /// # Panics
    /// Only if another call has panicked.
    pub async fn launch(&self) -> Result<(), FixtureError> {
        let mut script = self.script.lock().await;
        let orders = script.orders.as_mut().ok_or("the server has been stopped for good")?;
        orders.write_all(b"start\n").await?;
        orders.flush().await?;
        let line = timeout(ANSWER_LIMIT, script.pids.next_line()).await.map_err(|_| "the server's script hangs")??;
        *self.pid.lock().expect("not poisoned") = line.ok_or("the server's script has ended")?.trim().parse()?;
        Ok(())
    }

    /// Returns the id of the process that was started last.
    ///
    /// # Panics
    /// Only if another call has panicked.
    #[must_use]
    pub fn pid(&self) -> u32 {
        *self.pid.lock().expect("not poisoned")
    }

    /// Returns the file with its output, including errors.
    #[must_use]
    pub fn log(&self) -> PathBuf {
        self.folder.join("server.log")
    }

    /// Returns the last lines of its log, for error messages.
    #[must_use]
    pub fn last_words(&self) -> String {
        let log = std::fs::read(self.log()).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let last: Vec<&str> = log.lines().rev().take(3).collect();
        format!("{last:?}")
    }

    /// Sends a signal, and waits until `/proc` shows the state.
    async fn bring(&self, name: &str, is: impl Fn(u32) -> bool) -> Result<(), FixtureError> {
        process::send(name, self.pid()).await?;
        if self.is_soon(is).await { Ok(()) } else { Err(format!("SIG{name} had no effect on it").into()) }
    }

    /// Whether `/proc` shows this state soon.
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

    /// Kills the process, and waits until it is dead.
    ///
    /// # Errors
    /// The process continues.
    pub async fn kill(&self) -> Result<(), FixtureError> {
        self.bring("KILL", process::is_dead).await
    }

    /// Stops the process, and waits until it has stopped.
    ///
    /// # Errors
    /// The process continues.
    pub async fn pause(&self) -> Result<(), FixtureError> {
        self.bring("STOP", is_stopped).await
    }

    /// Lets the process continue.
    ///
    /// # Errors
    /// The process is still stopped, or is dead.
    pub async fn resume(&self) -> Result<(), FixtureError> {
        self.bring("CONT", |pid| !process::is_dead(pid) && !is_stopped(pid)).await
    }

    /// Ends the process, and waits until its folder is removed.
    pub async fn stop(&self) {
        let mut script = self.script.lock().await;
        drop(script.orders.take());
        let _ = script.process.wait().await;
    }

    /// Returns the process id of its script, which keeps running while the server is dead. It is
    /// the first process in a namespace that the runner has made. `None` after
    /// [`stop`](Self::stop).
    pub async fn script(&self) -> Option<u32> {
        self.script.lock().await.process.id()
    }

    /// Returns the folder with its log.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }
}

impl fmt::Debug for Supervised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Supervised").field("folder", &self.folder).finish_non_exhaustive()
    }
}

/// Returns a free port of the loopback interface, below those that systems give to clients: with
/// one of these, a connection of another test could take it before the server does.
pub(crate) fn free_port() -> std::io::Result<u16> {
    let is_free = |port: &u16| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok();
    let port = std::iter::repeat_with(|| fastrand::u16(10_000..30_000)).take(100).find(is_free);
    port.ok_or_else(|| std::io::Error::new(std::io::ErrorKind::AddrInUse, "100 ports are in use"))
}

fn is_stopped(pid: u32) -> bool {
    process::state(pid) == Some('T')
}
