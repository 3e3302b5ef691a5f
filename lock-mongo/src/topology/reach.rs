//! What the driver knows of its servers: whether one takes writes, and why none can be used.
//!
//! The driver reports it in the error that ends its own choice of a server, after 30 s by default.
//! A request of ours is over long before, and cannot tell then whether it was sent. The driver
//! shows the same in its debug output, and nowhere else. If that looks otherwise one day, errors
//! say less.
//!
//! The debug output is long, so it is read only when there is [`doubt`](Reachability): a call was
//! not answered, or none has been for a while.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use mongodb::Client;
use tokio::time::{Instant, sleep};

/// How often a client is looked at while no server can be chosen. The driver asks each server again
/// after half a second.
const LOOK: Duration = Duration::from_millis(250);
/// For so long every server must have refused, so that the driver has asked each of them again.
const FOR_GOOD: Duration = Duration::from_millis(1500);

/// For so long an answer shows that the servers can be reached. The driver's own interval.
const FRESH: Duration = Duration::from_secs(10);
/// How often a call looks whether there is a server for it. All calls of a client share the looks.
const WAIT: Duration = Duration::from_millis(50);

/// When a client's servers were last known to be reachable.
#[derive(Debug)]
pub(crate) struct Reachability {
    start: std::time::Instant,
    /// Milliseconds since `start`, of the last answer; zero if a later call was not answered.
    answered: AtomicU64,
    looked: Mutex<Option<(Instant, Seen)>>,
}

impl Default for Reachability {
    fn default() -> Self {
        Self { start: std::time::Instant::now(), answered: AtomicU64::new(0), looked: Mutex::default() }
    }
}

impl Reachability {
    /// Records that a server has answered.
    pub(crate) fn answered(&self) {
        self.answered.store(self.millis().max(1), Ordering::Relaxed);
    }

    /// Records that a call was not answered.
    pub(crate) fn doubt(&self) {
        self.answered.store(0, Ordering::Relaxed);
    }

    /// Whether calls may be made without a look: the last one was answered, and not long ago.
    pub(crate) fn is_certain(&self) -> bool {
        let answered = self.answered.load(Ordering::Relaxed);
        answered > 0 && self.millis() - answered.min(self.millis()) < u64::try_from(FRESH.as_millis()).expect("small")
    }

    fn millis(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// The servers as they were seen a moment ago, or are now.
    fn look(&self, client: &Client) -> Seen {
        let mut looked = self.looked.lock().unwrap_or_else(PoisonError::into_inner);
        match &*looked {
            Some((at, seen)) if at.elapsed() < WAIT * 9 / 10 => seen.clone(),
            _ => looked.insert((Instant::now(), Seen::by(client))).1.clone(),
        }
    }

    /// Waits until a server takes writes, as far as the driver knows. Sends nothing.
    pub(super) async fn server(&self, client: &Client) {
        while !self.look(client).can_serve() {
            sleep(WAIT).await;
        }
        // Certain until the next call is not answered.
        self.answered();
    }
}

/// The kinds of servers that take writes, as the driver shows them.
const WRITABLE: [&str; 4] = ["RsPrimary", "Standalone", "Mongos", "LoadBalancer"];

/// The servers of a client, and how the driver's last check of each ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Seen {
    servers: Vec<Server>,
    /// Whether some server takes writes.
    is_served: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Server {
    address: String,
    /// None if it answered, or has not been asked yet.
    error: Option<String>,
}

impl Seen {
    pub(super) fn by(client: &Client) -> Self {
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
            Some(Server { address: format!("{host}:{port}"), error })
        });
        let is_served = WRITABLE.iter().any(|kind| shown.contains(&format!("server_type: {kind}")));
        Self { servers: servers.collect(), is_served }
    }

    /// Whether a server takes writes. In doubt, because the driver shows something else, it does.
    pub(super) fn can_serve(&self) -> bool {
        self.is_served || self.servers.is_empty()
    }

    /// Whether each server refuses connections, or its name is unknown.
    fn is_refusal(&self) -> bool {
        let refuses = |server: &Server| {
            let error = server.error.as_deref().unwrap_or_default();
            ["ConnectionRefused", "failed to lookup", "no record found", "Name or service not known"]
                .iter()
                .any(|sign| error.contains(sign))
        };
        !self.servers.is_empty() && self.servers.iter().all(refuses)
    }

    /// Whether a server has refused the client's credentials.
    pub(super) fn is_denial(&self) -> bool {
        self.servers
            .iter()
            .any(|server| server.error.as_deref().is_some_and(|error| error.starts_with("Authentication")))
    }

    /// What is wrong with the servers; none if each has answered.
    pub(super) fn trouble(&self) -> Option<String> {
        let is_trouble = !self.is_served || self.servers.iter().any(|server| server.error.is_some());
        is_trouble.then(|| self.to_string())
    }
}

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.servers.is_empty() {
            return f.write_str(
                "no server is left: those that the connection string names belong to another replica set \
                 (`replicaSet=…`), or to none",
            );
        }
        if self.servers.iter().all(|server| server.error.is_none()) {
            f.write_str("no server is the primary: ")?;
        }
        for (index, Server { address, error }) in self.servers.iter().enumerate() {
            let separator = if index == 0 { "" } else { "; " };
            match error {
                Some(error) => write!(f, "{separator}{address}: {}", plain(error))?,
                None => write!(f, "{separator}{address}: no error")?,
            }
        }
        Ok(())
    }
}

impl std::error::Error for Seen {}

/// The words in an error as the driver shows it: those of its message, if it has one.
fn plain(shown: &str) -> &str {
    let quoted = |name: &str| {
        let (_, rest) = shown.split_once(name)?;
        rest.split_once('"').map(|(words, _)| words)
    };
    quoted("message: \"").or_else(|| quoted("error: \"")).filter(|words| !words.is_empty()).unwrap_or(shown)
}

/// Resolves while no server can be chosen and waiting will not help: every server has refused
/// connections for a while, or one has refused the credentials.
pub(super) async fn hopeless(client: &Client) -> Seen {
    let mut since = None;
    loop {
        // A server that can be chosen answers meanwhile.
        sleep(LOOK).await;
        let seen = Seen::by(client);
        if seen.is_denial() {
            return seen;
        }
        if !seen.is_refusal() {
            since = None;
        } else if since.get_or_insert_with(Instant::now).elapsed() >= FOR_GOOD {
            return seen;
        }
    }
}

#[cfg(test)]
mod tests {
    use mongodb::bson::doc;
    use mongodb::options::ClientOptions;

    use super::*;

    async fn seen_after(uri: &str, enough: fn(&Seen) -> bool) -> Seen {
        let mut options = ClientOptions::parse(uri).await.unwrap();
        options.server_selection_timeout = Some(Duration::from_secs(20));
        let client = Client::with_options(options).unwrap();
        let database = client.database("admin");
        let asked = tokio::spawn(async move { database.run_command(doc! { "hello": 1 }).await });
        let seen = async {
            loop {
                let seen = Seen::by(&client);
                if enough(&seen) {
                    return seen;
                }
                sleep(Duration::from_millis(20)).await;
            }
        };
        let seen = tokio::time::timeout(Duration::from_secs(20), seen).await.expect("the driver shows it");
        asked.abort();
        seen
    }

    #[tokio::test]
    async fn the_driver_shows_why_a_server_cannot_be_used() {
        let seen = seen_after("mongodb://127.0.0.1:1,127.0.0.1:2/", |seen| seen.is_refusal()).await;
        assert_eq!(seen.servers.len(), 2, "{seen}");
        let text = seen.trouble().unwrap();
        assert!(text.contains("127.0.0.1:1: ") && text.contains("127.0.0.1:2: "), "{text}");
        assert!(text.contains("refused"), "{text}");
        let seen =
            seen_after("mongodb://no-such-host.invalid:5/", |seen| seen.servers.iter().any(|s| s.error.is_some()))
                .await;
        assert!(seen.is_refusal(), "{seen}");
    }

    #[tokio::test]
    async fn a_server_that_has_not_been_asked_refuses_nothing() {
        let client = Client::with_options(ClientOptions::parse("mongodb://127.0.0.1:1/").await.unwrap()).unwrap();
        assert!(!Seen::by(&client).is_refusal());
    }

    #[test]
    fn errors_are_shown_in_their_own_words() {
        for (shown, words) in [
            (r#"Io(Os { code: 111, kind: ConnectionRefused, message: "Connection refused" })"#, "Connection refused"),
            (r#"Io(Custom { kind: InvalidData, error: "tls handshake eof" })"#, "tls handshake eof"),
            (
                r#"Authentication { message: "SCRAM failure: Authentication failed." }"#,
                "SCRAM failure: Authentication failed.",
            ),
            ("Io(Kind(TimedOut))", "Io(Kind(TimedOut))"),
        ] {
            assert_eq!(plain(shown), words);
        }
    }

    #[test]
    fn a_set_without_a_primary_does_not_serve() {
        let set = |kinds: [&str; 2]| {
            let server = |(port, kind): (usize, &str)| {
                format!(
                    "ServerDescription {{ address: Tcp {{ host: \"h\", port: Some({port}) }}, server_type: {kind}, \
                     reply: Ok(None) }}"
                )
            };
            Seen::read(&kinds.into_iter().enumerate().map(server).collect::<Vec<_>>().join(", "))
        };
        assert!(set(["RsSecondary", "RsPrimary"]).can_serve());
        assert_eq!(set(["RsSecondary", "RsPrimary"]).trouble(), None);
        let without = set(["RsSecondary", "RsSecondary"]);
        assert!(!without.can_serve());
        assert_eq!(without.trouble().unwrap(), "no server is the primary: h:0: no error; h:1: no error");
    }

    #[tokio::test]
    async fn certainty_ends_with_a_call_that_is_not_answered() {
        let reachability = Reachability::default();
        assert!(!reachability.is_certain(), "nothing has been sent yet");
        reachability.answered();
        assert!(reachability.is_certain());
        reachability.doubt();
        assert!(!reachability.is_certain());
    }

    #[test]
    fn without_servers_or_in_another_form() {
        assert!(Seen::default().trouble().unwrap().contains("replicaSet"));
        let other = Seen::read(
            "ServerDescription { address: Unix { path: \"/tmp/x\" }, reply: Err(Error { kind: Io, labels: {} })",
        );
        assert_eq!(other, Seen::default());
        assert!(other.can_serve(), "in doubt");
    }
}
