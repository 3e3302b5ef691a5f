//! Clients and users with restricted access: a missing privilege, no user, a wrong password, a
//! secondary, an unknown certificate authority. Also the conformance suite as a user with the
//! documented role only.
//!
//! The servers are local processes in any case: those of the other sources have no access control,
//! no TLS, and one member.

use std::error::Error;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use distlock_api::{
    ErrorKind, ListOptions, LockError, LockFilter, LockKey, LockProvider, LockProviderExt, Phase, ReleaseOutcome,
    RenewalPolicy,
};
use distlock_conformance_mongo::{MongoServer, Topology};
use distlock_mongo::mongodb::bson::{Document, doc};
use distlock_mongo::mongodb::options::{ClientOptions, Credential};
use distlock_mongo::mongodb::{Client, Database};
use distlock_mongo::{DocumentLocks, MongoOnce, MongoProvider};
use distlock_recipes::once::OnceProviderExt;
use futures_util::TryStreamExt;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use tokio::sync::OnceCell;
use tokio::time::{sleep, timeout};

use crate::{SharedServer, Trials, guide, role};

const COLLECTION: &str = "locks";
const OWNER: &str = "the owner";
const TTL: Duration = Duration::from_secs(6);
/// How long a caller waits for a server that cannot be used: by the end, the driver must know why.
const WAIT: Duration = Duration::from_secs(5);
/// Many times the duration of any call here.
const BOUND: Duration = Duration::from_secs(60);

pub(crate) fn add(trials: &mut Trials) -> SharedServer {
    let server = Controlled::default();
    // The longest first.
    trials.add("one_cause_has_one_text", one_text(server.clone()));
    for privilege in ["find", "insert", "update"] {
        let name = format!("connect_and_the_first_lock_name_the_missing_{privilege}");
        trials.add(name, lacking(server.clone(), privilege));
        trials.add(format!("every_call_names_the_missing_{privilege}"), every_call(server.clone(), privilege));
    }
    trials.add("connect_names_the_missing_createIndex", without_index(server.clone()));
    trials.add("documents_name_the_missing_privilege", documents(server.clone()));
    trials.add("C16_without_changeStream_locks_work", without_stream(server.clone()));
    trials.add("missing_credentials_are_reported", anonymous(server.clone()));
    trials.add("a_wrong_password_is_reported", wrong_password(server.clone()));
    trials.add("a_secondary_is_refused", secondary());
    trials.add("a_connection_string_suffices", connection_string(server.clone()));
    trials.add("an_unknown_authority_is_reported", unknown_authority());
    trials.add("servers_that_cannot_be_used_are_named", unusable_servers(server.clone()));
    trials.add("blocked_writes_are_retryable", blocked_writes());
    trials.add("the_guide_names_the_tested_role", privileges_of_the_guide());
    trials.add("a_capped_collection_is_refused_without_listCollections", capped(server.clone()));
    server.0
}

/// The server with access control.
#[derive(Clone, Default)]
struct Controlled(SharedServer);

impl Controlled {
    /// Returns the options of an administrator.
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

    /// Makes a new database, and a new user with these privileges on the collection of locks.
    async fn user(&self, privileges: &[&str]) -> Database {
        let (database, user) = (random_name("access"), random_name("user"));
        let administrator = Client::with_options(self.options().await).expect("a client");
        let privileges = [(COLLECTION, privileges.to_vec())];
        role::create_user(&administrator, &user, &database, &privileges).await.expect("an administrator may do it");
        administrator.shutdown().await;
        self.client(Some(credential(&user, role::PASSWORD))).await.database(&database)
    }

    async fn user_without(&self, privilege: &str) -> Database {
        let others: Vec<&str> = role::OF_RECORDS.into_iter().filter(|other| *other != privilege).collect();
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

/// Makes a provider without state of the server.
fn provider(database: &Database) -> MongoProvider {
    MongoProvider::builder(database.clone()).collection(COLLECTION).owner(OWNER).build().expect("valid options")
}

/// Returns the errors of `prepare`, and of the first lock of a client that has made no call.
async fn refusals(database: &Database) -> [LockError; 2] {
    let connecting = provider(database).prepare().await.expect_err("it connects");
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
    guide::lists(error);
}

fn names(error: &LockError, privilege: &str, database: &Database) {
    is_denied(error);
    let text_part = format!("lacks the privilege {privilege} on the collection {}.{COLLECTION}", database.name());
    assert!(error.to_string().contains(&text_part), "{text_part}: {}", chain(error));
}

/// The text of the error and of its causes.
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
    // The same after the first call of a provider, and for a caller that does not wait.
    let locks = provider(&database);
    for _ in 0..2 {
        names(&locks.try_acquire(key()).await.unwrap_err(), privilege, &database);
    }
}

/// Whatever the first call of a provider is.
async fn every_call(server: Controlled, privilege: &str) {
    let database = server.user_without(privilege).await;
    let expected = |call: &str, error: Option<LockError>| {
        let error = error.unwrap_or_else(|| panic!("{call} succeeds without {privilege}"));
        let text_part = format!("lacks the privilege {privilege} on the collection {}.{COLLECTION}", database.name());
        assert!(error.to_string().contains(&text_part), "{call}: {text_part}: {}", chain(&error));
        is_denied(&error);
    };
    let timeout = BOUND;
    let locks = || provider(&database);
    expected("acquire", locks().acquire(key()).timeout(timeout).await.err());
    expected("try_acquire", locks().try_acquire(key()).await.err());
    expected("acquire_all", locks().acquire_all([key(), key(), key()]).timeout(timeout).await.err());
    expected("shared", locks().acquire(key()).shared().timeout(timeout).await.err());
    let jobs = || MongoOnce::builder(database.clone()).collection(COLLECTION).build().expect("valid options");
    expected("once", jobs().once(key()).at_most_once().await.err());
    if privilege == "insert" {
        return;
    }
    let documents = || {
        let builder = DocumentLocks::<Document>::builder(&database.collection(COLLECTION));
        builder.build().expect("valid options")
    };
    expected("lock", documents().lock("a").await.err());
    let admin = locks();
    let admin = admin.admin().expect("an administrator");
    expected("force_release", admin.force_release(&key(), "test").await.err());
    if privilege == "find" {
        expected("release_owner", admin.release_owner(OWNER, "test").await.err());
        let filter = LockFilter::new().prefix("key");
        expected("release_matching", admin.release_matching(&filter, "test").await.err());
        expected("inspect", admin.inspect(&key()).await.err());
        expected("list", admin.list(ListOptions::new()).try_next().await.err());
    }
}

/// Locks work without the index: only `prepare` fails.
async fn without_index(server: Controlled) {
    let database = server.user_without("createIndex").await;
    let locks = provider(&database);
    names(&locks.prepare().await.unwrap_err(), "createIndex", &database);
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
        names(&locks(&database).provider().prepare().await.unwrap_err(), privilege, &database);
        names(&locks(&database).lock("a").await.unwrap_err(), privilege, &database);
    }
    // A missing document is inserted only with a default.
    let database = server.user_without("insert").await;
    locks(&database).provider().prepare().await.unwrap();
    assert_eq!(locks(&database).try_lock("a").await.unwrap_err().kind(), ErrorKind::NotFound);
    names(&locks(&database).lock("a").or_insert(&doc! {}).await.unwrap_err(), "insert", &database);
}

/// Without `changeStream` and `listIndexes`, `prepare` succeeds, leases are renewed, and waiters
/// poll. Only an operator cannot watch.
async fn without_stream(server: Controlled) {
    let database = server.user(&["find", "insert", "update", "createIndex"]).await;
    let (holder, waiter) = (provider(&database), provider(&database));
    holder.prepare().await.unwrap();
    let key = key();
    let renewal = RenewalPolicy::Every(Duration::from_millis(500));
    let guard = holder.acquire(&key).ttl(TTL).renewal(renewal).await.unwrap();
    let waiting = tokio::spawn({
        let (waiter, key) = (waiter.clone(), key.clone());
        async move { waiter.acquire(&key).ttl(TTL).renewal(renewal).timeout(BOUND).await }
    });
    sleep(TTL + Duration::from_secs(2)).await;
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

/// An operator blocks the writes of users, for example to move the data to another cluster.
async fn blocked_writes() {
    let server = Controlled::default();
    let locks = provider(&server.user(&role::OF_RECORDS).await);
    locks.prepare().await.unwrap();
    let held = locks.acquire(key()).timeout(BOUND).await.unwrap();
    let administrator = Client::with_options(server.options().await).expect("a client");
    let block = async |global: bool| {
        let block = doc! { "setUserWriteBlockMode": 1, "global": global };
        administrator.database("admin").run_command(block).await.expect("an administrator may do it");
    };
    block(true).await;
    let key = key();
    let error = locks.try_acquire(&key).await.unwrap_err();
    let text = chain(&error);
    assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Unavailable, true), "{text}");
    assert!(text.contains("error 371 UserWritesBlocked"), "{text}");
    guide::lists(&error);
    let waiting = tokio::spawn({
        let (locks, key) = (locks.clone(), key.clone());
        async move { locks.acquire(&key).timeout(BOUND).await }
    });
    block(false).await;
    let next = timeout(BOUND, waiting).await.unwrap().unwrap().unwrap();
    assert_eq!(next.release().await.unwrap(), ReleaseOutcome::Released);
    assert_eq!(held.release().await.unwrap(), ReleaseOutcome::Released);
    locks.close().await.unwrap();
    assert!(locks.accounting().balances() && locks.accounting().unsettled == 0, "{:?}", locks.accounting());
    administrator.shutdown().await;
    if let Some(server) = Arc::into_inner(server.0).and_then(OnceCell::into_inner) {
        server.stop().await;
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
        locks.prepare().await.unwrap_err(),
        locks.acquire(key()).timeout(WAIT).await.unwrap_err(),
        locks.prepare().await.unwrap_err(),
    ] {
        assert_eq!((error.kind(), error.is_outcome_unknown()), (ErrorKind::Unavailable, false), "{}", chain(&error));
        for text_part in ["not the primary of its replica set", "directConnection=true", "replicaSet=…"] {
            assert!(error.to_string().contains(text_part), "{text_part}: {}", chain(&error));
        }
        guide::lists(&error);
    }
    locks.close().await.unwrap();
    server.stop().await;
}

/// `MongoProvider::connect` takes the database from the path, and reports a string that cannot be
/// used.
async fn connection_string(server: Controlled) {
    let options = server.options().await;
    let (database, user) = (random_name("access"), random_name("user"));
    let administrator = Client::with_options(options.clone()).expect("a client");
    let privileges = [(COLLECTION, role::OF_RECORDS.to_vec())];
    role::create_user(&administrator, &user, &database, &privileges).await.expect("an administrator may do it");
    let host = &options.hosts[0];
    let uri = |path: &str| format!("mongodb://{user}:{}@{host}/{path}?replicaSet=rs0&authSource=admin", role::PASSWORD);
    let locks = MongoProvider::connect(uri(&database)).await.unwrap();
    assert_eq!(locks.to_string(), format!("MongoDB({database}.{COLLECTION})"));
    assert!(format!("{locks:?}").contains("ReplicaSet"), "{locks:?}");
    let token = locks.acquire(key()).timeout(BOUND).run(async |token| token).await.unwrap();
    assert!(token.get() > 0);
    locks.close().await.unwrap();

    // Without a path the database is `distlock`, on which this user has no privileges.
    let error = MongoProvider::connect(uri("")).await.unwrap_err();
    is_denied(&error);
    assert!(error.to_string().contains("on the collection distlock.locks"), "{}", chain(&error));
    for unusable in [
        "",
        "localhost",
        "mongodb://user:p@ss@host/",
        "mongodb://user:p@ss/word@host/",
        "mongodb://user:pa55/word@host/",
        "mongodb://user:pa55%aé@host/",
        "mongodb://host/?w=many&w=",
        "mongodb://h/?socketTimeoutMS=1",
    ] {
        let error = MongoProvider::connect(unusable).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidOptions, "{unusable}: {}", chain(&error));
        assert!(error.to_string().contains("connection string"), "{}", chain(&error));
        assert!(!["p@ss", "pa55"].iter().any(|part| chain(&error).contains(part)), "{}", chain(&error));
        guide::lists(&error);
    }
}

/// A client that does not know the authority of the server's certificate gets a permanent error,
/// which names the cause. With the authority's certificate the same client works.
async fn unknown_authority() {
    let files = Certificates::make();
    let server = MongoServer::start_with_tls(&files.certificate_key, &files.authority).await.expect("a server");
    let database = |uri: &str| {
        let uri = uri.to_owned();
        async move { Client::with_uri_str(uri).await.expect("a client").database(&random_name("access")) }
    };
    let stranger = database(server.uri()).await;
    for error in refusals(&stranger).await {
        let answer = (error.kind(), error.phase(), error.is_retryable(), error.is_outcome_unknown());
        assert_eq!(answer, (ErrorKind::Unavailable, Some(Phase::Connect), false, false), "{}", chain(&error));
        for part in ["no secure connection to MongoDB", "certificate authority", "UnknownIssuer", "tlsCAFile"] {
            assert!(error.to_string().contains(part), "{part}: {}", chain(&error));
        }
        guide::lists(&error);
    }
    let authority = files.authority.display();
    let locks = provider(&database(&format!("{}&tlsCAFile={authority}", server.uri())).await);
    locks.prepare().await.unwrap();
    let guard = locks.acquire(key()).timeout(BOUND).await.unwrap();
    assert_eq!(guard.release().await.unwrap(), ReleaseOutcome::Released);
    locks.close().await.unwrap();
    server.stop().await;
}

/// Wrong hosts, a wrong name of the set, and TLS where the server has none.
async fn unusable_servers(server: Controlled) {
    let host = server.options().await.hosts[0].to_string();
    let closed = std::net::TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    let closed = closed.expect("a port").to_string();
    let cases = [
        (&*closed, "", "Connection refused"),
        ("no-such-host.invalid", "", "failed to lookup"),
        (&*host, "replicaSet=another", "another replica set"),
        (&*host, "tls=true", "tls"),
    ];
    // All at once: each call takes as long as it may.
    let cases = cases.map(|(hosts, options, reason)| async move {
        let client = Client::with_uri_str(format!("mongodb://{hosts}/?{options}")).await.expect("a client");
        let locks = provider(&client.database(&random_name("access")));
        let connecting = locks.prepare().await.unwrap_err();
        let locking = locks.acquire(key()).timeout(WAIT).await.unwrap_err();
        for error in [connecting, locking] {
            let answer = (error.kind(), error.phase(), error.is_outcome_unknown());
            assert_eq!(answer, (ErrorKind::Unavailable, Some(Phase::Connect), false), "{}", chain(&error));
            assert!(error.to_string().contains(reason), "{reason}: {}", chain(&error));
            guide::lists(&error);
        }
    });
    futures_util::future::join_all(cases).await;
}

/// Returns the errors of the ways to a server: each waits for the choice of one.
async fn unreachable(uri: &str) -> Vec<LockError> {
    let client = Client::with_uri_str(uri).await.expect("a client");
    let database = client.database(&random_name("access"));
    let locks = provider(&database);
    let admin = locks.admin().expect("an administrator");
    let (connecting, locking, trying, inspecting) = tokio::join!(
        async { locks.prepare().await.map(drop) },
        async { locks.acquire(key()).timeout(WAIT).await.map(drop) },
        async { locks.try_acquire(key()).await.map(drop) },
        async { admin.inspect(&key()).await.map(drop) },
    );
    let errors: Vec<_> = [connecting, locking, trying, inspecting].map(|answer| answer.expect_err("no server")).into();
    // A server that was there, and is not any more, is another cause.
    client.shutdown().immediate(true).await;
    errors
}

/// The driver's own limit may be shorter than that of a request: both errors have the same text,
/// and show nothing of the driver's state.
async fn one_text(server: Controlled) {
    let alone = MongoServer::start_local(Topology::Standalone, 1).await.expect("a server");
    let files = Certificates::make();
    let secure = MongoServer::start_with_tls(&files.certificate_key, &files.authority).await.expect("a server");
    let host = async |uri: &str| ClientOptions::parse(uri).await.expect("a connection string").hosts[0].to_string();
    let (alone_at, secure_at) = (host(alone.uri()).await, host(secure.uri()).await);
    let set_at = server.options().await.hosts[0].to_string();
    let cases = [
        (format!("{alone_at}/?replicaSet=rs0"), "belong to another replica set than"),
        (format!("{alone_at}/?replicaSet=rs0&directConnection=true"), "belong to another replica set than"),
        (format!("{set_at}/?replicaSet=another"), "belong to another replica set than"),
        (format!("{alone_at}/?tls=true"), "tls handshake eof"),
        (format!("{secure_at}/?tls=true"), "UnknownIssuer"),
        (format!("{secure_at}/?appName=a"), "tls=true"),
        ("127.0.0.1:1/?appName=a".to_owned(), "Connection refused"),
    ];
    let cases = cases.map(|(rest, text_part)| async move {
        let mut texts = Vec::new();
        for limit in ["", "&serverSelectionTimeoutMS=3000"] {
            for error in unreachable(&format!("mongodb://{rest}{limit}")).await {
                let answer = (error.kind(), error.phase(), error.is_outcome_unknown());
                assert_eq!(answer, (ErrorKind::Unavailable, Some(Phase::Connect), false), "{rest}: {}", chain(&error));
                guide::lists(&error);
                let shown = format!("{} {error:?} {error:#?}", chain(&error));
                for debug in ["Topology", "ServerDescription", "server_type", "Kind(", "{ "] {
                    assert!(!shown.contains(debug), "{rest}{limit}: {debug}: {shown}");
                }
                let text = error.to_string();
                let text = text.split(" [lock ").next().expect("a text").to_owned();
                assert!(text.contains(text_part), "{rest}{limit}: {text_part}: {text}");
                texts.push((error.disposition(), text));
            }
        }
        texts.dedup();
        assert_eq!(texts.len(), 1, "{rest}: {texts:#?}");
    });
    futures_util::future::join_all(cases).await;
    alone.stop().await;
    secure.stop().await;
}

/// A user with the documented role may list the indexes of the collection, but not the collections
/// of the database.
async fn capped(server: Controlled) {
    let database = server.user(&role::OF_RECORDS).await;
    let administrator = Client::with_options(server.options().await).expect("a client");
    let create = doc! { "create": COLLECTION, "capped": true, "size": 100_000, "max": 8 };
    administrator.database(database.name()).run_command(create).await.expect("a collection");
    for error in refusals(&database).await {
        assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Unsupported, false), "{}", chain(&error));
        assert!(error.to_string().contains("is capped"), "{}", chain(&error));
        guide::lists(&error);
    }
}

/// The files of a server with TLS, removed with this value.
struct Certificates {
    directory: PathBuf,
    certificate_key: PathBuf,
    authority: PathBuf,
}

impl Certificates {
    fn make() -> Self {
        let mut params = CertificateParams::new(Vec::new()).expect("parameters");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "the test's authority");
        let authority =
            CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key")).expect("an authority");
        let key = KeyPair::generate().expect("a key");
        let params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).expect("parameters");
        let certificate = params.signed_by(&key, &authority).expect("a certificate");

        let directory = std::env::temp_dir().join(random_name("distlock_tls"));
        std::fs::create_dir(&directory).expect("a directory");
        let write = |name: &str, text: String| {
            let path = directory.join(name);
            std::fs::write(&path, text).expect("a file");
            path
        };
        let certificate_key = write("server.pem", certificate.pem() + &key.serialize_pem());
        let authority = write("authority.pem", authority.pem());
        Self { directory, certificate_key, authority }
    }
}

impl Drop for Certificates {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// The guide, which is part of the facade, names exactly the privileges that these tests grant.
async fn privileges_of_the_guide() {
    let guide = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../src/guide/privileges.md"));
    let guide = guide.expect("the guide");
    for privileges in [&role::OF_RECORDS[..], &role::OF_DOCUMENTS, &role::OF_DATABASE] {
        assert!(guide.contains(&format!("actions: {privileges:?}")), "{privileges:?}");
    }
}
