//! A primary that is stopped, and replaced by another member while calls to it are under way (C13).

use std::time::Duration;

use distlock_api::{LockProvider, LockProviderExt};
use distlock_conformance_mongo::{MongoServer, Topology};
use distlock_mongo::MongoProvider;
use distlock_mongo::mongodb::bson::doc;
use distlock_mongo::mongodb::{Client, bson::Document, options::ClientOptions};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::Trials;
use crate::frozen::Frozen;

/// Far longer than an election and the writes after it, which may take 2 s each. Far shorter than
/// the limit of a call, which would otherwise end the calls to the frozen member.
const BOUND: Duration = Duration::from_secs(120);
const LIMIT: Duration = Duration::from_secs(600);

pub(crate) fn add(trials: &mut Trials) {
    let name = "c13_calls_to_a_frozen_primary_end_when_it_has_been_replaced";
    trials.add(name, c13_calls_to_a_frozen_primary_end_when_it_has_been_replaced());
}

async fn c13_calls_to_a_frozen_primary_end_when_it_has_been_replaced() {
    let server = MongoServer::start_local(Topology::ReplicaSet, 3).await.unwrap();
    let mut options = ClientOptions::parse(server.uri()).await.unwrap();
    // Otherwise the driver ends the calls by itself, 20 s after the freeze.
    options.connect_timeout = Some(LIMIT);
    let client = Client::with_options(options).unwrap();
    // No attempt is given up before its lease would have ended.
    let builder = MongoProvider::builder_from_client(&client).database("distlock_test").ttl(LIMIT);
    let locks = builder.request_timeout(LIMIT).connect().await.unwrap();
    let held = locks.acquire("held").ttl(Duration::from_secs(90)).await.unwrap();
    let status: Document = client.database("admin").run_command(doc! { "serverStatus": 1 }).await.unwrap();
    let frozen = Frozen::freeze(status.get_i64("pid").unwrap());
    // More than the client has permits for: these do not go in batches. A batch without an answer
    // is withdrawn after its bound (R24), which would be this limit.
    let mut waiting = JoinSet::new();
    for number in 0..20 {
        let locks = locks.clone();
        waiting.spawn(async move { locks.try_acquire(format!("key-{number}")).await });
    }
    let ended = timeout(BOUND, waiting.join_all()).await.expect("the new primary grants the locks");
    assert!(ended.into_iter().all(|acquired| acquired.unwrap().is_some()));
    assert!(!held.is_lost(), "its renewals are cut off, too, and repeated");
    drop(frozen);
    drop(held);
    locks.close().await.unwrap();
    client.shutdown().await;
    server.stop().await;
}
