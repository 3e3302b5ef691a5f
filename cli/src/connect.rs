//! The connection to the deployment.

use std::time::Duration;

use clap::Args;
use distlock::mongodb::mongodb::Client;
use distlock::mongodb::mongodb::error::{Error, ErrorKind};
use distlock::mongodb::mongodb::options::ClientOptions;
use distlock::mongodb::{MongoOnce, MongoProvider, MongoProviderBuilder};
use distlock::{LockAdmin, LockError, LockProvider};
use tokio::time::timeout;

use crate::exit;
use crate::failure::{Failure, chain};

/// How long one request may take. The default of the library.
pub(crate) const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the end of the driver's own tasks is waited for.
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(2);
const DEFAULT_DATABASE: &str = "distlock";
const DEFAULT_COLLECTION: &str = "locks";

/// Where the locks are.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Deployment")]
pub(crate) struct ConnectionArgs {
    /// Connection string of the MongoDB deployment. Prefer the environment variable: other users of
    /// the machine can read the command line
    #[arg(long, global = true, env = "DISTLOCK_MONGODB_URI", hide_env_values = true, value_name = "URI")]
    pub(crate) uri: Option<String>,
    /// Database of the locks [default: that of the connection string, or distlock]
    #[arg(long, global = true, value_name = "NAME")]
    pub(crate) database: Option<String>,
    /// Collection of the locks [default: locks]
    #[arg(long, global = true, value_name = "NAME")]
    pub(crate) collection: Option<String>,
}

/// A client of the deployment, and the names of the lock collection.
pub(crate) struct Connection {
    pub(crate) client: Client,
    pub(crate) options: ClientOptions,
    pub(crate) database: String,
    pub(crate) collection: String,
}

impl Connection {
    /// Reads the connection string. Sends nothing, but resolves `mongodb+srv` names.
    ///
    /// # Errors
    /// There is no connection string, the driver refuses it, or a name cannot be resolved.
    pub(crate) async fn open(args: &ConnectionArgs) -> Result<Self, Failure> {
        let Some(uri) = args.uri.as_deref().filter(|uri| !uri.is_empty()) else {
            let message = "no deployment is named: set DISTLOCK_MONGODB_URI, or give --uri, such as \
                           mongodb://db1,db2,db3/app?replicaSet=rs0";
            return Err(Failure::new(exit::USAGE, message));
        };
        let mut options = ClientOptions::parse(uri).await.map_err(|error| unusable(&error))?;
        options.app_name.get_or_insert_with(|| "distlock".to_owned());
        options.server_selection_timeout.get_or_insert(REQUEST_TIMEOUT);
        let client = Client::with_options(options.clone()).map_err(|error| unusable(&error))?;
        let of_uri = client.default_database().map(|database| database.name().to_owned());
        let database = args.database.clone().or(of_uri).unwrap_or_else(|| DEFAULT_DATABASE.to_owned());
        let collection = args.collection.clone().unwrap_or_else(|| DEFAULT_COLLECTION.to_owned());
        Ok(Self { client, options, database, collection })
    }

    /// Returns the builder of a provider on the lock collection.
    pub(crate) fn builder(&self) -> MongoProviderBuilder {
        MongoProvider::builder_from_client(&self.client).database(&self.database).collection(&self.collection)
    }

    /// Returns the outcomes of work that is done once, in this collection. Sends nothing.
    ///
    /// # Errors
    /// MongoDB does not allow the name.
    pub(crate) fn jobs(&self, collection: &str) -> Result<MongoOnce, LockError> {
        MongoOnce::builder(self.client.database(&self.database)).collection(collection).build()
    }

    /// Ends the client. Providers must be closed before.
    pub(crate) async fn close(self) {
        // A connection that hangs must not keep the program.
        let _ = timeout(SHUTDOWN_LIMIT, self.client.shutdown()).await;
    }
}

/// A provider, with the client that it uses.
pub(crate) struct Locks {
    pub(crate) connection: Connection,
    pub(crate) provider: MongoProvider,
}

impl Locks {
    /// Makes a provider with the library's defaults. Sends nothing.
    ///
    /// # Errors
    /// As [`Connection::open`], and for a name that MongoDB does not allow.
    pub(crate) async fn open(args: &ConnectionArgs) -> Result<Self, Failure> {
        let connection = Connection::open(args).await?;
        let provider = connection.builder().build()?;
        Ok(Self { connection, provider })
    }

    pub(crate) fn admin(&self) -> &dyn LockAdmin {
        self.provider.admin().expect("a MongoDB provider has administration")
    }

    /// Gives everything back, and ends the client.
    ///
    /// # Errors
    /// Something could not be given back, and ends with its ttl.
    pub(crate) async fn close(self) -> Result<(), Failure> {
        let closed = self.provider.close().await;
        drop(self.provider);
        self.connection.close().await;
        Ok(closed?)
    }

    /// Does one thing, and closes whether or not it succeeded.
    pub(crate) async fn once<T>(
        args: &ConnectionArgs,
        work: impl AsyncFnOnce(&Self) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let locks = Self::open(args).await?;
        let done = work(&locks).await;
        let closed = locks.close().await;
        let done = done?;
        closed.map(|()| done)
    }
}

fn unusable(error: &Error) -> Failure {
    let form = "mongodb://user:password@host:port/database?option=value, percent-encoded";
    match &*error.kind {
        // The driver's own text of the error also lists labels.
        ErrorKind::InvalidArgument { .. } | ErrorKind::InvalidTlsConfig { .. } => Failure::new(
            exit::CONFIG,
            format!("the MongoDB driver refused the connection string ({}): its form is {form}", error.kind),
        ),
        _ => Failure::new(exit::UNAVAILABLE, format!("the hosts cannot be found, check their names: {}", chain(error))),
    }
}
