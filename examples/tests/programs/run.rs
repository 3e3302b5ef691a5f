//! Runs of the programs.

use std::io::{BufRead, BufReader, Read};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{Command, Output, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;

use distlock_conformance_mongo::{MongoServer, Topology};
use distlock_mongo::mongodb::Client;
use tokio::runtime::Runtime;

pub(crate) const HAND_OVER: &str = env!("CARGO_BIN_EXE_hand-over");
pub(crate) const LEADER: &str = env!("CARGO_BIN_EXE_leader");
pub(crate) const NIGHTLY: &str = env!("CARGO_BIN_EXE_nightly");
pub(crate) const PAYMENTS: &str = env!("CARGO_BIN_EXE_payments");
pub(crate) const QUICKSTART: &str = env!("CARGO_BIN_EXE_quickstart");
pub(crate) const REPLICAS: &str = env!("CARGO_BIN_EXE_replicas");
pub(crate) const REPORTING: &str = env!("CARGO_BIN_EXE_reporting");
pub(crate) const SAGA: &str = env!("CARGO_BIN_EXE_saga");
pub(crate) const TRACES: &str = env!("CARGO_BIN_EXE_traces");
pub(crate) const WORKITEMS: &str = env!("CARGO_BIN_EXE_workitems");
pub(crate) const ALL: [&str; 10] =
    [HAND_OVER, LEADER, NIGHTLY, PAYMENTS, QUICKSTART, REPLICAS, REPORTING, SAGA, TRACES, WORKITEMS];

/// The seconds of a lease that is renewed in time although the tests keep the machine busy.
pub(crate) const LEASE: &str = "4";

/// How many programs run at the same time, whatever the number of processors: they mostly wait.
const AT_ONCE: usize = 8;

/// A run with its checks, and its name.
pub(crate) type Case<'a> = (&'a str, &'a (dyn Fn(&str) + Sync));

/// Runs some of them at the same time, on one server, whose address they get. Checks that they
/// leave nothing behind.
pub(crate) fn together(cases: &[Case<'_>]) {
    let runtime = Runtime::new().expect("a runtime");
    let server = runtime.block_on(MongoServer::start(Topology::ReplicaSet)).expect("a server");
    let (uri, next, failed) = (server.uri(), AtomicUsize::new(0), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                while let Some((name, case)) = cases.get(next.fetch_add(1, Relaxed)) {
                    if catch_unwind(AssertUnwindSafe(|| case(uri))).is_err() {
                        failed.lock().expect("not poisoned").push(*name);
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().expect("not poisoned");
    assert!(failed.is_empty(), "failed: {}", failed.join(", "));
    let left = runtime.block_on(async {
        let client = Client::with_uri_str(uri).await.expect("a client");
        let databases = client.list_database_names().await.expect("names");
        client.shutdown().await;
        databases
    });
    assert!(!left.iter().any(|name| name.starts_with("distlock_")), "{left:?}");
    runtime.block_on(server.stop());
}

pub(crate) struct Run {
    pub(crate) code: Option<i32>,
    pub(crate) text: String,
    pub(crate) errors: String,
}

impl Run {
    pub(crate) fn of(program: &str, arguments: &[&str]) -> Self {
        Self::new(Command::new(program).args(arguments).output().expect("the program starts"))
    }

    /// Runs a program, and sends it SIGINT after its output contains `sign`.
    pub(crate) fn interrupted(program: &str, arguments: &[&str], sign: &str) -> Self {
        let mut command = Command::new(program);
        command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the program starts");
        let mut output = BufReader::new(child.stdout.take().expect("it is piped"));
        let mut before = String::new();
        while !before.contains(sign) {
            let length = output.read_line(&mut before).expect("text");
            assert!(length > 0, "{program} has ended without {sign:?}:\n{before}");
        }
        let kill = format!("kill -INT {}", child.id());
        assert!(Command::new("sh").args(["-c", &kill]).status().expect("a shell").success());
        // Read here, so that a full pipe does not block the program.
        let mut after = String::new();
        output.read_to_string(&mut after).expect("text");
        let mut run = Self::new(child.wait_with_output().expect("it can be waited for"));
        run.text = before + &after;
        run
    }

    fn new(output: Output) -> Self {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Self { code: output.status.code(), text: text(&output.stdout), errors: text(&output.stderr) }
    }

    /// All that is known, for the message of a failing test.
    pub(crate) fn all(&self) -> String {
        format!("exit code {:?}\n{}\n{}", self.code, self.text, self.errors)
    }

    /// The number after a word of the summary.
    pub(crate) fn sum(&self, of: &str) -> u64 {
        let line = self.text.lines().find_map(|line| line.strip_prefix("  ")?.strip_prefix(of));
        let number = line.and_then(|rest| rest.split_whitespace().next()?.parse().ok());
        number.unwrap_or_else(|| panic!("no {of:?}: {}", self.all()))
    }

    /// The verdict, on one line.
    fn verdict(&self) -> String {
        let sentences = ["as promised: ", "NOT as promised: ", "interrupted before the end: "];
        let begin = sentences.iter().find_map(|sentence| self.text.rfind(&format!("\n{sentence}")));
        let verdict = &self.text[begin.unwrap_or_else(|| panic!("no verdict: {}", self.all()))..];
        verdict.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    /// Checks that the program has proved something and that its output contains `texts`.
    pub(crate) fn assert_proved(&self, texts: &[&str]) {
        assert!(self.code == Some(0) && self.verdict().starts_with("as promised: "), "{}", self.all());
        for text in texts {
            assert!(self.text.contains(text), "no {text:?}: {}", self.all());
        }
        self.assert_narrow();
    }

    /// Checks that the program reports a broken promise, and exits with an error.
    pub(crate) fn assert_broken(&self, complaint: &str) {
        let verdict = self.verdict();
        let is_reported = verdict.starts_with("NOT as promised: ") && verdict.contains(complaint);
        assert!(self.code == Some(1) && is_reported, "no {complaint:?}: {}", self.all());
        self.assert_narrow();
    }

    /// Checks that the program printed its summary after Ctrl-C, in which this sum is 0, and that
    /// nothing went wrong.
    pub(crate) fn assert_interrupted(&self, none: &str) {
        assert!(self.code == Some(130) && self.verdict().starts_with("interrupted"), "{}", self.all());
        assert_eq!(self.sum(none), 0, "{}", self.all());
        assert!(!self.errors.contains("ended with"), "a child did not stop: {}", self.all());
        self.assert_narrow();
    }

    pub(crate) fn assert_narrow(&self) {
        for line in self.text.lines().chain(self.errors.lines()) {
            // Paths and the like cannot be wrapped.
            let is_wide = line.chars().count() > 100 && line.split_whitespace().count() > 2;
            assert!(!is_wide || line.starts_with("distlock: "), "wider than 100 columns: {line}");
        }
    }
}
