//! A replica set: the user's own, or one that is started for this run.

use distlock_conformance_mongo::{MongoServer, Topology};
use distlock_mongo::mongodb::Client;

use crate::Failure;

/// A MongoDB replica set for one run of an example. A server that was started here ends with this
/// value.
#[derive(Debug)]
#[must_use = "a server that was started ends when this is dropped"]
pub struct Database {
    uri: String,
    name: String,
    started: Option<MongoServer>,
}

impl Database {
    /// Uses the server of the user. Without one it starts a server as the tests of this project do:
    /// a container, else a local `mongod`, else a fetched one. One line on standard error says
    /// which. Each run has a database of its own, so that runs do not disturb each other.
    ///
    /// # Errors
    /// If the connection string is invalid, or no server can be found or started. The message says
    /// what was tried.
    pub async fn open(given: Option<&str>, program: &str) -> Result<Self, Failure> {
        let name = format!("distlock_{program}_{:08x}", fastrand::u32(..));
        Ok(match given {
            Some(uri) => {
                // A clear error before anything starts.
                Self::client(uri).await?;
                Self { uri: uri.to_owned(), name, started: None }
            }
            None => {
                let server = MongoServer::start(Topology::ReplicaSet).await?;
                Self { uri: server.uri().to_owned(), name, started: Some(server) }
            }
        })
    }

    /// The connection string, for child processes.
    #[must_use]
    pub fn uri(&self) -> &str {
        &self.uri
    }

    /// The name of this run's database.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A client of the server.
    ///
    /// # Errors
    /// If the connection string is invalid. The message does not quote it, since it may contain a
    /// password.
    pub async fn client(uri: &str) -> Result<Client, Failure> {
        Client::with_uri_str(uri).await.map_err(|error| format!("not a MongoDB URI: {}", error.kind).into())
    }

    /// Removes what the run has written, and ends the server if it was started here.
    ///
    /// # Errors
    /// If the user's server can no longer be reached.
    pub async fn close(self) -> Result<(), Failure> {
        match self.started {
            Some(server) => server.stop().await,
            None => {
                let client = Self::client(&self.uri).await?;
                client.database(&self.name).drop().await?;
                client.shutdown().await;
            }
        }
        Ok(())
    }
}
