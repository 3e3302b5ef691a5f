//! The driver's knowledge of its servers: whether one takes writes, and why none can be used.
//!
//! The driver reports this in the error that ends its own choice of a server, after 30 s by
//! default. Our requests end long before, and could not know then whether they were sent. Apart
//! from that error, only the debug output of the client shows it. If its form changes one day,
//! errors contain less.
//!
//! The debug output is long, so it is read only when [`Reachability`] is uncertain: the last call
//! was not answered, or there has been no call for a while. For callers that leave before an answer
//! it is read at most once per [`RECENT`].

use std::fmt;
use std::pin::pin;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use mongodb::Client;
use mongodb::bson::doc;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};

/// How often the client is read while no server can be chosen. The driver checks each server again
/// after half a second.
const LOOK: Duration = Duration::from_millis(250);
/// How long every server must have refused, so that the driver has checked each of them again.
const FOR_GOOD: Duration = Duration::from_millis(1500);

/// How long an answer proves that the servers can be reached. The driver's own interval.
const FRESH: Duration = Duration::from_secs(10);
/// How often it is checked whether there is a server for a call, by one call for all of a client.
/// After an election each write may take until the next heartbeat of the members, so a call that
/// comes a moment too late waits 2 s longer.
const WAIT: Duration = Duration::from_millis(5);
/// How often the others see whether that one still checks: its caller may have stopped polling it.
const WATCH: Duration = Duration::from_millis(50);

/// How long the driver's first check of the servers may take, after its choice of one has ended.
const FIRST_CHECK: Duration = Duration::from_secs(1);

/// How old the servers of the error of a caller may be that leaves: many leave at the same time.
const RECENT: Duration = Duration::from_millis(50);

/// When a client's servers were last known to be reachable.
#[derive(Debug)]
pub(crate) struct Reachability {
    start: std::time::Instant,
    /// Milliseconds since `start`, of the last answer; zero if a later call was not answered.
    answered: AtomicU64,
    /// Milliseconds since `start`, of the last check whether there is a server.
    checked: AtomicU64,
    /// Notified when a check has found one.
    found: Notify,
    /// The servers for callers that leave, and when they were read.
    last: Mutex<Option<(std::time::Instant, Servers)>>,
}

impl Default for Reachability {
    fn default() -> Self {
        let start = std::time::Instant::now();
        Self {
            start,
            answered: AtomicU64::new(0),
            checked: AtomicU64::new(0),
            found: Notify::new(),
            last: Mutex::default(),
        }
    }
}

impl Reachability {
    /// Records that a server has answered.
    pub(crate) fn answered(&self) {
        self.answered.store(self.millis().max(1), Ordering::Relaxed);
    }

    /// Records that a call was not answered.
    pub(crate) fn unanswered(&self) {
        self.answered.store(0, Ordering::Relaxed);
    }

    /// Returns whether a call may be made without a check: the last one was answered, and not long
    /// ago.
    pub(crate) fn is_certain(&self) -> bool {
        let answered = self.answered.load(Ordering::Relaxed);
        answered > 0 && self.millis() - answered.min(self.millis()) < u64::try_from(FRESH.as_millis()).expect("small")
    }

    /// Returns the servers as they were at most [`RECENT`] ago.
    pub(super) fn servers(&self, client: &Client) -> Servers {
        let mut last = self.last.lock().expect("no code in here panics");
        match &*last {
            Some((read, servers)) if read.elapsed() < RECENT => servers.clone(),
            _ => {
                let servers = Servers::of(client);
                *last = Some((std::time::Instant::now(), servers.clone()));
                servers
            }
        }
    }

    fn millis(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Waits until a server takes writes, as far as the driver knows. Sends nothing that has an
    /// effect.
    pub(super) async fn server(&self, client: &Client) {
        let mut pinged = pin!(ping(client));
        while !self.is_certain() {
            let found = self.found.notified();
            let is_due = self.is_check_due();
            if is_due && Servers::of(client).can_serve() {
                return self.has_found();
            }
            let waiting = timeout(if is_due { WAIT } else { WATCH }, found);
            tokio::select! {
                () = &mut pinged, if is_due => return self.has_found(),
                _ = waiting => {}
            }
        }
    }

    /// Records that there is a server: certain until the next call is not answered.
    fn has_found(&self) {
        self.answered();
        self.found.notify_waiters();
    }

    /// Returns whether the caller is to check now. The one that has checked does so again.
    fn is_check_due(&self) -> bool {
        let (now, wait) = (self.millis(), u64::try_from(WAIT.as_millis()).expect("small"));
        let check = |last| (now >= last + wait || last == 0).then_some(now.max(1));
        self.checked.fetch_update(Ordering::Relaxed, Ordering::Relaxed, check).is_ok()
    }
}

/// Resolves when a server that takes writes has answered. A command that waits for a server makes
/// the driver check its servers at once. Otherwise it checks one that has failed after ten seconds.
async fn ping(client: &Client) {
    let database = client.database("admin");
    while database.run_command(doc! { "ping": 1 }).await.is_err() {
        sleep(LOOK).await;
    }
}

/// The kinds of servers that take writes, as the driver shows them.
const WRITABLE: [&str; 4] = ["RsPrimary", "Standalone", "Mongos", "LoadBalancer"];

/// The servers of a client, and how the driver's last check of each ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Servers {
    all: Vec<Server>,
    /// Whether a server takes writes.
    has_writable: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Server {
    address: String,
    /// `None` if it answered, or has not been checked yet.
    error: Option<String>,
    is_primary: bool,
}

impl Servers {
    pub(super) fn of(client: &Client) -> Self {
        Self::read(&format!("{client:?}"))
    }

    fn read(shown: &str) -> Self {
        let servers = shown.split("ServerDescription { address: Tcp { host: \"").skip(1).filter_map(|server| {
            let (host, rest) = server.split_once("\", port: ")?;
            let (port, rest) = rest.split_once(" }")?;
            let port = port.strip_prefix("Some(").and_then(|port| port.strip_suffix(')')).unwrap_or("27017");
            let error = rest.split_once("reply: Err(Error { kind: ").and_then(|(_, error)| {
                let (kind, _) = error.split_once(", labels: ")?;
                Some(kind.to_owned())
            });
            Some(Server {
                address: format!("{host}:{port}"),
                error,
                is_primary: rest.contains("server_type: RsPrimary"),
            })
        });
        let has_writable = WRITABLE.iter().any(|kind| shown.contains(&format!("server_type: {kind}")));
        Self { all: servers.collect(), has_writable }
    }

    /// Returns whether a server takes writes. If the driver shows something that cannot be read,
    /// assume so.
    pub(super) fn can_serve(&self) -> bool {
        self.has_writable || self.all.is_empty()
    }

    /// Returns the address of the primary of the replica set.
    fn primary(self) -> Option<String> {
        self.all.into_iter().find(|server| server.is_primary).map(|server| server.address)
    }

    /// Returns whether each server refuses connections, or its name cannot be resolved.
    fn refuse_connections(&self) -> bool {
        self.all_fail_with(&["ConnectionRefused", "failed to lookup", "no record found", "Name or service not known"])
    }

    /// Returns whether the TLS handshake with each server fails by its certificate, or by the
    /// client's options.
    pub(super) fn fail_tls(&self) -> bool {
        self.all_fail_with(&["InvalidCertificate", "invalid peer certificate"])
    }

    fn all_fail_with(&self, signs: &[&str]) -> bool {
        let fails = |server: &Server| {
            let error = server.error.as_deref().unwrap_or_default();
            signs.iter().any(|sign| error.contains(sign))
        };
        !self.all.is_empty() && self.all.iter().all(fails)
    }

    /// Returns whether a server has refused the client's credentials.
    pub(super) fn refuse_credentials(&self) -> bool {
        self.all.iter().any(|server| server.error.as_deref().is_some_and(|error| error.starts_with("Authentication")))
    }

    /// Describes why servers cannot be used; `None` if each has answered, and one takes writes.
    pub(super) fn trouble(&self) -> Option<String> {
        let has_trouble = !self.has_writable || self.all.iter().any(|server| server.error.is_some());
        has_trouble.then(|| self.to_string())
    }
}

impl fmt::Display for Servers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.all.is_empty() {
            return write!(f, "no server is left: {OTHER_SET}");
        }
        if self.all.iter().all(|server| server.error.is_none()) {
            f.write_str("no server is known to be the primary: ")?;
        }
        for (index, Server { address, error, .. }) in self.all.iter().enumerate() {
            let separator = if index == 0 { "" } else { "; " };
            match error {
                Some(error) => write!(f, "{separator}{address}: {}", message_of(error))?,
                None => write!(f, "{separator}{address}: no error so far")?,
            }
        }
        Ok(())
    }
}

impl std::error::Error for Servers {}

/// Errors of TLS that the driver shows without a message.
const CERTIFICATE_ERRORS: [(&str, &str); 4] = [
    (
        "UnknownIssuer",
        "the server's certificate is issued by a certificate authority that this client does not know (UnknownIssuer): \
         name the file with the authority's certificate (`tlsCAFile=…`)",
    ),
    (
        "NotValidForName",
        "the server's certificate does not name this host (NotValidForName): connect by a name that it has",
    ),
    ("Expired", "the server's certificate has expired: renew it, and check the clocks of server and client"),
    (
        "CaUsedAsEndEntity",
        "the server presents the certificate of an authority as its own (CaUsedAsEndEntity): give it one that is issued \
         by the authority",
    ),
];

/// The driver does not keep such a server, unless it is connected to directly.
const OTHER_SET: &str = "the hosts of the connection string belong to another replica set than its `replicaSet=…` \
                         names, or to none";
/// What the driver says of such a server that it is connected to directly.
const NAMES_NO_SET: &str = "Connection string replicaSet name";

/// What the driver says when the other side ends the connection instead of a TLS handshake.
const NO_HANDSHAKE: &str = "tls handshake eof";

/// Errors of a connection that the driver shows without a message.
const CONNECTION_ERRORS: [(&str, &str); 4] = [
    (
        "UnexpectedEof",
        "the server ended the connection (UnexpectedEof): if it demands TLS, add `tls=true`; otherwise look at its log",
    ),
    ("ConnectionReset", "the connection was reset (ConnectionReset): if the server demands TLS, add `tls=true`"),
    ("TimedOut", "no answer in time (TimedOut)"),
    ("BrokenPipe", "the server ended the connection (BrokenPipe)"),
];

/// Returns the message of an error that the driver shows in its debug form.
fn message_of(shown: &str) -> &str {
    if shown.contains("InvalidCertificate")
        && let Some((_, message)) = CERTIFICATE_ERRORS.iter().find(|(sign, _)| shown.contains(sign))
    {
        return message;
    }
    if shown.contains(NAMES_NO_SET) {
        return OTHER_SET;
    }
    if shown.contains(NO_HANDSHAKE) {
        return "the server ended the TLS handshake (tls handshake eof): if it does not use TLS, remove `tls=true`";
    }
    let quoted = |name: &str| {
        let (_, rest) = shown.split_once(name)?;
        rest.split_once('"').map(|(message, _)| message)
    };
    let quoted = quoted("message: \"").or_else(|| quoted("error: \"")).filter(|message| !message.is_empty());
    let kind = || shown.strip_prefix("Io(Kind(").and_then(|rest| rest.split(')').next());
    let of_connection = |kind: &str| {
        let known = CONNECTION_ERRORS.iter().find(|(name, _)| *name == kind);
        known.map(|(_, message)| *message)
    };
    quoted.or_else(|| kind().map(|kind| of_connection(kind).unwrap_or(kind))).unwrap_or(shown)
}

/// Returns the servers when the driver knows why none can be used, or after [`FIRST_CHECK`].
pub(super) async fn checked(client: &Client) -> Servers {
    let checked = async {
        loop {
            let servers = Servers::of(client);
            if servers.all.is_empty() || servers.all.iter().any(|server| server.error.is_some()) {
                return servers;
            }
            sleep(WATCH).await;
        }
    };
    timeout(FIRST_CHECK, checked).await.unwrap_or_else(|_| Servers::of(client))
}

/// Resolves when no server can be used and waiting will not help: a server has refused the
/// credentials, or every server has refused connections or failed TLS for a while.
pub(super) async fn unusable_for_good(client: &Client) -> Servers {
    let mut since = None;
    loop {
        // If a server can be chosen, it answers meanwhile.
        sleep(LOOK).await;
        let servers = Servers::of(client);
        if servers.refuse_credentials() {
            return servers;
        }
        if !servers.refuse_connections() && !servers.fail_tls() {
            since = None;
        } else if since.get_or_insert_with(Instant::now).elapsed() >= FOR_GOOD {
            return servers;
        }
    }
}

/// Resolves when another server has become the primary since a call was sent. The old one may be
/// frozen, and would keep the call until its limit.
///
/// Only calls that take long look: reading the client costs more than most calls.
pub(crate) async fn primary_replaced(client: &Client) {
    let mut before = None;
    loop {
        sleep(LOOK).await;
        let now = Servers::of(client).primary();
        if now.is_some() && before.as_ref().is_some_and(|before| Some(before) != now.as_ref()) {
            return;
        }
        before = before.or(now);
    }
}

#[cfg(test)]
mod tests {
    use mongodb::options::ClientOptions;

    use super::*;

    async fn servers_after(uri: &str, enough: fn(&Servers) -> bool) -> Servers {
        let mut options = ClientOptions::parse(uri).await.unwrap();
        options.server_selection_timeout = Some(Duration::from_secs(20));
        let client = Client::with_options(options).unwrap();
        let database = client.database("admin");
        let command = tokio::spawn(async move { database.run_command(doc! { "hello": 1 }).await });
        let servers = async {
            loop {
                let servers = Servers::of(&client);
                if enough(&servers) {
                    return servers;
                }
                sleep(Duration::from_millis(20)).await;
            }
        };
        let servers = timeout(Duration::from_secs(20), servers).await.expect("the driver shows it");
        command.abort();
        servers
    }

    #[tokio::test]
    async fn the_driver_shows_why_a_server_cannot_be_used() {
        let servers = servers_after("mongodb://127.0.0.1:1,127.0.0.1:2/", Servers::refuse_connections).await;
        assert_eq!(servers.all.len(), 2, "{servers}");
        let text = servers.trouble().unwrap();
        assert!(text.contains("127.0.0.1:1: ") && text.contains("127.0.0.1:2: "), "{text}");
        assert!(text.contains("refused"), "{text}");
        let has_error = |servers: &Servers| servers.all.iter().any(|server| server.error.is_some());
        let servers = servers_after("mongodb://no-such-host.invalid:5/", has_error).await;
        assert!(servers.refuse_connections(), "{servers}");
    }

    #[tokio::test]
    async fn a_server_that_has_not_been_checked_refuses_nothing() {
        let client = Client::with_options(ClientOptions::parse("mongodb://127.0.0.1:1/").await.unwrap()).unwrap();
        assert!(!Servers::of(&client).refuse_connections());
    }

    #[test]
    fn errors_are_shown_by_their_message() {
        for (shown, message) in [
            (r#"Io(Os { code: 111, kind: ConnectionRefused, message: "Connection refused" })"#, "Connection refused"),
            (r#"Io(Custom { kind: InvalidData, error: "a reason" })"#, "a reason"),
            (
                r#"Authentication { message: "SCRAM failure: Authentication failed." }"#,
                "SCRAM failure: Authentication failed.",
            ),
            ("Io(Kind(TimedOut))", "no answer in time (TimedOut)"),
            ("Io(Kind(HostUnreachable))", "HostUnreachable"),
        ] {
            assert_eq!(message_of(shown), message);
        }
        let other = r#"Authentication { message: "Connection string replicaSet name \"rs0\" does not match" }"#;
        assert_eq!(message_of(other), OTHER_SET);
        let unknown = message_of("Io(Custom { kind: InvalidData, error: InvalidCertificate(UnknownIssuer) })");
        assert!(unknown.contains("does not know") && unknown.contains("tlsCAFile"), "{unknown}");
        let plain = message_of(r#"Io(Custom { kind: UnexpectedEof, error: "tls handshake eof" })"#);
        assert!(plain.contains("(tls handshake eof)") && plain.contains("tls=true"), "{plain}");
    }

    #[test]
    fn a_set_without_a_primary_takes_no_writes() {
        let set = |kinds: [&str; 2]| {
            let server = |(port, kind): (usize, &str)| {
                format!(
                    "ServerDescription {{ address: Tcp {{ host: \"h\", port: Some({port}) }}, server_type: {kind}, \
                     reply: Ok(None) }}"
                )
            };
            Servers::read(&kinds.into_iter().enumerate().map(server).collect::<Vec<_>>().join(", "))
        };
        assert!(set(["RsSecondary", "RsPrimary"]).can_serve());
        assert_eq!(set(["RsSecondary", "RsPrimary"]).trouble(), None);
        assert_eq!(set(["RsSecondary", "RsPrimary"]).primary().unwrap(), "h:1");
        assert_eq!(set(["Mongos", "Unknown"]).primary(), None, "another one does not replace it");
        assert_eq!(set(["RsSecondary", "Unknown"]).primary(), None);
        let without = set(["RsSecondary", "RsSecondary"]);
        assert!(!without.can_serve());
        let trouble = "no server is known to be the primary: h:0: no error so far; h:1: no error so far";
        assert_eq!(without.trouble().unwrap(), trouble);
    }

    #[tokio::test]
    async fn a_call_without_an_answer_ends_certainty() {
        let reachability = Reachability::default();
        assert!(!reachability.is_certain(), "nothing has been sent yet");
        reachability.answered();
        assert!(reachability.is_certain());
        reachability.unanswered();
        assert!(!reachability.is_certain());
    }

    #[test]
    fn an_unknown_form_means_that_a_server_takes_writes() {
        assert!(Servers::default().trouble().unwrap().contains("replicaSet"));
        let other = Servers::read(
            "ServerDescription { address: Unix { path: \"/tmp/x\" }, reply: Err(Error { kind: Io, labels: {} })",
        );
        assert_eq!(other, Servers::default());
        assert!(other.can_serve());
    }
}
