//! The program `replicas`, as it is built: with the layer nothing is lost, without it something is
//! – so the check can fail.

use std::process::{Command, Output};

use distlock_conformance_mongo::{MongoServer, Topology};

/// Runs it for so many seconds; what it said of lost updates, too.
fn replicas(seconds: &str, arguments: &[&str]) -> (Output, String, u64) {
    let output = Command::new(env!("CARGO_BIN_EXE_replicas"))
        .args(["--seconds", seconds])
        .args(arguments)
        .output()
        .expect("the program starts");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let lost = text.lines().find_map(|line| line.trim().strip_prefix("lost updates "));
    let lost = lost.and_then(|lost| lost.trim().parse().ok()).unwrap_or_else(|| panic!("no summary: {output:?}"));
    (output, text, lost)
}

#[test]
fn with_the_layer_no_update_is_lost() {
    let (output, text, lost) = replicas("2", &[]);
    assert_eq!((output.status.code(), lost), (Some(0), 0), "{text}");
    assert!(text.ends_with("\nas promised\n"), "{text}");
}

#[test]
fn help_lists_the_options() {
    let output = Command::new(env!("CARGO_BIN_EXE_replicas")).arg("--help").output().expect("the program starts");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.starts_with("usage: replicas"), "{output:?}");
    let output = Command::new(env!("CARGO_BIN_EXE_replicas")).arg("--no-such").output().expect("the program starts");
    assert!(!output.status.success() && String::from_utf8_lossy(&output.stderr).contains("usage: replicas"));
}

#[test]
fn without_the_layer_the_lost_updates_are_counted() {
    let (output, text, lost) = replicas("2", &["--no-lock"]);
    assert!(lost > 0 && output.status.code() == Some(1), "{text}");
    assert!(text.contains("NOT as promised: "), "{text}");
}

/// Two processes over MongoDB, one of which is killed: what is lost are its own answers. How long
/// the others then wait is not asked here, on a machine that may be slow.
#[tokio::test]
async fn with_two_replicas_no_update_is_lost_although_one_is_killed() {
    let server = MongoServer::start(Topology::ReplicaSet).await.expect("a server");
    let uri = server.uri().to_owned();
    let run = tokio::task::spawn_blocking(move || replicas("8", &["--mongodb", &uri])).await;
    let (output, text, lost) = run.expect("it does not panic");
    assert_eq!(lost, 0, "{output:?}\n{text}");
    assert!(text.contains("is killed") && !text.contains("did not grow"), "{output:?}\n{text}");
    server.stop().await;
}

#[test]
fn mistakes_on_the_command_line_are_refused() {
    for mistake in [["--seconds", "0"], ["--rate", "1"], ["--colour", "red"]] {
        let output = Command::new(env!("CARGO_BIN_EXE_replicas")).args(mistake).output().expect("the program starts");
        assert!(!output.status.success() && output.stdout.is_empty(), "{mistake:?}: {output:?}");
    }
}
