//! What locks with a name for reports tell a recorder of metrics, in styles that no wrapper sees.

use distlock_api::{ErrorKind, LockProvider, LockProviderExt};
use distlock_mongo::mongodb::Client;
use distlock_mongo::mongodb::bson::{Document, doc};
use distlock_mongo::{Change, DocumentLocks, MongoOnce};
use distlock_recipes::once::{OnceProvider, OnceProviderExt};
use metrics_util::debugging::{DebugValue, DebuggingRecorder};

use super::Checks;
use super::runtimes::{apart, runtime};
use super::world::{LONG, World, random_name};

pub(super) fn add(checks: &mut Checks<'_>) {
    check!(checks, documents_and_once_are_reported);
}

/// A recorder counts what happens on one thread, so the runtime is one of its own.
async fn documents_and_once_are_reported(world: World) {
    let options = world.options.clone();
    apart(move || {
        let recorder = DebuggingRecorder::new();
        metrics::with_local_recorder(&recorder, || {
            runtime().block_on(async {
                let client = Client::with_options(options).expect("a client");
                documents(&client).await;
                once(&client).await;
                client.shutdown().await;
            });
        });
        let mut seen = Vec::new();
        for (key, _, _, value) in recorder.snapshotter().snapshot().into_vec() {
            let (name, labels) = key.key().clone().into_parts();
            let labels: Vec<_> = labels.iter().map(|label| label.value()).collect();
            let value = match value {
                DebugValue::Counter(count) => count.to_string(),
                DebugValue::Gauge(gauge) => gauge.to_string(),
                DebugValue::Histogram(_) => continue,
            };
            if ["accounts", "jobs"].contains(&labels[0]) {
                seen.push(format!("{} {} = {value}", name.as_str(), labels.join(" ")));
            }
        }
        seen.sort();
        let expected = [
            "distlock_acquisitions_total accounts busy = 1",
            "distlock_acquisitions_total accounts held = 2",
            "distlock_acquisitions_total accounts not_found = 1",
            "distlock_acquisitions_total jobs held = 2",
            "distlock_held accounts = 0",
            "distlock_held jobs = 0",
            "distlock_holds_total accounts released = 2",
            "distlock_holds_total jobs dropped = 1",
            "distlock_holds_total jobs released = 1",
            "distlock_once_total jobs begun = 2",
            "distlock_once_total jobs done = 1",
        ];
        assert_eq!(seen, expected);
    })
    .await;
}

async fn documents(client: &Client) {
    let accounts = client.database("distlock_test").collection::<Document>(&random_name("accounts"));
    accounts.insert_one(doc! { "_id": "a", "balance": 1 }).await.expect("inserted");
    let builder = DocumentLocks::<Document>::builder(&accounts).request_timeout(LONG);
    let locks = builder.instrumented("accounts").build().expect("valid options");
    let account = locks.lock("a").await.expect("locked");
    assert!(locks.try_lock("a").await.expect("an answer").is_none());
    account.commit(Change::new().set("balance", 2)).await.expect("committed");
    let plain = locks.provider().acquire(locks.key("a").expect("a key")).await.expect("locked");
    assert!(plain.release().await.expect("released").is_released());
    assert_eq!(locks.lock("missing").await.expect_err("none").kind(), ErrorKind::NotFound);
    locks.provider().close().await.expect("closed");
}

/// Work that is completed, and work that is interrupted.
async fn once(client: &Client) {
    let builder = MongoOnce::builder(client.database("distlock_test")).collection(random_name("once"));
    let jobs = builder.request_timeout(LONG).instrumented("jobs").build().expect("valid options");
    let mut work = jobs.once("a").await.expect("an answer").begun().expect("new");
    work.complete("done").await.expect("completed");
    assert!(jobs.once("a").await.expect("an answer").done().is_some());
    drop(jobs.once("b").await.expect("an answer").begun().expect("new"));
    jobs.close().await.expect("closed");
}
