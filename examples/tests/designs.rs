//! The programs `reporting`, `workitems` and `saga`, as they are built, on a real replica set:
//! nothing is lost or done twice although processes are killed – and without locks something is,
//! and the programs say so.

use std::process::{Command, Output};

use distlock_conformance_mongo::{MongoServer, Topology};
use distlock_mongo::mongodb::Client;

const REPORTING: &str = env!("CARGO_BIN_EXE_reporting");
const WORKITEMS: &str = env!("CARGO_BIN_EXE_workitems");
const SAGA: &str = env!("CARGO_BIN_EXE_saga");

struct Run {
    output: Output,
    text: String,
}

impl Run {
    fn of(program: &str, arguments: &[&str]) -> Self {
        let output = Command::new(program).args(arguments).output().expect("the program starts");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        Self { output, text }
    }

    /// The number after a word of the summary.
    fn sum(&self, of: &str) -> u64 {
        let line = self.text.lines().find_map(|line| line.strip_prefix("  ")?.strip_prefix(of));
        let number = line.and_then(|rest| rest.split_whitespace().next()?.parse().ok());
        number.unwrap_or_else(|| panic!("no {of:?}: {:?}", self.output))
    }

    fn is_as_promised(&self, told: &[&str]) {
        assert_eq!(self.output.status.code(), Some(0), "{:?}\n{}", self.output, self.text);
        assert!(self.text.ends_with("\nas promised\n"), "{}", self.text);
        for told in told {
            assert!(self.text.contains(told), "{told:?} in {}", self.text);
        }
    }

    fn is_not_as_promised(&self, told: &str) {
        assert_eq!(self.output.status.code(), Some(1), "{:?}\n{}", self.output, self.text);
        let verdict = self.text.lines().last().unwrap_or_default();
        assert!(verdict.starts_with("NOT as promised: ") && verdict.contains(told), "{}", self.text);
    }
}

#[test]
fn reports_are_made_once_although_a_server_is_killed_in_a_call() {
    let run = Run::of(REPORTING, &["--months", "4"]);
    run.is_as_promised(&["is KILLED", "broken off"]);
    assert_eq!((run.sum("API"), run.sum("overlaps"), run.sum("made twice")), (12, 0, 0), "{}", run.text);
    assert_eq!((run.sum("database"), run.sum("missing")), (12, 0), "{}", run.text);
}

#[test]
fn without_the_lock_the_api_notices_calls_that_overlap() {
    let run = Run::of(REPORTING, &["--months", "4", "--no-lock"]);
    run.is_not_as_promised("calls overlapped");
    assert!(run.sum("overlaps") > 0, "{}", run.text);
}

#[test]
fn no_edit_is_lost_although_sessions_end_die_and_wake_up_late() {
    let run = Run::of(WORKITEMS, &[]);
    run.is_as_promised(&["boris logs out", "carla is KILLED", "dmitri FALLS ASLEEP", "late: REFUSED"]);
    assert_eq!((run.sum("lost edits"), run.sum("twice"), run.sum("sessions")), (0, 0, 3), "{}", run.text);
    assert!(run.sum("late saves") > 0, "{}", run.text);
}

#[test]
fn without_locks_lost_edits_are_counted() {
    let run = Run::of(WORKITEMS, &["--no-lock"]);
    run.is_not_as_promised("edits were lost");
    assert!(run.sum("lost edits") > 0, "{}", run.text);
}

#[test]
fn without_a_fence_a_late_save_destroys_anothers_work() {
    let run = Run::of(WORKITEMS, &["--no-fence"]);
    run.is_not_as_promised("edits were lost");
    assert!(run.sum("lost edits") > 0 && run.sum("late saves") == 0, "{}", run.text);
}

#[test]
fn without_locks_steps_are_done_twice() {
    let run = Run::of(SAGA, &["--no-lock"]);
    run.is_not_as_promised("steps were done twice");
    assert!(run.sum("done twice") > 0, "{}", run.text);
}

/// On a server of the user's, which is left as it was.
#[tokio::test]
async fn each_step_is_done_once_and_nothing_is_left_behind() {
    let server = MongoServer::start(Topology::ReplicaSet).await.expect("a server");
    let arguments = ["--mongodb".to_owned(), server.uri().to_owned(), "--orders".to_owned(), "12".to_owned()];
    let run = tokio::task::spawn_blocking(move || Run::of(SAGA, &arguments.each_ref().map(|text| &**text)));
    let run = run.await.expect("it does not panic");
    run.is_as_promised(&["C is KILLED", "D FALLS ASLEEP", "its lock is lost"]);
    assert_eq!((run.sum("done twice"), run.sum("lost steps"), run.sum("late commits")), (0, 0, 1), "{}", run.text);
    assert_eq!(run.sum("steps"), 36, "{}", run.text);

    let client = Client::with_uri_str(server.uri()).await.expect("a client");
    let databases = client.list_database_names().await.expect("names");
    assert!(!databases.iter().any(|name| name.starts_with("distlock_saga")), "{databases:?}");
    client.shutdown().await;
    server.stop().await;
}

#[test]
fn mistakes_on_the_command_line_are_refused() {
    for (program, mistake) in [(REPORTING, ["--months", "1"]), (WORKITEMS, ["--items", "1"]), (SAGA, ["--orders", "x"])]
    {
        let run = Run::of(program, &mistake);
        assert!(!run.output.status.success() && run.text.is_empty(), "{mistake:?}: {:?}", run.output);
    }
}
