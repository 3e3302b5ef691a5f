//! One member: a `mongod` that can be killed, stopped and started again.

use std::future::IntoFuture;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Mutex;
use std::time::Duration;

use mongodb::Client;
use mongodb::bson::{Document, doc};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout};
use tokio::time::{Instant, sleep, timeout};

use super::place::Place;
use crate::fixture::FixtureError;
use crate::server::{COMMON_ARGUMENTS, local, replica_set};
use crate::signal;

const SCRIPT: &str = include_str!("member.sh");
const START_LIMIT: Duration = Duration::from_secs(60);
const ANSWER_LIMIT: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_millis(20);
/// The default would be five percent of the disk.
const OPLOG_MB: &str = "64";
const TRIES: u32 = 5;

/// One member of a cluster. Its server ends, and its data goes, when this is dropped, and with this process.
pub(crate) struct Member {
    pub(super) number: usize,
    pub(super) place: Place,
    address: SocketAddr,
    folder: PathBuf,
    script: tokio::sync::Mutex<Script>,
    pid: Mutex<u32>,
    client: Client,
}

/// The shell script that starts the server, each time it is told to.
struct Script {
    process: Child,
    orders: Option<ChildStdin>,
    pids: Lines<BufReader<ChildStdout>>,
}

impl Member {
    pub(super) async fn start(program: &Path, number: usize, place: Place) -> Result<Self, FixtureError> {
        let address = place.address()?;
        let folder = local::fresh_dir()?;
        std::fs::create_dir(folder.join("db"))?;
        let mut command = place.command();
        command.args(["sh", "-c", SCRIPT, "member"]).arg(&folder).arg(place.disk().unwrap_or_default());
        command.arg(program).arg("--dbpath").arg(folder.join("db")).args(["--replSet", replica_set::NAME]);
        command.args(["--nounixsocket", "--oplogSize", OPLOG_MB]).args(COMMON_ARGUMENTS);
        command.args(["--bind_ip", &address.ip().to_string(), "--port", &address.port().to_string()]);
        // A group of its own: Ctrl-C reaches the tests alone, and their end stops the server in order.
        command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut process = command.spawn()?;
        let orders = process.stdin.take();
        let pids = BufReader::new(process.stdout.take().expect("piped")).lines();
        place.connect(process.id().ok_or("the member's script has ended at once")?).await?;
        let script = tokio::sync::Mutex::new(Script { process, orders, pids });
        let client = Client::with_uri_str(replica_set::direct_uri(&address.to_string())).await?;
        let member = Self { number, place, address, folder, script, pid: Mutex::default(), client };
        member.launch().await?;
        Ok(member)
    }

    /// Starts the server, which must not run, and waits until it listens.
    pub(super) async fn launch(&self) -> Result<(), FixtureError> {
        for _ in 0..TRIES {
            if self.launch_once().await? {
                return Ok(());
            }
        }
        let log = std::fs::read_to_string(self.log()).unwrap_or_default();
        let last: Vec<&str> = log.lines().rev().take(3).collect();
        Err(format!("member {} does not start: {last:?}", self.number).into())
    }

    /// Whether it listens; false if it has ended, as it does when its port is still taken.
    async fn launch_once(&self) -> Result<bool, FixtureError> {
        let seen = std::fs::metadata(self.log()).map_or(0, |log| log.len());
        let pid = {
            let mut script = self.script.lock().await;
            let orders = script.orders.as_mut().ok_or("the member has been stopped for good")?;
            orders.write_all(b"start\n").await?;
            orders.flush().await?;
            let line =
                timeout(ANSWER_LIMIT, script.pids.next_line()).await.map_err(|_| "the member's script hangs")??;
            line.ok_or("the member's script has ended")?.trim().parse()?
        };
        *self.pid.lock().expect("not poisoned") = pid;
        let deadline = Instant::now() + START_LIMIT;
        while Instant::now() < deadline {
            // Its own log, not its port: another server may listen there.
            let log = std::fs::read(self.log()).unwrap_or_default();
            let new = log.get(usize::try_from(seen)?..).unwrap_or_default();
            if new.windows(LISTENS.len()).any(|window| window == LISTENS) {
                return Ok(true);
            }
            if signal::is_dead(pid) {
                sleep(POLL * 10).await;
                return Ok(false);
            }
            sleep(POLL).await;
        }
        Err(format!("member {} does not listen after {START_LIMIT:?}", self.number).into())
    }

    fn log(&self) -> PathBuf {
        self.folder.join("mongod.log")
    }

    /// Where its server listens.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// A client of this member alone, past every proxy.
    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    pub(super) fn pid(&self) -> u32 {
        *self.pid.lock().expect("not poisoned")
    }

    /// Its disk's folder, as seen from here.
    pub(super) async fn disk(&self) -> Option<PathBuf> {
        self.place.disk()?;
        let script = self.script.lock().await.process.id()?;
        let folder = std::path::absolute(self.folder.join("db")).ok()?;
        Some(Path::new(&format!("/proc/{script}/root")).join(folder.strip_prefix("/").ok()?))
    }

    pub(super) async fn signal(&self, name: &str) -> Result<(), FixtureError> {
        Ok(signal::send(name, self.pid()).await?)
    }

    /// Whether it is in this state by `/proc`, before long.
    pub(super) async fn is_soon(&self, is: impl Fn(u32) -> bool) -> bool {
        let deadline = Instant::now() + ANSWER_LIMIT;
        while !is(self.pid()) {
            if Instant::now() > deadline {
                return false;
            }
            sleep(POLL).await;
        }
        true
    }

    /// Runs a command on it, for a short time.
    pub(super) async fn admin(&self, command: Document) -> Result<Document, FixtureError> {
        self.run(command, ANSWER_LIMIT).await
    }

    /// What it says about itself.
    pub(super) async fn hello(&self) -> Result<Document, FixtureError> {
        self.run(doc! { "hello": 1 }, Duration::from_secs(1)).await
    }

    async fn run(&self, command: Document, limit: Duration) -> Result<Document, FixtureError> {
        let database = self.client.database("admin");
        let running = timeout(limit, database.run_command(command).into_future()).await;
        Ok(running.map_err(|_| format!("member {} does not answer", self.number))??)
    }

    /// Ends it and waits until its data is removed.
    pub(super) async fn stop(&self) {
        let mut script = self.script.lock().await;
        drop(script.orders.take());
        let _ = script.process.wait().await;
    }
}

const LISTENS: &[u8] = b"Waiting for connections";
