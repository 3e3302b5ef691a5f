//! A replica set: the user's, or one that is started for this run.

use distlock_conformance_mongo::{MongoServer, Topology};
use distlock_mongo::mongodb::Client;

use crate::Failure;

/// A MongoDB replica set for one run of an example. One that was started here ends with this value.
#[derive(Debug)]
#[must_use = "a server that was started ends when this is dropped"]
pub struct Database {
    uri: String,
    name: String,
    started: Option<MongoServer>,
}

impl Database {
    /// Uses the server of the user, or finds or starts one as the tests of this project do: a
    /// container, else a local `mongod`, else a fetched one. One line on standard error says which.
    /// The database's name is new each time, so that runs do not meet.
    ///
    /// # Errors
    /// If no server can be had; the message says what was tried.
    pub async fn open(given: Option<&str>, program: &str) -> Result<Self, Failure> {
        let name = format!("distlock_{program}_{:08x}", fastrand::u32(..));
        Ok(match given {
            Some(uri) => Self { uri: uri.to_owned(), name, started: None },
            None => {
                let server = MongoServer::start(Topology::ReplicaSet).await?;
                Self { uri: server.uri().to_owned(), name, started: Some(server) }
            }
        })
    }

    /// The connection string, for processes of one's own.
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
    /// If the connection string is none. Its text is not told, since it may hold a password.
    pub async fn client(uri: &str) -> Result<Client, Failure> {
        Client::with_uri_str(uri).await.map_err(|error| format!("not a MongoDB URI: {}", error.kind).into())
    }

    /// Removes what the run has written, and ends the server if it was started here.
    ///
    /// # Errors
    /// If a server of the user's cannot be reached any more.
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
