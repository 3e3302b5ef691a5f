//! The facts of an examination, queried from the servers.

use std::time::{Duration, Instant};

use distlock::mongodb::mongodb::bson::{Bson, Document, doc};
use distlock::mongodb::mongodb::error::{Error, ErrorKind};
use distlock::mongodb::mongodb::options::{ClientOptions, IndexOptions, ServerAddress};
use distlock::mongodb::mongodb::{Client, IndexModel};
use distlock::{LockError, LockProviderExt};
use futures_util::TryStreamExt;
use tokio::time::timeout;

use super::judge::{Index, Kind, MemberClock};
use super::records::Examined;
use crate::connect::{Connection, Locks, REQUEST_TIMEOUT};
use crate::failure::chain;

/// How long a member may take that is connected to for its clock alone.
const MEMBER_LIMIT: Duration = Duration::from_secs(3);
/// How long the examination of all records may take.
const RECORDS_LIMIT: Duration = Duration::from_secs(300);
/// How often a member's clock is read. The fastest answer is the most precise one.
const CLOCK_READINGS: usize = 5;

/// Runs a command of `admin`, within the limit of a request.
async fn admin_command(client: &Client, command: Document) -> Result<Document, String> {
    match timeout(REQUEST_TIMEOUT * 2, client.database("admin").run_command(command)).await {
        Ok(answer) => answer.map_err(|error| text(&error)),
        Err(_) => Err(format!("no answer within {:?}", REQUEST_TIMEOUT * 2)),
    }
}

/// Returns what the driver says, without the labels that it adds, and without its own state.
fn text(error: &Error) -> String {
    match error.kind.as_ref() {
        ErrorKind::Command(command) => format!("{} ({})", command.message, command.code_name),
        ErrorKind::ServerSelection { .. } => "no server can be used any more".to_owned(),
        _ => chain(error),
    }
}

/// Returns the server's description of itself.
pub(crate) async fn hello(connection: &Connection) -> Result<Document, String> {
    admin_command(&connection.client, doc! { "hello": 1 }).await
}

/// Returns the kind of the deployment.
pub(crate) fn kind(hello: &Document) -> Kind {
    if hello.get_str("msg") == Ok("isdbgrid") {
        return Kind::Sharded;
    }
    if hello.get_str("setName").is_err() {
        return Kind::Standalone;
    }
    let count = |name: &str| hello.get_array(name).map_or(0, Vec::len);
    Kind::ReplicaSet { members: count("hosts") + count("passives"), arbiters: count("arbiters") }
}

/// Returns the version of the server.
pub(crate) async fn version(connection: &Connection) -> Result<String, String> {
    let info = admin_command(&connection.client, doc! { "buildInfo": 1 }).await?;
    Ok(info.get_str("version").unwrap_or("unknown").to_owned())
}

/// Returns the user and its privileges.
pub(crate) async fn status(connection: &Connection) -> Result<Document, String> {
    admin_command(&connection.client, doc! { "connectionStatus": 1, "showPrivileges": true }).await
}

/// Returns the indexes of a collection.
pub(crate) async fn indexes(connection: &Connection, collection: &str) -> Result<Vec<Index>, String> {
    let records = connection.client.database(&connection.database).collection::<Document>(collection);
    let list = async { records.list_indexes().await?.try_collect::<Vec<IndexModel>>().await };
    let listed = match timeout(REQUEST_TIMEOUT * 2, list).await {
        Ok(listed) => listed.map_err(|error| text(&error))?,
        Err(_) => return Err(format!("no answer within {:?}", REQUEST_TIMEOUT * 2)),
    };
    let index = |model: IndexModel| {
        let IndexOptions { name, expire_after, .. } = model.options.unwrap_or_default();
        Index { name: name.unwrap_or_default(), expires: expire_after.is_some() }
    };
    Ok(listed.into_iter().map(index).collect())
}

/// Examines the records of a collection one by one. A record is the whole document, or a field of
/// it.
pub(crate) async fn records(
    connection: &Connection,
    collection: &str,
    field: Option<&str>,
    now: i64,
) -> Result<Examined, String> {
    let documents = connection.client.database(&connection.database).collection::<Document>(collection);
    let mut examined = Examined::default();
    let reading = async {
        let mut found = documents.find(doc! {}).await?;
        while let Some(document) = found.try_next().await? {
            let id = document.get("_id").cloned().unwrap_or_default();
            match field {
                None => examined.add(&id, &document, now),
                Some(field) => examined.add(&id, document.get_document(field).unwrap_or(&Document::new()), now),
            }
        }
        Ok(())
    };
    match timeout(RECORDS_LIMIT, reading).await {
        Ok(read) => read.map(|()| examined).map_err(|error: Error| text(&error)),
        Err(_) => Err(format!("not all could be read within {RECORDS_LIMIT:?}")),
    }
}

/// Measures `ping`, after one that opens the connection.
pub(crate) async fn pings(connection: &Connection, count: usize) -> Result<Vec<Duration>, String> {
    let mut durations = Vec::new();
    for _ in 0..=count {
        let start = Instant::now();
        admin_command(&connection.client, doc! { "ping": 1 }).await?;
        durations.push(start.elapsed());
    }
    Ok(durations.split_off(1))
}

/// Measures the acquisition of a key of one's own, each a majority write, after one that opens the
/// connection. Returns the durations, and the key.
pub(crate) async fn acquisitions(locks: &Locks, key: &str, count: usize) -> Result<Vec<Duration>, LockError> {
    let mut durations = Vec::new();
    for _ in 0..=count {
        let start = Instant::now();
        let guard = locks.provider.acquire(key).timeout(REQUEST_TIMEOUT * 2).await?;
        durations.push(start.elapsed());
        guard.release().await?;
    }
    Ok(durations.split_off(1))
}

/// Reads the clocks of all members, and names those that cannot be reached.
pub(crate) async fn clocks(connection: &Connection, hello: &Document) -> (Vec<MemberClock>, Vec<String>) {
    let mut members: Vec<String> = Vec::new();
    for name in ["hosts", "passives"] {
        let listed = hello.get_array(name).cloned().unwrap_or_default();
        members.extend(listed.iter().filter_map(Bson::as_str).map(str::to_owned));
    }
    let since = Instant::now();
    if members.is_empty() {
        // A standalone, or a router: the clock of the server that is connected.
        let name = hello.get_str("me").unwrap_or("the server").to_owned();
        return match clock(&connection.client, name.clone(), since).await {
            Some(clock) => (vec![clock], Vec::new()),
            None => (Vec::new(), vec![name]),
        };
    }
    let (mut clocks, mut unreachable) = (Vec::new(), Vec::new());
    for member in members {
        match timeout(MEMBER_LIMIT, member_clock(&connection.options, &member, since)).await {
            Ok(Some(clock)) => clocks.push(clock),
            Ok(None) | Err(_) => unreachable.push(member),
        }
    }
    (clocks, unreachable)
}

/// Connects to one member alone, and reads its clock.
async fn member_clock(options: &ClientOptions, member: &str, since: Instant) -> Option<MemberClock> {
    let mut options = options.clone();
    options.hosts = vec![ServerAddress::parse(member).ok()?];
    options.direct_connection = Some(true);
    options.repl_set_name = None;
    options.server_selection_timeout = Some(MEMBER_LIMIT);
    let client = Client::with_options(options).ok()?;
    let clock = clock(&client, member.to_owned(), since).await;
    let _ = timeout(MEMBER_LIMIT, client.shutdown()).await;
    clock
}

/// Reads the clock of the server that a client is connected to.
async fn clock(client: &Client, member: String, since: Instant) -> Option<MemberClock> {
    let mut best: Option<MemberClock> = None;
    for _ in 0..CLOCK_READINGS {
        let sent = since.elapsed();
        let answer = admin_command(client, doc! { "hello": 1 }).await.ok()?;
        let received = since.elapsed();
        let clock = answer.get_datetime("localTime").ok()?.timestamp_millis();
        // The server read its clock between both instants, to a millisecond.
        let (middle, error) = ((sent + received) / 2, (received - sent) / 2);
        let offset = clock as f64 - middle.as_secs_f64() * 1e3;
        let error = error.as_secs_f64() * 1e3 + 1.0;
        if best.as_ref().is_none_or(|best| error < best.error) {
            best = Some(MemberClock { member: member.clone(), offset, error });
        }
    }
    best
}
