//! A client whose runtime ends before it, as in tests that share a provider: each `#[tokio::test]`
//! has a runtime of its own.

use std::future::Future;
use std::time::Duration;

use distlock_api::{Disposition, ErrorKind, FencingToken, LockError, LockProvider, LockProviderExt};
use distlock_conformance_mongo::Topology;
use distlock_mongo::mongodb::Client;
use distlock_mongo::mongodb::bson::Document;
use distlock_mongo::mongodb::options::ClientOptions;
use distlock_mongo::{DocumentLocks, Fence, MongoOnce, MongoProvider, TransactionError};
use distlock_recipes::once::OnceProviderExt;
use tokio::runtime::{Builder, Runtime};
use tokio::time::{Instant, timeout};

use super::Checks;
use super::guide;
use super::world::{World, key, random_name};

pub(super) fn add(checks: &mut Checks<'_>) {
    check!(checks, C18 the_end_of_the_clients_runtime_is_named);
    check!(checks, C16 a_client_on_a_lasting_runtime_serves_one_runtime_after_another);
}

/// Far below the limit of a call that waits for a server.
const AT_ONCE: Duration = Duration::from_secs(3);
/// How long a call may take that could hang.
const BOUND: Duration = Duration::from_secs(60);

/// Blocks a thread that belongs to no runtime.
pub(super) async fn apart(work: impl FnOnce() + Send + 'static) {
    let thread = std::thread::spawn(work);
    tokio::task::spawn_blocking(|| thread.join()).await.unwrap().expect("no panic");
}

/// The runtime of one test.
pub(super) fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().expect("a runtime")
}

fn client(options: &ClientOptions) -> Client {
    Client::with_options(options.clone()).expect("a client")
}

#[track_caller]
fn names_the_runtime(what: &str, start: Instant, error: &LockError) {
    assert!(
        error.to_string().contains("the runtime on which the MongoDB client was made has ended"),
        "{what}: {error}"
    );
    assert_eq!(
        (error.kind(), error.disposition()),
        (ErrorKind::Unavailable, Disposition::Permanent),
        "{what}: {error}"
    );
    assert!(start.elapsed() < AT_ONCE, "{what}: after {:?}", start.elapsed());
    guide::lists(error);
}

async fn the_end_of_the_clients_runtime_is_named(world: World) {
    apart(move || {
        let first = runtime();
        let (client, locks) = first.block_on(async {
            let client = client(&world.options);
            let builder = MongoProvider::builder(client.database("distlock_test")).collection(random_name("locks"));
            let locks = builder.connect().await.unwrap();
            assert!(locks.acquire(key()).await.unwrap().release().await.unwrap().is_released());
            (client, locks)
        });
        drop(first);
        runtime().block_on(async {
            // Those that did not know the client before.
            let database = client.database("distlock_test");
            let orders = database.collection::<Document>(&random_name("orders"));
            let fresh = MongoProvider::builder(database.clone()).collection(random_name("locks")).build().unwrap();
            let documents = DocumentLocks::builder(&orders).build().unwrap();
            let once = MongoOnce::builder(database.clone()).collection(random_name("once")).build().unwrap();
            let fence = Fence::new(FencingToken::new(7)).unwrap();
            let changed = fence.claim(&orders, Document::new());
            let transaction = fence.transaction(&orders, "the lock");

            fails("acquire", async { locks.acquire(key()).await.map(drop) }).await;
            fails("a try", async { locks.try_acquire(key()).await.map(drop) }).await;
            fails("a bounded wait", async { locks.acquire(key()).timeout(BOUND).await.map(drop) }).await;
            fails("several", async { locks.acquire_all([key(), key()]).await.map(drop) }).await;
            fails("inspect", async { locks.admin().unwrap().inspect(&key()).await.map(drop) }).await;
            fails("prepare", locks.prepare()).await;
            fails("a new provider", async { fresh.acquire(key()).await.map(drop) }).await;
            fails("prepare of a new one", fresh.prepare()).await;
            fails("a document", async { documents.lock(key().as_str()).await.map(drop) }).await;
            fails("once", async { once.once(key()).await.map(drop) }).await;
            fails("a fenced write", async { changed.await.map(drop) }).await;
            if world.topology == Topology::ReplicaSet {
                fails("a fenced transaction", async {
                    match transaction.run(|_| Box::pin(async { Ok(()) })).await {
                        Err(TransactionError::Failed(error)) => Err(error),
                        other => panic!("{other:?}"),
                    }
                })
                .await;
            }
            for provider in [&locks, &fresh] {
                timeout(BOUND, provider.close()).await.expect("it ends").unwrap();
            }
        });
    })
    .await;
}

async fn fails(what: &str, call: impl Future<Output = Result<(), LockError>>) {
    let start = Instant::now();
    let error = timeout(BOUND, call).await.unwrap_or_else(|_| panic!("{what} has no end")).expect_err(what);
    names_the_runtime(what, start, &error);
}

/// As the guide to testing advises.
async fn a_client_on_a_lasting_runtime_serves_one_runtime_after_another(world: World) {
    let options = world.options.clone();
    apart(move || {
        let lasting = Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
        let name = random_name("locks");
        let provider = || {
            lasting.block_on(async {
                let builder = MongoProvider::builder(client(&options).database("distlock_test")).collection(&name);
                builder.ttl(Duration::from_secs(6)).connect().await.unwrap()
            })
        };
        let (one, other) = (provider(), provider());
        for _ in 0..3 {
            runtime().block_on(async {
                let key = key();
                let start = Instant::now();
                let first = one.acquire(&key).await.unwrap();
                let waits = tokio::spawn({
                    let (other, key) = (other.clone(), key.clone());
                    async move { other.acquire(&key).timeout(BOUND).await.unwrap().release().await.unwrap() }
                });
                let admin = one.admin().unwrap();
                while admin.inspect(&key).await.unwrap().unwrap().waiting != Some(1) {
                    assert!(start.elapsed() < BOUND, "nobody waits");
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                assert!(first.release().await.unwrap().is_released());
                assert!(timeout(BOUND, waits).await.expect("it ends").unwrap().is_released());
                // Until it has been renewed.
                let kept = one.acquire(&key).await.unwrap();
                let until = kept.valid_until();
                while kept.valid_until() == until {
                    assert!(!kept.is_lost() && start.elapsed() < BOUND, "{:?}", kept.loss());
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                // It is released in the background of a runtime that ends.
                drop(kept);
            });
        }
        runtime().block_on(async {
            for provider in [&one, &other] {
                timeout(BOUND, provider.close()).await.expect("it ends").unwrap();
                assert!(provider.accounting().balances(), "{:?}", provider.accounting());
            }
        });
    })
    .await;
}
