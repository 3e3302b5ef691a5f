//! The server of tests is real, has the requested topology, and is removed afterwards.

use std::time::Duration;

use distlock_conformance_mongo::{MongoServer, Topology};
use mongodb::bson::{Document, doc};
use mongodb::options::{ClientOptions, WriteConcern};
use mongodb::{Client, Collection};

async fn client(server: &MongoServer) -> Client {
    Client::with_uri_str(server.uri()).await.unwrap()
}

/// The user's own server is not removed.
fn started_here(server: &MongoServer) -> bool {
    !server.source().starts_with("the server that")
}

/// After a drop, local processes are ordered to end without a wait, so poll.
async fn assert_gone(uri: &str) {
    let mut options = ClientOptions::parse(uri).await.unwrap();
    options.server_selection_timeout = Some(Duration::from_millis(500));
    let client = Client::with_options(options).unwrap();
    let admin = client.database("admin");
    let refused = async { while admin.run_command(doc! { "ping": 1 }).await.is_ok() {} };
    tokio::time::timeout(Duration::from_secs(20), refused).await.unwrap();
}

async fn starts_serves_and_stops(topology: Topology) {
    let server = MongoServer::start(topology).await.unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(server.topology(), topology);
    assert!(!format!("{server:?}").contains("mongodb://"));

    let client = client(&server).await;
    let hello = client.database("admin").run_command(doc! { "hello": 1 }).await.unwrap();
    assert_eq!(hello.contains_key("setName"), topology == Topology::ReplicaSet, "{hello}");

    let name = format!("distlock_server_{:016x}", fastrand::u64(..));
    let database = client.database(&name);
    let written: Collection<Document> = database.collection("written");
    let majority = WriteConcern::majority();
    written.insert_one(doc! { "_id": 1 }).write_concern(majority).await.unwrap();
    assert_eq!(written.count_documents(doc! {}).await.unwrap(), 1);
    database.drop().await.unwrap();
    client.shutdown().await;

    let uri = server.uri().to_owned();
    let started = started_here(&server);
    server.stop().await;
    if started {
        assert_gone(&uri).await;
    }
}

#[tokio::test]
async fn replica_set_starts_serves_and_stops() {
    starts_serves_and_stops(Topology::ReplicaSet).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn standalone_starts_serves_and_stops() {
    starts_serves_and_stops(Topology::Standalone).await;
}

async fn a_drop_ends_the_server() {
    let server = MongoServer::start(Topology::Standalone).await.unwrap_or_else(|error| panic!("{error}"));
    let uri = server.uri().to_owned();
    let started = started_here(&server);
    drop(server);
    if started {
        assert_gone(&uri).await;
    }
}

#[tokio::test]
async fn a_drop_inside_a_current_thread_runtime_ends_the_server() {
    a_drop_ends_the_server().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drop_inside_a_multi_thread_runtime_ends_the_server() {
    a_drop_ends_the_server().await;
}

/// A fixture in a plain `main` may be dropped after its runtime.
#[test]
fn a_drop_outside_a_runtime_ends_the_server() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let server = runtime().block_on(MongoServer::start(Topology::Standalone));
    let server = server.unwrap_or_else(|error| panic!("{error}"));
    let uri = server.uri().to_owned();
    let started = started_here(&server);
    drop(server);
    if started {
        runtime().block_on(assert_gone(&uri));
    }
}
