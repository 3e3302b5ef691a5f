//! Servers that speak MongoDB's wire protocol and lack something: a proxy in front of a real server
//! that answers some commands with an error.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use mongodb::bson::{Bson, Document, doc};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Mutex;
use tokio::task::JoinHandle;

/// The kind of a message with one document, as all drivers send since MongoDB 3.6.
const OP_MSG: i32 = 2013;
const HEADER: usize = 16;
/// A message of MongoDB is no longer.
const LONGEST: usize = 48_000_000;

/// Returns the error with which a server answers this command, or `None` if it carries it out. The
/// error is a document with `code`, `codeName` and `errmsg`.
pub type Refuse = dyn Fn(&Document) -> Option<Document> + Send + Sync;

/// A server that refuses some commands: a proxy that answers them itself and passes all others to
/// a real server. Its drop ends it.
///
/// The proxy reads unencrypted messages without compression.
///
/// ```no_run
/// use distlock_conformance_mongo::Imitation;
/// use mongodb::bson::doc;
///
/// # async fn example(server: std::net::SocketAddr) -> std::io::Result<()> {
/// // No client can count here.
/// let refusal = || doc! { "code": 59, "codeName": "CommandNotFound", "errmsg": "no such command" };
/// let counts_nothing = Imitation::start(server, move |command| command.contains_key("count").then(refusal)).await?;
/// let uri = format!("mongodb://{}/?directConnection=true", counts_nothing.address());
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Imitation {
    address: SocketAddr,
    task: JoinHandle<()>,
}

impl Imitation {
    /// Listens on a free port of `127.0.0.1`, in front of the server at `target`.
    ///
    /// # Errors
    /// If no port can be opened.
    pub async fn start(
        target: SocketAddr,
        refuse: impl Fn(&Document) -> Option<Document> + Send + Sync + 'static,
    ) -> io::Result<Self> {
        Self::with_wire_version(target, None, refuse).await
    }

    /// Listens like [`start`](Self::start). The server's description of itself has this
    /// `maxWireVersion`.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub async fn with_wire_version(
        target: SocketAddr,
        wire_version: Option<i32>,
        refuse: impl Fn(&Document) -> Option<Document> + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let (address, refuse): (_, Arc<Refuse>) = (listener.local_addr()?, Arc::new(refuse));
        let task = tokio::spawn(async move {
            // Its drop ends the connections.
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                let Ok(server) = TcpStream::connect(target).await else { continue };
                connections.spawn(serve(client, server, wire_version, Arc::clone(&refuse)));
            }
        });
        Ok(Self { address, task })
    }

    /// Returns where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Imitation {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(client: TcpStream, server: TcpStream, wire_version: Option<i32>, refuse: Arc<Refuse>) {
    let ((from_client, to_client), (from_server, to_server)) = (client.into_split(), server.into_split());
    let to_client = Mutex::new(to_client);
    // The end of one side is the end of both.
    tokio::select! {
        _ = requests(from_client, to_server, &to_client, &*refuse) => {}
        _ = replies(from_server, &to_client, wire_version) => {}
    }
}

async fn requests(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    client: &Mutex<OwnedWriteHalf>,
    refuse: &Refuse,
) -> io::Result<()> {
    loop {
        let message = message(&mut from).await?;
        let refusal = command(&message).and_then(|command| refuse(&command));
        match refusal {
            Some(refusal) => client.lock().await.write_all(&answer(&message, refusal)?).await?,
            None => to.write_all(&message).await?,
        }
    }
}

async fn replies(mut from: OwnedReadHalf, client: &Mutex<OwnedWriteHalf>, wire_version: Option<i32>) -> io::Result<()> {
    loop {
        let mut message = message(&mut from).await?;
        if let Some(version) = wire_version {
            set_wire_version(&mut message, version);
        }
        client.lock().await.write_all(&message).await?;
    }
}

/// Reads one message, with its header.
async fn message(from: &mut OwnedReadHalf) -> io::Result<Vec<u8>> {
    let mut message = vec![0; HEADER];
    from.read_exact(&mut message).await?;
    let length = usize::try_from(number(&message, 0)).unwrap_or_default();
    if !(HEADER..=LONGEST).contains(&length) {
        return Err(io::ErrorKind::InvalidData.into());
    }
    message.resize(length, 0);
    from.read_exact(&mut message[HEADER..]).await?;
    Ok(message)
}

/// Returns the command of a message, without documents that follow it in sections of their own.
fn command(message: &[u8]) -> Option<Document> {
    let is_command = number(message, 12) == OP_MSG && message.get(HEADER + 4) == Some(&0);
    is_command.then(|| Document::from_reader(message.get(HEADER + 5..)?).ok()).flatten()
}

/// Makes the message that answers a request with an error.
fn answer(request: &[u8], refusal: Document) -> io::Result<Vec<u8>> {
    let mut body = doc! { "ok": 0.0 };
    body.extend(refusal);
    let mut section = Vec::new();
    body.to_writer(&mut section).map_err(io::Error::other)?;
    let length = i32::try_from(HEADER + 5 + section.len()).map_err(io::Error::other)?;
    let mut message = Vec::new();
    for field in [length, 0, number(request, 4), OP_MSG, 0] {
        message.extend(field.to_le_bytes());
    }
    message.push(0);
    message.extend(section);
    Ok(message)
}

/// Overwrites the version in a server's description of itself.
fn set_wire_version(message: &mut [u8], version: i32) {
    const FIELD: &[u8] = b"\x10maxWireVersion\0";
    if let Some(at) = message.windows(FIELD.len()).position(|window| window == FIELD) {
        let at = at + FIELD.len();
        message[at..at + 4].copy_from_slice(&version.to_le_bytes());
    }
}

fn number(message: &[u8], at: usize) -> i32 {
    i32::from_le_bytes(message[at..at + 4].try_into().expect("four bytes of a header"))
}

/// The shapes of servers that are not MongoDB, or less than all of it, as their documentation and
/// their sources describe them.
impl Imitation {
    /// Starts a server of a shape.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub async fn of(shape: Shape, target: SocketAddr) -> io::Result<Self> {
        let wire_version = match shape {
            Shape::AmazonDocumentDb => Some(13),
            Shape::AtlasFlex | Shape::CosmosRu | Shape::DocumentDbOnPostgres | Shape::EarlyDocumentDbOnPostgres => None,
        };
        Self::with_wire_version(target, wire_version, move |command| shape.refusal(command)).await
    }
}

/// A server that is not all of MongoDB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Shape {
    /// Amazon DocumentDB 5.0: no pipeline updates, no `$$NOW`.
    AmazonDocumentDb,
    /// MongoDB Atlas Flex: no change streams, refused with a code of Atlas.
    AtlasFlex,
    /// Azure Cosmos DB for MongoDB by request units: no pipeline updates, and neither `$$NOW` nor
    /// `$$CLUSTER_TIME`.
    CosmosRu,
    /// DocumentDB on PostgreSQL since 0.108, which is also FerretDB 2 and Cosmos DB by vCores: no
    /// change streams.
    DocumentDbOnPostgres,
    /// The same before 0.108: no `$$NOW` either.
    EarlyDocumentDbOnPostgres,
}

impl Shape {
    fn refusal(self, command: &Document) -> Option<Document> {
        let error = |code: i32, name: &str, text: &str| Some(doc! { "code": code, "codeName": name, "errmsg": text });
        let (opens_stream, pipeline) = (opens_stream(command), has_pipeline(command));
        let names = |variable: &str| contains(command, &|text| text == variable);
        match self {
            Self::AtlasFlex if opens_stream => error(
                8000,
                "AtlasError",
                "$changeStream is not allowed or the syntax is incorrect, see the Atlas documentation for more information",
            ),
            Self::AmazonDocumentDb if pipeline => error(9, "FailedToParse", "Expected type object but found array"),
            Self::CosmosRu if pipeline => {
                error(9, "FailedToParse", "Argument to update must be a document of operators or a replacement")
            }
            Self::AmazonDocumentDb | Self::CosmosRu | Self::EarlyDocumentDbOnPostgres if names("$$NOW") => {
                error(17276, "Location17276", "Use of undefined variable: NOW")
            }
            Self::AmazonDocumentDb | Self::CosmosRu if names("$$CLUSTER_TIME") => {
                error(17276, "Location17276", "Use of undefined variable: CLUSTER_TIME")
            }
            Self::DocumentDbOnPostgres | Self::EarlyDocumentDbOnPostgres if opens_stream => {
                error(115, "CommandNotSupported", "Stage $changeStream is not supported yet in native pipeline")
            }
            _ => None,
        }
    }
}

fn opens_stream(command: &Document) -> bool {
    let stages = command.get_array("pipeline").into_iter().flatten();
    stages.filter_map(Bson::as_document).any(|stage| stage.contains_key("$changeStream"))
}

/// Whether a command updates by a pipeline.
fn has_pipeline(command: &Document) -> bool {
    let statements = command.get_array("updates").into_iter().flatten();
    command.get_array("update").is_ok()
        || statements.filter_map(Bson::as_document).any(|update| update.get_array("u").is_ok())
}

/// Whether a string anywhere in a document meets a condition.
fn contains(document: &Document, condition: &dyn Fn(&str) -> bool) -> bool {
    fn within(value: &Bson, condition: &dyn Fn(&str) -> bool) -> bool {
        match value {
            Bson::String(text) => condition(text),
            Bson::Array(values) => values.iter().any(|value| within(value, condition)),
            Bson::Document(document) => contains(document, condition),
            _ => false,
        }
    }
    document.values().any(|value| within(value, condition))
}
