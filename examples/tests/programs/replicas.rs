//! The program `replicas`: with the layer nothing is lost. Without it something is, so the check
//! can fail.

use distlock_conformance_mongo::{MongoServer, Topology};

use crate::run::{REPLICAS, Run};

#[test]
fn with_the_layer_no_update_is_lost() {
    let run = Run::of(REPLICAS, &["--seconds", "2"]);
    run.assert_proved(&[]);
    assert_eq!(run.sum("lost updates"), 0, "{}", run.all());
}

#[test]
fn without_the_layer_the_lost_updates_are_counted() {
    let run = Run::of(REPLICAS, &["--seconds", "2", "--no-lock"]);
    run.assert_broken("updates were lost");
    assert!(run.sum("lost updates") > 0, "{}", run.all());
}

/// Two processes over MongoDB, one of which is killed: only its own answers are lost. The test does
/// not check how long the other requests then wait, because the machine may be slow.
#[tokio::test]
async fn with_two_replicas_no_update_is_lost_although_one_is_killed() {
    let server = MongoServer::start(Topology::ReplicaSet).await.expect("a server");
    let uri = server.uri().to_owned();
    let run = tokio::task::spawn_blocking(move || Run::of(REPLICAS, &["--seconds", "8", "--mongodb", &uri])).await;
    let run = run.expect("it does not panic");
    assert_eq!(run.sum("lost updates"), 0, "{}", run.all());
    assert!(run.text.contains("is killed") && !run.text.contains("did not grow"), "{}", run.all());
    run.assert_narrow();
    server.stop().await;
}
