//! The parts that all tests share.

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::path::PathBuf;
use std::process::{Output, Stdio};
use std::time::Duration;

use distlock::mongodb::MongoProvider;
use distlock::mongodb::mongodb::Client;
use distlock::{LockAdmin, LockInfo, LockKey, LockProvider};
use distlock_conformance::process::is_dead;
use rustix::io::ioctl_fionbio;
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::tcgetpgrp;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use tokio::time::{Instant, sleep, timeout};

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

/// A terminal with a shell that has job control, as a user has it.
pub(crate) struct Terminal {
    screen: File,
    shell: Child,
    unread: String,
}

impl Terminal {
    /// Starts the shell. In it, `$D` is the command on this database.
    pub(crate) async fn start(world: &World) -> Self {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let screen = openpt(flags).expect("a pseudo-terminal");
        grantpt(&screen).and_then(|()| unlockpt(&screen)).expect("a pseudo-terminal");
        let inner = ioctl_tiocgptpeer(&screen, flags).expect("its other side");
        let stdio = || Stdio::from(inner.try_clone().expect("a descriptor"));
        ioctl_fionbio(&screen, true).expect("a descriptor");
        let mut shell = Command::new("setsid");
        shell.args(["--ctty", "bash", "--norc", "--noprofile", "--noediting", "-i"]);
        shell.env("D", format!("{} --database {}", env!("CARGO_BIN_EXE_distlock"), world.database));
        shell.env("DISTLOCK_MONGODB_URI", &world.uri).env("PS1", "").env("LC_ALL", "C");
        let shell = shell.stdin(stdio()).stdout(stdio()).stderr(stdio()).spawn().expect("it starts");
        let mut terminal = Self { screen: File::from(screen), shell, unread: String::new() };
        // What is typed is not shown from then on.
        terminal.enter("stty -echo; PS1=; echo rea''dy");
        terminal.until("ready").await;
        terminal
    }

    /// Types a line.
    pub(crate) fn enter(&self, line: &str) {
        self.press(&format!("{line}\n"));
    }

    /// Presses keys, such as `\x03` and `\x1a`: Ctrl-C and Ctrl-Z.
    pub(crate) fn press(&self, keys: &str) {
        (&self.screen).write_all(keys.as_bytes()).expect("it is open");
    }

    /// Waits for a text on the screen, and returns what was before it.
    pub(crate) async fn until(&mut self, text: &str) -> String {
        let begun = Instant::now();
        while !self.unread.contains(text) {
            let mut bytes = [0; 4096];
            match self.screen.read(&mut bytes) {
                Ok(read) => self.unread.push_str(&String::from_utf8_lossy(&bytes[..read])),
                Err(error) if error.kind() == ErrorKind::WouldBlock && begun.elapsed() < BOUND => sleep(POLL).await,
                Err(error) => panic!("{error}: no {text:?} in {:?}", self.unread),
            }
        }
        let (before, after) = self.unread.split_once(text).expect("it contains the text");
        let (before, after) = (before.to_owned(), after.to_owned());
        self.unread = after;
        before
    }

    /// Waits for `NAME=NUMBER,` on the screen.
    pub(crate) async fn number(&mut self, name: &str) -> u32 {
        self.until(&format!("{name}=")).await;
        self.until(",").await.parse().expect("a number")
    }

    /// Returns whether a process is in the foreground.
    pub(crate) fn shows(&self, process: u32) -> bool {
        let foreground = tcgetpgrp(&self.screen).ok().map(|group| group.to_string());
        foreground.is_some_and(|foreground| field(process, 5) == Some(foreground))
    }

    /// Closes the terminal, and waits for the end of the shell.
    pub(crate) async fn close(mut self) {
        drop(self.screen);
        timeout(BOUND, self.shell.wait()).await.expect("it ends").expect("it ends");
    }
}

/// Returns a command that runs another one: the words of that one follow those of `by`.
pub(crate) fn wrapped(by: &[&str], command: &Command) -> Command {
    let (inner, mut outer) = (command.as_std(), Command::new(by[0]));
    outer.args(&by[1..]).arg(inner.get_program()).args(inner.get_args()).kill_on_drop(true);
    outer.envs(inner.get_envs().filter_map(|(name, value)| Some((name, value?))));
    outer
}

/// Returns a field of the status of a process, by its number: 3 is its state, 4 its parent, and 5
/// its process group. `None` if there is no such process.
fn field(process: u32, number: usize) -> Option<String> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.split(' ').nth(number - 3).map(str::to_owned)
}

pub(crate) fn is_stopped(process: u32) -> bool {
    field(process, 3).as_deref() == Some("T")
}

pub(crate) fn parent_of(process: u32) -> Option<u32> {
    field(process, 4)?.parse().ok()
}

pub(crate) fn group_of(process: u32) -> Option<u32> {
    field(process, 5)?.parse().ok()
}

/// Waits until a process is stopped.
pub(crate) async fn until_stopped(process: u32) {
    until(async || is_stopped(process)).await;
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
