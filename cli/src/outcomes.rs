//! The outcomes that `run --once` remembers.

use distlock::LockError;
use distlock::mongodb::MongoOnce;
use distlock::once::OnceProvider;

use crate::connect::{Connection, ConnectionArgs};
use crate::failure::Failure;

/// The collection of the outcomes, unless another one is named.
pub(crate) const COLLECTION: &str = "once";

/// The collection of the outcomes, with the client that it uses.
pub(crate) struct Outcomes {
    pub(crate) connection: Connection,
    pub(crate) jobs: MongoOnce,
}

impl Outcomes {
    /// Sends nothing.
    ///
    /// # Errors
    /// As [`Connection::open`], and for a name that MongoDB does not allow.
    pub(crate) async fn open(args: &ConnectionArgs) -> Result<Self, Failure> {
        let connection = Connection::open(args).await?;
        let jobs = connection.jobs(args.collection.as_deref().unwrap_or(COLLECTION))?;
        Ok(Self { connection, jobs })
    }

    /// Gives everything back, and ends the client.
    ///
    /// # Errors
    /// Something could not be given back, and ends with its ttl.
    pub(crate) async fn close(self) -> Result<(), LockError> {
        let closed = self.jobs.close().await;
        drop(self.jobs);
        self.connection.close().await;
        closed
    }

    /// Does one thing, and closes whether or not it succeeded.
    pub(crate) async fn use_once<T>(
        args: &ConnectionArgs,
        work: impl AsyncFnOnce(&MongoOnce) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let outcomes = Self::open(args).await?;
        let done = work(&outcomes.jobs).await;
        let closed = outcomes.close().await;
        let done = done?;
        closed?;
        Ok(done)
    }
}
