//! What the driver knows of its servers, for people: why none can be used.
//!
//! The driver tells it in the error that ends its own choice of a server, after 30 s by default; a
//! request of ours is over long before. It shows the same in its debug output, and nowhere else. If that
//! looks otherwise one day, errors say less.

use std::fmt;
use std::time::Duration;

use mongodb::Client;
use tokio::time::{Instant, sleep};

/// How often a client is looked at while no server can be chosen. The driver asks each server again
/// after half a second.
const LOOK: Duration = Duration::from_millis(250);
/// For so long every server must have refused, so that the driver has asked each of them again.
const FOR_GOOD: Duration = Duration::from_millis(1500);

/// The servers of a client, and what the driver's last question to each ended in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Seen(Vec<Server>);

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
        Self(servers.collect())
    }

    /// Whether each server refuses connections, or its name is unknown.
    fn is_refusal(&self) -> bool {
        let refuses = |server: &Server| {
            let error = server.error.as_deref().unwrap_or_default();
            ["ConnectionRefused", "failed to lookup", "no record found", "Name or service not known"]
                .iter()
                .any(|sign| error.contains(sign))
        };
        !self.0.is_empty() && self.0.iter().all(refuses)
    }

    /// Whether a server has refused the client's credentials.
    pub(super) fn is_denial(&self) -> bool {
        self.0.iter().any(|server| server.error.as_deref().is_some_and(|error| error.starts_with("Authentication")))
    }

    /// What is wrong with the servers; none if each has answered.
    pub(super) fn trouble(&self) -> Option<String> {
        let is_trouble = self.0.is_empty() || self.0.iter().any(|server| server.error.is_some());
        is_trouble.then(|| self.to_string())
    }
}

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str(
                "no server is left: those that the connection string names belong to another replica set \
                 (`replicaSet=…`), or to none",
            );
        }
        for (index, Server { address, error }) in self.0.iter().enumerate() {
            let separator = if index == 0 { "" } else { "; " };
            match error {
                Some(error) => write!(f, "{separator}{address}: {error}")?,
                None => write!(f, "{separator}{address}: no error")?,
            }
        }
        Ok(())
    }
}

impl std::error::Error for Seen {}

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
        assert_eq!(seen.0.len(), 2, "{seen}");
        let text = seen.trouble().unwrap();
        assert!(text.contains("127.0.0.1:1: ") && text.contains("127.0.0.1:2: "), "{text}");
        assert!(text.contains("refused"), "{text}");
        let seen =
            seen_after("mongodb://no-such-host.invalid:5/", |seen| seen.0.iter().any(|s| s.error.is_some())).await;
        assert!(seen.is_refusal(), "{seen}");
    }

    #[tokio::test]
    async fn a_server_that_has_not_been_asked_refuses_nothing() {
        let client = Client::with_options(ClientOptions::parse("mongodb://127.0.0.1:1/").await.unwrap()).unwrap();
        assert!(!Seen::by(&client).is_refusal());
    }

    #[test]
    fn without_servers_or_in_another_form() {
        assert!(Seen::default().trouble().unwrap().contains("replicaSet"));
        let other = Seen::read(
            "ServerDescription { address: Unix { path: \"/tmp/x\" }, reply: Err(Error { kind: Io, labels: {} })",
        );
        assert_eq!(other, Seen::default());
    }
}
