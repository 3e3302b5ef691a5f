//! The programs `nightly`, and on a real replica set `payments`, `reporting`, `workitems`, `saga`
//! and `leader`: nothing is lost or done twice although processes are killed. Without their
//! protection something is, and the programs report it.

use distlock_conformance_mongo::{MongoServer, Topology};
use distlock_mongo::mongodb::Client;

use crate::run::{LEADER, NIGHTLY, PAYMENTS, REPORTING, Run, SAGA, WORKITEMS};

/// The seconds of a lease that is renewed in time although the tests keep the machine busy.
const LEASE: &str = "6";

#[test]
fn reports_are_made_once_although_a_server_is_killed_in_a_call() {
    let run = Run::of(REPORTING, &["--months", "4", "--lease", "5"]);
    run.assert_proved(&["is KILLED", "broken off"]);
    assert_eq!((run.sum("API"), run.sum("overlaps"), run.sum("made twice")), (12, 0, 0), "{}", run.text);
    assert_eq!((run.sum("database"), run.sum("missing")), (12, 0), "{}", run.text);
}

#[test]
fn without_the_lock_the_api_notices_calls_that_overlap() {
    let run = Run::of(REPORTING, &["--months", "4", "--no-lock"]);
    run.assert_broken("calls overlapped");
    assert!(run.sum("overlaps") > 0, "{}", run.text);
}

#[test]
fn a_job_is_done_once_per_night_although_a_replica_dies() {
    Run::of(NIGHTLY, &[]).assert_proved(&["anna begins, and DIES", "begins again what anna left"]);
}

#[test]
fn payments_are_charged_once_although_a_replica_is_killed_in_a_charge() {
    let run = Run::of(PAYMENTS, &["--payments", "200"]);
    run.assert_proved(&["is KILLED", "600 answers"]);
    assert_eq!((run.sum("ledger"), run.sum("charged twice")), (200, 0), "{}", run.text);
    assert!(run.sum("looked up") > 0 && run.sum("replayed") >= 400, "{}", run.text);
}

#[test]
fn without_keys_payments_are_charged_too_often() {
    let run = Run::of(PAYMENTS, &["--payments", "50", "--no-keys"]);
    run.assert_broken("charges were made too often");
    assert!(run.sum("charged twice") >= 100, "{}", run.text);
}

#[test]
fn no_edit_is_lost_although_sessions_end_die_and_wake_up_late() {
    let run = Run::of(WORKITEMS, &[]);
    run.assert_proved(&["boris logs out", "carla is KILLED", "dmitri FALLS ASLEEP", "late: REFUSED"]);
    assert_eq!((run.sum("lost edits"), run.sum("twice"), run.sum("sessions")), (0, 0, 3), "{}", run.text);
    assert!(run.sum("late saves") > 0, "{}", run.text);
}

#[test]
fn without_locks_lost_edits_are_counted() {
    let run = Run::of(WORKITEMS, &["--no-lock"]);
    run.assert_broken("edits were lost");
    assert!(run.sum("lost edits") > 0, "{}", run.text);
}

#[test]
fn without_a_fence_a_late_save_destroys_the_work_of_others() {
    let run = Run::of(WORKITEMS, &["--no-fence"]);
    run.assert_broken("edits were lost");
    assert!(run.sum("lost edits") > 0 && run.sum("late saves") == 0, "{}", run.text);
}

#[test]
fn without_locks_steps_are_done_twice() {
    let run = Run::of(SAGA, &["--no-lock"]);
    run.assert_broken("steps were done twice");
    assert!(run.sum("done twice") > 0, "{}", run.text);
}

#[test]
fn one_process_leads_although_leaders_die_fall_asleep_and_resign() {
    let run = Run::of(LEADER, &["--lease", LEASE]);
    run.assert_proved(&["is KILLED", "FALLS ASLEEP", "which is over: REFUSED", "is to RESIGN"]);
    assert_eq!((run.sum("overlaps"), run.sum("late writes")), (0, 1), "{}", run.text);
    assert!(run.sum("leaders") >= 4 && run.sum("observed") >= run.sum("leaders"), "{}", run.text);
    assert!(run.sum("writes") >= 40, "{}", run.text);
}

#[test]
fn without_a_fence_a_leader_of_the_past_writes() {
    let run = Run::of(LEADER, &["--no-fence", "--writes", "3", "--lease", LEASE]);
    run.assert_broken("a late write was accepted");
    assert!(run.sum("overlaps") > 0 && run.sum("late writes") == 0, "{}", run.text);
}

/// On a server of the user, which is left as it was.
#[tokio::test]
async fn each_step_is_done_once_and_nothing_is_left_behind() {
    let server = MongoServer::start(Topology::ReplicaSet).await.expect("a server");
    let uri = server.uri().to_owned();
    let saga = move || Run::of(SAGA, &["--mongodb", &uri, "--orders", "12", "--lease", LEASE]);
    let run = tokio::task::spawn_blocking(saga);
    let run = run.await.expect("it does not panic");
    run.assert_proved(&["C is KILLED", "D FALLS ASLEEP", "its lock is lost"]);
    assert_eq!((run.sum("done twice"), run.sum("lost steps"), run.sum("late commits")), (0, 0, 1), "{}", run.text);
    assert_eq!(run.sum("steps"), 36, "{}", run.text);

    let client = Client::with_uri_str(server.uri()).await.expect("a client");
    let databases = client.list_database_names().await.expect("names");
    assert!(!databases.iter().any(|name| name.starts_with("distlock_saga")), "{databases:?}");
    client.shutdown().await;
    server.stop().await;
}
