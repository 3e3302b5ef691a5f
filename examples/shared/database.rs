//! A replica set: the user's own, or one that is started for this run.

use distlock_conformance_mongo::{MongoServer, Topology};
use distlock_mongo::mongodb::bson::doc;
use distlock_mongo::mongodb::options::ClientOptions;
use distlock_mongo::mongodb::{self, Client};
use serde::{Deserialize, Serialize};

use crate::Failure;

/// Where a run keeps its data. Child processes get it as a part of theirs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Place {
    uri: String,
    database: String,
}

impl Place {
    /// Opens the database, with a client of its own.
    ///
    /// # Errors
    /// If the connection string is invalid. The message does not quote it, since it may contain a
    /// password.
    pub async fn open(&self) -> Result<mongodb::Database, Failure> {
        self.open_with(|_| {}).await
    }

    /// As [`open`](Self::open), with changed options.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub async fn open_with(&self, change: impl FnOnce(&mut ClientOptions)) -> Result<mongodb::Database, Failure> {
        let unusable = |error: mongodb::error::Error| format!("not a MongoDB URI: {}", error.kind);
        let mut options = ClientOptions::parse(&self.uri).await.map_err(unusable)?;
        change(&mut options);
        Ok(Client::with_options(options).map_err(unusable)?.database(&self.database))
    }
}

/// Ends the client of a database. The driver's tasks must have ended before the runtime does.
pub async fn shut_down(database: mongodb::Database) {
    database.client().clone().shutdown().await;
}

/// A MongoDB replica set for one run of an example. A server that was started here ends with this
/// value.
#[derive(Debug)]
#[must_use = "a server that was started ends when this is dropped"]
pub struct Database {
    /// Each run has a database of its own, so that runs do not disturb each other.
    pub place: Place,
    started: Option<MongoServer>,
}

impl Database {
    /// Uses the server of the user. Without one it starts a server as the tests of this project do:
    /// a container, else a local `mongod`, else a fetched one. One line on standard error says
    /// which.
    ///
    /// # Errors
    /// If the connection string is invalid, or no server can be reached, found or started. The
    /// message says what was tried.
    pub async fn open(given: Option<&str>, program: &str) -> Result<Self, Failure> {
        let database = format!("distlock_{program}_{:08x}", fastrand::u32(..));
        let Some(uri) = given else {
            let server = MongoServer::start(Topology::ReplicaSet).await?;
            let place = Place { uri: server.uri().to_owned(), database };
            return Ok(Self { place, started: Some(server) });
        };
        let place = Place { uri: uri.to_owned(), database };
        // A clear error before anything starts.
        let database = place.open().await?;
        database.run_command(doc! { "ping": 1 }).await?;
        shut_down(database).await;
        Ok(Self { place, started: None })
    }

    /// Removes what the run has written, and ends the server if it was started here.
    ///
    /// # Errors
    /// If the user's server can no longer be reached.
    pub async fn close(self) -> Result<(), Failure> {
        match self.started {
            Some(server) => server.stop().await,
            None => {
                let database = self.place.open().await?;
                database.drop().await?;
                shut_down(database).await;
            }
        }
        Ok(())
    }
}
