//! Ctrl-C: every program that runs longer than a second prints its summary, stops its children, and
//! leaves nothing behind.

use distlock_conformance_mongo::{MongoServer, Topology};
use distlock_mongo::mongodb::Client;

use crate::run::{
    COMMANDS, HAND_OVER, LEADER, NIGHTLY, PAYMENTS, QUICKSTART, REPLICAS, REPORTING, Run, SAGA, WORKITEMS,
};

/// The databases that programs remove.
const TEMPORARY: [&str; 7] = ["commands", "hand_over", "leader", "payments", "reporting", "saga", "workitems"];

#[test]
fn without_a_server() {
    Run::interrupted(QUICKSTART, &[], "waited").assert_interrupted("locks held, 0 overlaps");
    Run::interrupted(REPLICAS, &[], "1 s ").assert_interrupted("lost updates 0");
    Run::interrupted(NIGHTLY, &[], "night 1").assert_interrupted("made twice  0");
}

#[test]
fn a_shop_that_serves_until_ctrl_c_is_complete() {
    Run::interrupted(REPLICAS, &["--serve"], "1 s ").assert_proved(&["lost updates 0"]);
}

#[test]
fn the_page_stays_until_ctrl_c() {
    let run = Run::interrupted(REPLICAS, &["--seconds", "2", "--stay"], "the page stays until Ctrl-C: http://");
    run.assert_proved(&["lost updates 0"]);
}

#[tokio::test]
async fn on_a_server_of_the_user() {
    let server = MongoServer::start(Topology::ReplicaSet).await.expect("a server");
    let uri = server.uri().to_owned();
    let runs = tokio::task::spawn_blocking(move || {
        let on = ["--mongodb", &uri];
        Run::interrupted(QUICKSTART, &on, "waited").assert_interrupted("locks held, 0 overlaps");
        Run::interrupted(REPLICAS, &on, "1 s ").assert_interrupted("lost updates 0");
        Run::interrupted(REPORTING, &on, "called by").assert_interrupted("overlaps     0");
        // While a request of a replica that was killed is not yet repeated.
        Run::interrupted(PAYMENTS, &on, "is KILLED").assert_interrupted("charged twice   0");
        Run::interrupted(WORKITEMS, &on, "saves").assert_interrupted("lost edits   0");
        // While a child is frozen.
        let lasting = ["--mongodb", &uri, "--lease", "6"];
        Run::interrupted(SAGA, &lasting, "FALLS ASLEEP").assert_interrupted("lost steps   0");
        Run::interrupted(LEADER, &lasting, "FALLS ASLEEP").assert_interrupted("overlaps     0");
        Run::interrupted(COMMANDS, &on, "── release").assert_interrupted("commands for");
        Run::interrupted(HAND_OVER, &on, "holds").assert_interrupted("overlaps     0");
    });
    runs.await.expect("it does not panic");

    let client = Client::with_uri_str(server.uri()).await.expect("a client");
    let databases = client.list_database_names().await.expect("names");
    let left: Vec<_> = TEMPORARY.iter().map(|program| format!("distlock_{program}_")).collect();
    assert!(!databases.iter().any(|name| left.iter().any(|prefix| name.starts_with(prefix))), "{databases:?}");
    client.shutdown().await;
    server.stop().await;
}
