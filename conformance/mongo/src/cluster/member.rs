//! One member: a `mongod` that can be killed, stopped and started again.

use std::ffi::OsStr;
use std::future::IntoFuture;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use distlock_conformance::{FixtureError, Supervised, process};
use mongodb::Client;
use mongodb::bson::{Document, doc};
use tokio::time::{Instant, sleep, timeout};

use super::place::Place;
use crate::server::mongod::{self, COMMON_ARGUMENTS};
use crate::server::replica_set;

const START_LIMIT: Duration = Duration::from_secs(60);
const ANSWER_LIMIT: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_millis(20);
/// The default would be five percent of the disk.
const OPLOG_MB: &str = "64";
const TRIES: u32 = 5;

/// One member of a cluster. Its server ends and its data is removed when this is dropped, or with
/// this process.
pub(super) struct Member {
    pub(super) number: usize,
    pub(super) place: Place,
    address: SocketAddr,
    server: Supervised,
    client: Client,
}

impl Member {
    pub(super) async fn start(program: &Path, number: usize, place: Place) -> Result<Self, FixtureError> {
        let address = place.address()?;
        let folder = mongod::fresh_dir()?;
        let data = folder.join("db");
        std::fs::create_dir(&data)?;
        let (ip, port) = (address.ip().to_string(), address.port().to_string());
        let mut command = vec![program.as_os_str(), OsStr::new("--dbpath"), data.as_os_str()];
        command.extend(["--replSet", replica_set::NAME, "--nounixsocket", "--oplogSize", OPLOG_MB].map(OsStr::new));
        command.extend(COMMON_ARGUMENTS.iter().map(OsStr::new));
        command.extend(["--bind_ip", &ip, "--port", &port].map(OsStr::new));
        let server = Supervised::new(place.command(), folder, place.disk(), command)?;
        place.connect(server.script().await.ok_or("the script of the member has ended at once")?).await?;
        let client = Client::with_uri_str(replica_set::direct_uri(&address.to_string())).await?;
        let member = Self { number, place, address, server, client };
        member.launch().await?;
        Ok(member)
    }

    /// Starts the server, which must not be running, and waits until it listens.
    pub(super) async fn launch(&self) -> Result<(), FixtureError> {
        for _ in 0..TRIES {
            if self.launch_once().await? {
                return Ok(());
            }
        }
        Err(format!("member {} does not start: {}", self.number, self.server.last_words()).into())
    }

    /// Starts the server once. Returns whether it listens: false if it has ended, as it does when
    /// its port is still in use.
    async fn launch_once(&self) -> Result<bool, FixtureError> {
        let log = self.server.log();
        let seen = std::fs::metadata(&log).map_or(0, |log| log.len());
        self.server.launch().await?;
        let deadline = Instant::now() + START_LIMIT;
        while Instant::now() < deadline {
            // Its own log, not its port: another server may listen there.
            let log = std::fs::read(&log).unwrap_or_default();
            let new = log.get(usize::try_from(seen)?..).unwrap_or_default();
            if new.windows(LISTENS.len()).any(|window| window == LISTENS) {
                return Ok(true);
            }
            if process::is_dead(self.pid()) {
                sleep(POLL * 10).await;
                return Ok(false);
            }
            sleep(POLL).await;
        }
        Err(format!("member {} does not listen after {START_LIMIT:?}", self.number).into())
    }

    /// Returns the address of its server.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns a client of only this member, without a proxy.
    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    pub(super) fn pid(&self) -> u32 {
        self.server.pid()
    }

    /// Returns its disk's folder, as seen from here.
    pub(super) async fn disk(&self) -> Option<PathBuf> {
        self.place.disk()?;
        let script = self.server.script().await?;
        let folder = std::path::absolute(self.server.folder().join("db")).ok()?;
        Some(Path::new(&format!("/proc/{script}/root")).join(folder.strip_prefix("/").ok()?))
    }

    /// Returns its process.
    pub(super) fn server(&self) -> &Supervised {
        &self.server
    }

    /// Runs an administration command on it, with a short limit.
    pub(super) async fn admin(&self, command: Document) -> Result<Document, FixtureError> {
        self.run(command, ANSWER_LIMIT).await
    }

    /// Returns its answer to `hello`.
    pub(super) async fn hello(&self) -> Result<Document, FixtureError> {
        self.run(doc! { "hello": 1 }, Duration::from_secs(1)).await
    }

    async fn run(&self, command: Document, limit: Duration) -> Result<Document, FixtureError> {
        let database = self.client.database("admin");
        let running = timeout(limit, database.run_command(command).into_future()).await;
        Ok(running.map_err(|_| format!("member {} does not answer", self.number))??)
    }

    /// Stops it, and waits until its data is removed.
    pub(super) async fn stop(&self) {
        self.server.stop().await;
    }
}

const LISTENS: &[u8] = b"Waiting for connections";
