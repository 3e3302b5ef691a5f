//! `connect` and the first lock of clients that the server turns away: a user who lacks a
//! privilege, no user, a wrong password, a secondary.
//!
//! The servers are local processes in any case: those of the other sources have no access control,
//! and one member.

use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use distlock_api::{ErrorKind, LockError, LockKey, LockProvider, LockProviderExt, ReleaseOutcome};
use distlock_conformance_mongo::{MongoServer, Topology};
use distlock_mongo::mongodb::bson::{Document, doc};
use distlock_mongo::mongodb::options::{ClientOptions, Credential};
use distlock_mongo::mongodb::{Client, Database};
use distlock_mongo::{DocumentLocks, MongoProvider};
use libtest_mimic::{Arguments, Failed, Trial};
use tokio::runtime::Runtime;
use tokio::sync::OnceCell;
use tokio::time::{sleep, timeout};

const COLLECTION: &str = "locks";
const PASSWORD: &str = "secret";
const OWNER: &str = "the owner";
/// What the documentation names: the first three are needed, the others have a substitute.
const PRIVILEGES: [&str; 6] = ["find", "insert", "update", "createIndex", "changeStream", "listIndexes"];
const TTL: Duration = Duration::from_secs(1);
/// Many times what anything here takes.
const BOUND: Duration = Duration::from_secs(60);

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = Arc::new(runtime.expect("a runtime"));
    let controlled = Controlled::default();
    let trial = |name: &str, check: Check| trial(name, &runtime, controlled.clone(), check);
    let mut trials: Vec<Trial> = ["find", "insert", "update"]
        .map(|privilege| {
            trial(
                &format!("connect_and_the_first_lock_name_the_missing_{privilege}"),
                Box::new(move |server| Box::pin(lacking(server, privilege))),
            )
        })
        .into();
    trials.extend([
        trial("connect_names_the_missing_createIndex", Box::new(|server| Box::pin(without_index(server)))),
        trial("documents_name_the_missing_privilege", Box::new(|server| Box::pin(documents(server)))),
        trial("C16_without_changeStream_locks_work", Box::new(|server| Box::pin(without_stream(server)))),
        trial("a_client_without_credentials_is_told", Box::new(|server| Box::pin(anonymous(server)))),
        trial("a_wrong_password_is_told", Box::new(|server| Box::pin(wrong_password(server)))),
        trial("a_secondary_is_refused", Box::new(|_| Box::pin(secondary()))),
    ]);
    let conclusion = libtest_mimic::run(&arguments, trials);
    if let Some(server) = Arc::into_inner(controlled.0).and_then(OnceCell::into_inner) {
        runtime.block_on(server.stop());
    }
    conclusion.exit_code()
}

type Check = Box<dyn FnOnce(Controlled) -> std::pin::Pin<Box<dyn Future<Output = ()> + Send>> + Send>;

fn trial(name: &str, runtime: &Arc<Runtime>, server: Controlled, check: Check) -> Trial {
    let runtime = runtime.clone();
    Trial::test(name, move || {
        let done = runtime.block_on(async { tokio::spawn(timeout(BOUND * 2, check(server))).await });
        match done {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err(Failed::from("it does not come to an end")),
            Err(panic) => Err(Failed::from(panic.to_string())),
        }
    })
}

/// The server with access control, started by the first check that needs it.
#[derive(Clone, Default)]
struct Controlled(Arc<OnceCell<MongoServer>>);

impl Controlled {
    /// The options of an administrator.
    async fn options(&self) -> ClientOptions {
        let start = async || MongoServer::start_with_access_control(Topology::ReplicaSet).await.expect("a server");
        let server = self.0.get_or_init(start).await;
        ClientOptions::parse(server.uri()).await.expect("a connection string")
    }

    async fn client(&self, credential: Option<Credential>) -> Client {
        let mut options = self.options().await;
        options.credential = credential;
        Client::with_options(options).expect("a client")
    }

    /// A new database, for a new user with these privileges on the collection of locks.
    async fn user(&self, privileges: &[&str]) -> Database {
        let (database, user) = (random_name("access"), random_name("user"));
        let administrator = Client::with_options(self.options().await).expect("a client");
        let resource = doc! { "db": &database, "collection": COLLECTION };
        let privileges = vec![doc! { "resource": resource, "actions": privileges.to_vec() }];
        let none = Vec::<Document>::new();
        for command in [
            doc! { "createRole": &user, "privileges": privileges, "roles": none },
            doc! { "createUser": &user, "pwd": PASSWORD, "roles": [&user] },
        ] {
            administrator.database("admin").run_command(command).await.expect("an administrator may do it");
        }
        administrator.shutdown().await;
        self.client(Some(credential(&user, PASSWORD))).await.database(&database)
    }

    async fn user_without(&self, privilege: &str) -> Database {
        let others: Vec<&str> = PRIVILEGES.into_iter().filter(|other| *other != privilege).collect();
        self.user(&others).await
    }
}

fn credential(user: &str, password: &str) -> Credential {
    Credential::builder().username(user.to_owned()).password(password.to_owned()).build()
}

fn random_name(prefix: &str) -> String {
    format!("{prefix}_{:016x}", fastrand::u64(..))
}

fn key() -> LockKey {
    LockKey::new(random_name("key")).expect("a key")
}

/// A provider that knows nothing of the server yet.
fn provider(database: &Database) -> MongoProvider {
    MongoProvider::builder(database.clone()).collection(COLLECTION).owner(OWNER).build().expect("valid options")
}

/// The errors of `connect`, and of the first lock of a client that has not connected.
async fn refusals(database: &Database) -> [LockError; 2] {
    let connecting = provider(database).connect().await.expect_err("it connects");
    let locks = provider(database);
    let locking = timeout(BOUND, locks.acquire(key()).into_future()).await.expect("permanent: an error at once");
    let locking = locking.expect_err("it locks");
    locks.close().await.unwrap();
    assert!(locks.accounting().balances() && locks.accounting().unsettled == 0, "{:?}", locks.accounting());
    [connecting, locking]
}

fn is_denied(error: &LockError) {
    let answer = (error.kind(), error.is_retryable(), error.is_outcome_unknown());
    assert_eq!(answer, (ErrorKind::PermissionDenied, false, false), "{}", chain(error));
}

fn names(error: &LockError, privilege: &str, database: &Database) {
    is_denied(error);
    let says = format!("lacks the privilege {privilege} on the collection {}.{COLLECTION}", database.name());
    assert!(error.to_string().contains(&says), "{says}: {}", chain(error));
}

/// The error and its causes.
fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(&format!(": {error}"));
        cause = error.source();
    }
    text
}

async fn lacking(server: Controlled, privilege: &str) {
    let database = server.user_without(privilege).await;
    for error in refusals(&database).await {
        names(&error, privilege, &database);
        // The server's own text quotes the command.
        assert!(!chain(&error).contains(OWNER), "{}", chain(&error));
    }
    // Not the first call of this provider, and not a caller that waits.
    let locks = provider(&database);
    for _ in 0..2 {
        names(&locks.try_acquire(key()).await.unwrap_err(), privilege, &database);
    }
}

/// Locks work without the index: only `connect` refuses.
async fn without_index(server: Controlled) {
    let database = server.user_without("createIndex").await;
    let locks = provider(&database);
    names(&locks.connect().await.unwrap_err(), "createIndex", &database);
    let locks = provider(&database);
    let guard = locks.acquire(key()).timeout(BOUND).await.unwrap();
    assert_eq!(guard.release().await.unwrap(), ReleaseOutcome::Released);
    locks.close().await.unwrap();
}

async fn documents(server: Controlled) {
    let locks = |database: &Database| {
        let builder = DocumentLocks::<Document>::builder(&database.collection(COLLECTION));
        builder.build().expect("valid options")
    };
    for privilege in ["find", "update"] {
        let database = server.user_without(privilege).await;
        names(&locks(&database).provider().connect().await.unwrap_err(), privilege, &database);
        names(&locks(&database).lock("a").await.unwrap_err(), privilege, &database);
    }
    // A document that is not there is inserted only where a default says so.
    let database = server.user_without("insert").await;
    locks(&database).provider().connect().await.unwrap();
    assert!(locks(&database).try_lock("a").await.unwrap().is_missing());
    names(&locks(&database).lock("a").or_insert(&doc! {}).await.unwrap_err(), "insert", &database);
}

/// Without `changeStream` and `listIndexes`, `connect` reports nothing, leases are renewed, waiters
/// poll, and only an operator cannot watch.
async fn without_stream(server: Controlled) {
    let database = server.user(&["find", "insert", "update", "createIndex"]).await;
    let (holder, waiter) = (provider(&database), provider(&database));
    holder.connect().await.unwrap();
    let key = key();
    let guard = holder.acquire(&key).ttl(TTL).await.unwrap();
    let waiting = tokio::spawn({
        let (waiter, key) = (waiter.clone(), key.clone());
        async move { waiter.acquire(&key).ttl(TTL).timeout(BOUND).await }
    });
    sleep(TTL * 3).await;
    assert!(!guard.is_lost() && !waiting.is_finished(), "it is renewed");
    assert_eq!(guard.release().await.unwrap(), ReleaseOutcome::Released);
    let next = timeout(BOUND, waiting).await.unwrap().unwrap().unwrap();
    assert_eq!(next.release().await.unwrap(), ReleaseOutcome::Released);
    let Err(error) = holder.admin().expect("an administrator").watch().await else { panic!("it watches") };
    is_denied(&error);
    assert!(chain(&error).contains("changeStream"), "{}", chain(&error));
    for locks in [holder, waiter] {
        locks.close().await.unwrap();
        assert!(locks.accounting().balances(), "{:?}", locks.accounting());
    }
}

async fn anonymous(server: Controlled) {
    let database = server.client(None).await.database(&random_name("access"));
    for error in refusals(&database).await {
        is_denied(&error);
        assert!(error.to_string().contains("MongoDB requires authentication"), "{}", chain(&error));
    }
}

async fn wrong_password(server: Controlled) {
    let client = server.client(Some(credential("admin", "wrong"))).await;
    for error in refusals(&client.database(&random_name("access"))).await {
        is_denied(&error);
        assert!(error.to_string().contains("MongoDB refused the credentials"), "{}", chain(&error));
    }
}

async fn secondary() {
    let server = MongoServer::start_local(Topology::ReplicaSet, 3).await.expect("a server");
    let options = ClientOptions::parse(server.uri()).await.expect("a connection string");
    let mut found = None;
    for host in &options.hosts {
        let mut alone = options.clone();
        (alone.hosts, alone.repl_set_name, alone.direct_connection) = (vec![host.clone()], None, Some(true));
        let client = Client::with_options(alone).expect("a client");
        let hello = client.database("admin").run_command(doc! { "hello": 1 }).await.expect("a member");
        if hello.get_bool("secondary").unwrap_or(false) {
            found = Some(client);
        }
    }
    let database = found.expect("a secondary").database(&random_name("access"));
    let locks = provider(&database);
    for error in [
        locks.connect().await.unwrap_err(),
        locks.acquire(key()).timeout(TTL).await.unwrap_err(),
        locks.connect().await.unwrap_err(),
    ] {
        assert_eq!((error.kind(), error.is_outcome_unknown()), (ErrorKind::Unavailable, false), "{}", chain(&error));
        for says in ["not the primary of its replica set", "directConnection=true", "replicaSet=…"] {
            assert!(error.to_string().contains(says), "{says}: {}", chain(&error));
        }
    }
    locks.close().await.unwrap();
    server.stop().await;
}
