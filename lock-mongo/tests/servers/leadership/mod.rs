//! Leadership beyond what the conformance suite checks on every backend: a store that cannot be
//! reached, and leaders with one token. In memory, and on a real MongoDB.

mod checks;
mod fleet;

use std::future::Future;

use distlock_conformance_mongo::{MongoServer, Topology};
use distlock_memory::MemoryStore;

use crate::{SharedServer, Trials};
use fleet::Fleet;

pub(crate) fn add(trials: &mut Trials) -> SharedServer {
    let server = SharedServer::default();
    add_one(trials, &server, "L5_errors_of_the_store", checks::l5_errors_of_the_store);
    add_one(trials, &server, "L8_observation", checks::l8_observation);
    server
}

/// Adds a check for each backend.
fn add_one<F: Future<Output = ()> + Send + 'static>(
    trials: &mut Trials,
    server: &SharedServer,
    name: &str,
    check: fn(Fleet) -> F,
) {
    let examined = async move |fleet: Fleet| {
        check(fleet.clone()).await;
        fleet.close().await.expect("an answer");
    };
    trials.add(format!("memory_{name}"), async move { examined(Fleet::in_memory(MemoryStore::new())).await });
    let server = server.clone();
    trials.add(format!("mongodb_{name}"), async move {
        let start = async || MongoServer::start(Topology::ReplicaSet).await.expect("a server");
        let uri = server.get_or_init(start).await.uri().to_owned();
        examined(Fleet::on_mongodb(&uri).await).await;
    });
}
