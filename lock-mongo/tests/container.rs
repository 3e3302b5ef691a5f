//! Locks in a MongoDB whose container is paused, killed and started again, or cut off from its
//! network.
//!
//! It needs a Docker engine with the image that `DISTLOCK_MONGODB_IMAGE` names, or `mongo:7.0`.
//! Without one it reports that and examines nothing, unless `DISTLOCK_REQUIRE_CONTAINERS` is set:
//! then it fails.

use std::net::TcpListener;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use distlock_api::{ErrorKind, LockKey, LockProvider, LockProviderExt, Loss, ReleaseOutcome};
use distlock_conformance::FixtureError;
use distlock_conformance::container::{self, ContainerError, Service};
use distlock_conformance::testcontainers::core::IntoContainerPort;
use distlock_conformance::testcontainers::{GenericImage, ImageExt};
use distlock_mongo::MongoProvider;
use distlock_mongo::mongodb::bson::{Document, doc};
use distlock_mongo::mongodb::options::ClientOptions;
use distlock_mongo::mongodb::{Client, Collection};
use libtest_mimic::{Arguments, Failed, Trial};
use tokio::runtime::Runtime;
use tokio::time::timeout;

const IMAGE: &str = "DISTLOCK_MONGODB_IMAGE";
const REQUIRE: &str = "DISTLOCK_REQUIRE_CONTAINERS";
const PORT: u16 = 27017;
const TTL: Duration = Duration::from_secs(2);
/// Many times the duration of any call here.
const BOUND: Duration = Duration::from_secs(60);
const COLLECTION: &str = "locks";

#[derive(Clone, Copy, Debug)]
enum Fault {
    Pause,
    Kill,
    CutOff,
}

impl Fault {
    async fn begin(self, service: &Service) -> Result<(), ContainerError> {
        match self {
            Self::Pause => service.pause().await,
            Self::Kill => service.kill().await,
            Self::CutOff => service.cut_off().await,
        }
    }

    async fn end(self, service: &Service) -> Result<(), ContainerError> {
        match self {
            Self::Pause => service.resume().await,
            Self::Kill => service.start_again().await,
            Self::CutOff => service.reconnect().await,
        }
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let runtime = Arc::new(
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime"),
    );
    let service = match runtime.block_on(start()) {
        Ok(service) => service,
        Err(error) if error.is_unavailable() && std::env::var_os(REQUIRE).is_none() => {
            eprintln!(
                "distlock: faults of containers are NOT examined: {error}; {IMAGE} names an image, {REQUIRE} makes this a failure"
            );
            return ExitCode::SUCCESS;
        }
        Err(error) => {
            eprintln!("distlock: {error}");
            return ExitCode::FAILURE;
        }
    };
    let service = Arc::new(service);
    let mut trials = vec![trial("a_port_that_is_not_exposed_is_refused", &runtime, refused())];
    for (name, fault) in [("paused", Fault::Pause), ("killed", Fault::Kill), ("cut_off", Fault::CutOff)] {
        trials.push(trial(
            &format!("C4_C9_holders_and_waiters_of_a_server_that_is_{name}"),
            &runtime,
            unreachable(service.clone(), fault),
        ));
    }
    // There is one container, so there is one fault at a time.
    let conclusion = libtest_mimic::run(&Arguments { test_threads: Some(1), ..arguments }, trials);
    if let Some(service) = Arc::into_inner(service) {
        runtime.block_on(service.stop());
    }
    conclusion.exit_code()
}

fn trial(name: &str, runtime: &Arc<Runtime>, work: impl Future<Output = ()> + Send + 'static) -> Trial {
    let runtime = runtime.clone();
    Trial::test(name, move || {
        let done = runtime.block_on(async { tokio::spawn(timeout(BOUND * 3, work)).await });
        match done {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err(Failed::from("it does not come to an end")),
            Err(panic) => Err(Failed::from(panic.to_string())),
        }
    })
}

fn image() -> GenericImage {
    container::image(&std::env::var(IMAGE).unwrap_or_else(|_| "mongo:7.0".to_owned()))
}

async fn start() -> Result<Service, ContainerError> {
    // The port is the same after each fault, because drivers do not search for their server.
    let port = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a free port").port();
    let command = ["mongod", "--bind_ip_all", "--wiredTigerCacheSizeGB", "0.25"];
    let request = image().with_cmd(command).with_mapped_port(port, PORT.tcp());
    Service::start(request, PORT, ping).await
}

async fn ping(address: String) -> Result<(), FixtureError> {
    let client = client(&address).await?;
    let answer = client.database("admin").run_command(doc! { "ping": 1 }).await;
    client.shutdown().await;
    answer?;
    Ok(())
}

async fn client(address: &str) -> Result<Client, FixtureError> {
    let mut options = ClientOptions::parse(format!("mongodb://{address}/?directConnection=true")).await?;
    options.server_selection_timeout = Some(Duration::from_secs(1));
    Ok(Client::with_options(options)?)
}

async fn refused() {
    let error = Service::start(image(), PORT, ping).await.unwrap_err();
    assert!(error.to_string().contains("would not expose port 27017") && !error.is_unavailable(), "{error}");
}

/// The holder learns in time that it may have lost the lock, waiters get the time-out, and after
/// the fault all continue.
async fn unreachable(service: Arc<Service>, fault: Fault) {
    let client = client(&service.address()).await.unwrap();
    let database = format!("container_{:016x}", fastrand::u64(..));
    let provider = || MongoProvider::builder_from_client(&client).database(&database).collection(COLLECTION).build();
    let (holder, waiter) = (provider().unwrap(), provider().unwrap());
    let key = LockKey::new("k").unwrap();
    let guard = holder.acquire(&key).ttl(TTL).await.unwrap();
    let token = guard.fencing_token();

    fault.begin(&service).await.unwrap();
    let answer = timeout(Duration::from_secs(1), ping(service.address())).await;
    assert!(!matches!(answer, Ok(Ok(()))), "it answers");
    let error = waiter.acquire(&key).timeout(TTL / 4).await.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Timeout | ErrorKind::Unavailable), "{error}");
    assert_eq!(timeout(BOUND, guard.lost()).await, Ok(Loss::Expired));
    assert_eq!(guard.release().await.unwrap(), ReleaseOutcome::AlreadyLost);

    fault.end(&service).await.unwrap();
    let next = waiter.acquire(&key).timeout(BOUND).await.unwrap();
    assert!(next.fencing_token() > token);
    assert_eq!(next.release().await.unwrap(), ReleaseOutcome::Released);
    for provider in [holder, waiter] {
        provider.close().await.unwrap();
        assert!(provider.accounting().balances(), "{:?}", provider.accounting());
    }
    // C11: neither a lease nor a ticket.
    let records: Collection<Document> = client.database(&database).collection(COLLECTION);
    let left = records.find_one(doc! { "$or": [{ "lockId": { "$exists": true } }, { "queue": { "$exists": true } }] });
    assert_eq!(left.await.unwrap(), None);
    client.database(&database).drop().await.unwrap();
    client.shutdown().await;
}
