//! Servers as local processes.

use std::fs::OpenOptions;
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use distlock_conformance::LocalServer;
use futures_util::future::try_join_all;
use mongodb::bson::doc;
use tokio::time::{Instant, sleep};

use super::mongod::{self, COMMON_ARGUMENTS};
use super::replica_set;
use crate::topology::Topology;

const GUARD: &str = include_str!("guard.sh");
const START_LIMIT: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(20);
/// `mongod` ends with this status if it cannot listen.
const PORT_TAKEN: i32 = 48;
const PORTS_TRIED: u32 = 5;
/// The first user of a server with access control.
const ADMINISTRATOR: &str = "admin";

/// A `mongod` that ends, and whose data is removed, with this value or with this process (see
/// `guard.sh`).
pub(super) struct Process {
    /// Holds the pipe: dropping it is the order to stop.
    guard: Child,
    address: String,
}

impl Process {
    /// Stops the server and waits until its data is removed.
    pub(super) fn stop(mut self) {
        drop(self.guard.stdin.take());
        let _ = self.guard.wait();
    }
}

/// The servers, their connection string, and a description.
pub(super) type Started = (Vec<Process>, String, String);

/// Starts a standalone or a replica set of `nodes` members.
pub(super) async fn start(topology: Topology, nodes: u8) -> Result<Started, String> {
    let (program, version) = find().await?;
    let nodes = if topology == Topology::ReplicaSet { nodes } else { 1 };
    let processes = try_join_all((0..nodes).map(|_| launch(&program, topology, Access::Open))).await?;
    let addresses: Vec<_> = processes.iter().map(|process| process.address.clone()).collect();
    let uri = make_ready(topology, &addresses).await?;
    let plural = if nodes == 1 { "" } else { "es" };
    let source = format!("{nodes} local process{plural} of {} ({version})", program.display());
    Ok((processes, uri, source))
}

/// Starts one server with access control. The connection string contains an administrator's
/// credentials.
pub(super) async fn start_controlled(topology: Topology) -> Result<Started, String> {
    let (program, version) = find().await?;
    let process = launch(&program, topology, Access::Controlled).await?;
    let uri = make_controlled(topology, &process.address).await?;
    let source = format!("1 local process of {} ({version}) with access control", program.display());
    Ok((vec![process], uri, source))
}

/// Starts a standalone that requires TLS. The connection string does not name the authority.
pub(super) async fn start_with_tls(tls: TlsFiles<'_>) -> Result<Started, String> {
    let (program, version) = find().await?;
    let process = launch(&program, Topology::Standalone, Access::Tls(tls)).await?;
    let uri = format!("{}&tls=true", replica_set::direct_uri(&process.address));
    let source = format!("1 local process of {} ({version}) with TLS", program.display());
    Ok((vec![process], uri, source))
}

async fn find() -> Result<(PathBuf, String), String> {
    tokio::task::spawn_blocking(mongod::find).await.map_err(|error| error.to_string())?
}

/// The clients that a server accepts.
#[derive(Clone, Copy)]
enum Access<'a> {
    Open,
    /// With credentials, except for the creation of the first user.
    Controlled,
    /// With TLS.
    Tls(TlsFiles<'a>),
}

/// The files of a server with TLS, in PEM format.
#[derive(Clone, Copy)]
pub(super) struct TlsFiles<'a> {
    /// The server's certificate, followed by its private key.
    pub(super) certificate_key: &'a Path,
    /// The certificate of the authority that issued it.
    pub(super) authority: &'a Path,
}

/// Uses the localhost exception: until there is a user, a local client may initiate the set and
/// create the first one.
async fn make_controlled(topology: Topology, address: &str) -> Result<String, String> {
    let uri = replica_set::direct_uri(address);
    let client = replica_set::client(&uri).await?;
    let password = format!("{:016x}", fastrand::u64(..));
    let ready = async {
        if topology == Topology::ReplicaSet {
            replica_set::initiate(&client, &[address.to_owned()]).await?;
            replica_set::wait_until_primary(&client).await?;
        }
        let user = doc! { "createUser": ADMINISTRATOR, "pwd": &password, "roles": ["root"] };
        replica_set::admin(&client, user).await
    };
    let ready = ready.await;
    client.shutdown().await;
    ready.map(|_| uri.replacen("mongodb://", &format!("mongodb://{ADMINISTRATOR}:{password}@"), 1))
}

async fn make_ready(topology: Topology, addresses: &[String]) -> Result<String, String> {
    let first = replica_set::direct_uri(&addresses[0]);
    if topology == Topology::Standalone {
        return Ok(first);
    }
    let client = replica_set::client(&first).await?;
    let initiated = replica_set::initiate(&client, addresses).await;
    client.shutdown().await;
    initiated?;

    let uri = replica_set::set_uri(addresses);
    let client = replica_set::client(&uri).await?;
    let writable = replica_set::wait_until_writable(&client).await;
    client.shutdown().await;
    writable.map(|()| uri)
}

async fn launch(program: &Path, topology: Topology, access: Access<'_>) -> Result<Process, String> {
    for _ in 0..PORTS_TRIED {
        match launch_once(program, topology, access).await? {
            Some(process) => return Ok(process),
            None => continue,
        }
    }
    Err(format!("other programs took {PORTS_TRIED} free ports before mongod could listen"))
}

/// Writes a key file, which the server accepts only if no other user may read it.
fn write_key(path: &Path) -> std::io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    write!(file, "{:016x}{:016x}", fastrand::u64(..), fastrand::u64(..))
}

/// Starts a server on a free port. Returns `None` if another program took the port first.
async fn launch_once(program: &Path, topology: Topology, access: Access<'_>) -> Result<Option<Process>, String> {
    let failed = |error: std::io::Error| format!("cannot start mongod: {error}");
    let port = LocalServer::free_port().map_err(failed)?;
    let data = mongod::fresh_dir().map_err(failed)?;
    let mut command = Command::new("sh");
    command.args(["-c", GUARD, "guard"]).arg(&data);
    command.arg(program).arg("--dbpath").arg(&data);
    command.args(["--bind_ip", "127.0.0.1", "--nounixsocket", "--port", &port.to_string()]);
    command.args(COMMON_ARGUMENTS);
    if topology == Topology::ReplicaSet {
        command.args(["--replSet", replica_set::NAME]);
    }
    match access {
        Access::Open => {}
        Access::Controlled => {
            // Members of a replica set need a key for each other, even a single member.
            let key = data.join("key");
            write_key(&key).map_err(failed)?;
            command.arg("--auth").arg("--keyFile").arg(key);
        }
        Access::Tls(TlsFiles { certificate_key, authority }) => {
            command.args(["--tlsMode", "requireTLS", "--tlsAllowConnectionsWithoutCertificates"]);
            command.arg("--tlsCertificateKeyFile").arg(certificate_key).arg("--tlsCAFile").arg(authority);
        }
    }
    // A separate process group: Ctrl-C reaches only the tests, and their end stops the server in
    // order.
    command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let guard = command.spawn().map_err(|error| {
        let _ = std::fs::remove_dir_all(&data);
        failed(error)
    })?;
    let mut process = Process { guard, address: format!("127.0.0.1:{port}") };

    let deadline = Instant::now() + START_LIMIT;
    let log = data.join("mongod.log");
    while Instant::now() < deadline {
        // Its own log, not its port: another server may listen there.
        if std::fs::read_to_string(&log).is_ok_and(|log| log.contains("Waiting for connections")) {
            return Ok(Some(process));
        }
        if let Some(status) = process.guard.try_wait().map_err(failed)? {
            if status.code() == Some(PORT_TAKEN) {
                return Ok(None);
            }
            let mut last_words = String::new();
            if let Some(mut stdout) = process.guard.stdout.take() {
                let _ = stdout.read_to_string(&mut last_words);
            }
            return Err(format!("mongod ended at once ({status}): {}", last_words.trim()));
        }
        sleep(POLL).await;
    }
    Err(format!("mongod does not listen after {} s", START_LIMIT.as_secs()))
}
