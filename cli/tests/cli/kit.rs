//! The parts that all tests share.

use std::path::PathBuf;
use std::process::{Output, Stdio};
use std::time::Duration;

use distlock::mongodb::MongoProvider;
use distlock::mongodb::mongodb::Client;
use distlock::{LockAdmin, LockInfo, LockKey, LockProvider};
use distlock_conformance::process::is_dead;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use tokio::time::{sleep, timeout};

/// Many times the duration of anything here.
pub(crate) const BOUND: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(10);

/// One test: a server, and a database of its own.
#[derive(Clone)]
pub(crate) struct World {
    pub(crate) uri: String,
    pub(crate) database: String,
    pub(crate) client: Client,
    locks: MongoProvider,
}

impl World {
    pub(crate) async fn new(uri: &str) -> Self {
        let client = Client::with_uri_str(uri).await.expect("a client");
        let database = random_name("cli");
        let locks = MongoProvider::builder(client.database(&database)).build().expect("valid options");
        Self { uri: uri.to_owned(), database, client, locks }
    }

    pub(crate) async fn close(self) {
        self.locks.close().await.expect("it closes");
        self.client.database(&self.database).drop().await.expect("it is dropped");
    }

    /// Returns the command with these arguments, on this database.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        self.command_on(&self.uri, arguments)
    }

    pub(crate) fn command_on(&self, uri: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_distlock"));
        command.args(["--database", &self.database]).args(arguments).env("DISTLOCK_MONGODB_URI", uri);
        command.stdin(Stdio::null()).kill_on_drop(true);
        command
    }

    /// Runs it to its end.
    pub(crate) async fn output(&self, arguments: &[&str]) -> Finished {
        finish(self.command(arguments)).await
    }

    /// Starts it, and reads its output line by line.
    pub(crate) fn start(&self, arguments: &[&str]) -> Running {
        Running::start(self.command(arguments))
    }

    pub(crate) fn admin(&self) -> &dyn LockAdmin {
        self.locks.admin().expect("administration")
    }

    pub(crate) async fn inspect(&self, key: &str) -> Option<LockInfo> {
        self.admin().inspect(&LockKey::new(key).expect("a key")).await.expect("an answer")
    }

    /// Waits until as many processes wait for the key.
    pub(crate) async fn until_waiting(&self, key: &str, count: u32) {
        until(async || self.inspect(key).await.and_then(|info| info.waiting) == Some(count)).await;
    }
}

/// A program that has ended.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Finished {
    fn new(output: &Output) -> Self {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Self { code: output.status.code().unwrap_or(-1), out: text(&output.stdout), err: text(&output.stderr) }
    }

    /// Returns the lines, each of which is a JSON object.
    pub(crate) fn objects(&self) -> Vec<Value> {
        let object = |line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{line}: {error}"));
        self.out.lines().map(object).collect()
    }

    /// Asserts the exit code.
    #[track_caller]
    pub(crate) fn expect(self, code: i32) -> Self {
        assert_eq!(self.code, code, "{self:?}");
        self
    }
}

pub(crate) async fn finish(mut command: Command) -> Finished {
    let output = timeout(BOUND, command.output()).await.expect("it ends").expect("it starts");
    Finished::new(&output)
}

/// A program that runs.
pub(crate) struct Running {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Running {
    pub(crate) fn start(mut command: Command) -> Self {
        let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = piped.spawn().expect("it starts");
        let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        Self { child, lines }
    }

    /// Returns the next line of standard output.
    pub(crate) async fn line(&mut self) -> String {
        let line = timeout(BOUND, self.lines.next_line()).await.expect("a line").expect("text");
        match line {
            Some(line) => line,
            None => panic!("it has ended: {:?}", self.end().await),
        }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id().expect("it runs")
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(pid(self.pid()), signal).expect("it runs");
    }

    /// Waits for the end. Standard input is closed before.
    pub(crate) async fn end(&mut self) -> Finished {
        let mut child = std::mem::replace(&mut self.child, placeholder());
        drop(child.stdin.take());
        let ended = timeout(BOUND, async {
            let mut out = String::new();
            while let Some(line) = self.lines.next_line().await.expect("text") {
                out.push_str(&line);
                out.push('\n');
            }
            let output = child.wait_with_output().await.expect("it ends");
            Finished { out, ..Finished::new(&output) }
        });
        ended.await.expect("it ends")
    }
}

/// A process that has the place of one that is waited for.
fn placeholder() -> Child {
    Command::new("true").kill_on_drop(true).spawn().expect("true starts")
}

pub(crate) fn pid(raw: u32) -> Pid {
    Pid::from_raw(i32::try_from(raw).expect("a process id")).expect("a process id")
}

/// Returns a script that ends with 99 if one of these processes is alive, and with 0 otherwise. A
/// zombie is dead.
pub(crate) fn script_if_dead(processes: &[u32]) -> String {
    let alive = "alive() { test -e /proc/$1 && ! grep -q '^State:[[:space:]]*[ZX]' /proc/$1/status; }";
    let checks = processes.iter().map(|process| format!("alive {process} && exit 99; "));
    format!("{alive}; {}exit 0", checks.collect::<String>())
}

/// Waits until a process has ended.
pub(crate) async fn until_dead(pid: u32) {
    until(async || is_dead(pid)).await;
}

/// Waits until a condition holds.
pub(crate) async fn until(condition: impl AsyncFn() -> bool) {
    let holds = async {
        while !condition().await {
            sleep(POLL).await;
        }
    };
    timeout(BOUND, holds).await.expect("the condition comes true");
}

pub(crate) fn random_name(prefix: &str) -> String {
    format!("{prefix}_{:016x}", fastrand::u64(..))
}

/// Returns a path that no other test uses, and where nothing is.
pub(crate) fn fresh_path() -> PathBuf {
    std::env::temp_dir().join(random_name("distlock-cli"))
}

/// A command that says that it runs, with its process id, and ends with its standard input.
pub(crate) const HOLD: [&str; 4] = ["--", "sh", "-c", "echo $$; read line; exit 0"];

/// Starts `run` with a command that holds the locks until standard input ends, and returns the
/// process id of the command.
pub(crate) async fn hold(world: &World, arguments: &[&str]) -> (Running, u32) {
    let arguments: Vec<&str> = ["run"].iter().chain(arguments).chain(&HOLD).copied().collect();
    let mut running = world.start(&arguments);
    let pid = running.line().await.parse().expect("a process id");
    (running, pid)
}
