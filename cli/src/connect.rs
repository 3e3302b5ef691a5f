//! The connection to the deployment.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use distlock::mongodb::mongodb::Client;
use distlock::mongodb::mongodb::error::{Error, ErrorKind};
use distlock::mongodb::mongodb::options::ClientOptions;
use distlock::mongodb::{MongoOnce, MongoProvider, MongoProviderBuilder};
use distlock::{LockAdmin, LockError, LockProvider, Printable};
use tokio::time::timeout;
use tracing::info;

use crate::failure::{Failure, chain};
use crate::{exit, uri};

/// How long one request may take. The default of the library.
pub(crate) const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the end of the driver's own tasks is waited for.
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(2);
/// Names the deployment. It contains a secret, so a command that is run does not get it.
pub(crate) const URI_VARIABLE: &str = "DISTLOCK_MONGODB_URI";
const NO_DEPLOYMENT: &str = "no deployment is named: set DISTLOCK_MONGODB_URI, or give --uri-file or --uri, such as \
                             mongodb://db1,db2,db3/app?replicaSet=rs0";
/// The name of the locks in the library's log lines.
const REPORTED_AS: &str = "distlock";
const DEFAULT_DATABASE: &str = "distlock";
const DEFAULT_COLLECTION: &str = "locks";

/// Where the locks are.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Deployment")]
pub(crate) struct ConnectionArgs {
    /// Connection string of the MongoDB deployment. Prefer the variable or a file: other users of
    /// the machine can read the command line
    #[arg(long, global = true, env = URI_VARIABLE, hide_env_values = true, value_name = "URI")]
    pub(crate) uri: Option<String>,
    /// File with the connection string, instead of --uri [default: distlock-mongodb-uri in the
    /// directory that CREDENTIALS_DIRECTORY names, if neither is given]
    #[arg(long, global = true, env = "DISTLOCK_MONGODB_URI_FILE", value_name = "FILE")]
    pub(crate) uri_file: Option<PathBuf>,
    /// Database of the locks [default: that of the connection string, or distlock]
    #[arg(long, global = true, value_name = "NAME")]
    pub(crate) database: Option<String>,
    /// Collection of the locks [default: locks]
    #[arg(long, global = true, value_name = "NAME")]
    pub(crate) collection: Option<String>,
}

impl ConnectionArgs {
    /// Returns the connection string: that of the file, otherwise that of the option or the
    /// variable, otherwise that of the service manager's credentials.
    fn connection_string(&self) -> Result<String, Failure> {
        let credential = || {
            let file = PathBuf::from(std::env::var_os("CREDENTIALS_DIRECTORY")?).join("distlock-mongodb-uri");
            file.exists().then_some(file)
        };
        let uri = self.uri.clone().filter(|uri| !uri.is_empty());
        match (self.uri_file.clone(), uri) {
            (Some(file), _) => read(&file),
            (None, Some(uri)) => Ok(uri),
            (None, None) => {
                credential().map_or_else(|| Err(Failure::new(exit::USAGE, NO_DEPLOYMENT)), |file| read(&file))
            }
        }
    }
}

fn read(file: &Path) -> Result<String, Failure> {
    let unusable = |why: String| {
        Failure::new(exit::CONFIG, format!("the file {} has no connection string: {why}", file.display()))
    };
    let text = std::fs::read_to_string(file).map_err(|error| unusable(error.to_string()))?;
    let uri = text.trim();
    match uri.lines().count() {
        1 => Ok(uri.to_owned()),
        lines => Err(unusable(format!("it has {lines} lines of text instead of one"))),
    }
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
        let uri = &*args.connection_string()?;
        if let Some(flaw) = uri::flaw(uri) {
            let message = format!("the connection string cannot be used: {flaw}. Its form is {}", uri::FORM);
            return Err(Failure::new(exit::CONFIG, message));
        }
        let unusable = |error: Error| unusable(uri, &error);
        let mut options = ClientOptions::parse(uri).await.map_err(unusable)?;
        options.app_name.get_or_insert_with(|| "distlock".to_owned());
        options.server_selection_timeout.get_or_insert(REQUEST_TIMEOUT);
        let client = Client::with_options(options.clone()).map_err(unusable)?;
        let of_uri = client.default_database().map(|database| database.name().to_owned());
        let database = args.database.clone().or(of_uri).unwrap_or_else(|| DEFAULT_DATABASE.to_owned());
        let collection = args.collection.clone().unwrap_or_else(|| DEFAULT_COLLECTION.to_owned());
        // Neither the user nor the options: these may be secrets.
        let hosts: Vec<String> = options.hosts.iter().map(ToString::to_string).collect();
        info!(hosts = %Printable(hosts.join(",")), "connecting");
        Ok(Self { client, options, database, collection })
    }

    /// Returns the builder of a provider on the lock collection.
    pub(crate) fn builder(&self) -> MongoProviderBuilder {
        self.log_use_of(&self.collection);
        let builder = MongoProvider::builder_from_client(&self.client).instrumented(REPORTED_AS);
        builder.database(&self.database).collection(&self.collection)
    }

    /// Returns the outcomes of work that is done once, in this collection. Sends nothing.
    ///
    /// # Errors
    /// MongoDB does not allow the name.
    pub(crate) fn jobs(&self, collection: &str) -> Result<MongoOnce, LockError> {
        self.log_use_of(collection);
        let builder = MongoOnce::builder(self.client.database(&self.database)).instrumented(REPORTED_AS);
        builder.collection(collection).build()
    }

    fn log_use_of(&self, collection: &str) {
        let (database, collection) = (Printable(&self.database), Printable(collection));
        info!(%database, %collection, "using the collection");
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

/// The driver's text may quote a secret, so it is only searched for the names of options.
fn unusable(uri: &str, error: &Error) -> Failure {
    match &*error.kind {
        ErrorKind::InvalidTlsConfig { message, .. } => {
            Failure::new(exit::CONFIG, format!("the TLS options of the connection string cannot be used: {message}"))
        }
        ErrorKind::InvalidArgument { message, .. } => {
            let of = match &*uri::options_in(uri, message) {
                [] => "a part of it, or a combination of options".to_owned(),
                [name] => format!("the option {name}"),
                names => format!("the options {}", names.join(", ")),
            };
            let form = uri::FORM;
            Failure::new(
                exit::CONFIG,
                format!("the connection string cannot be used: the MongoDB driver refused {of}. Its form is {form}"),
            )
        }
        _ => Failure::new(exit::UNAVAILABLE, format!("the hosts cannot be found, check their names: {}", chain(error))),
    }
}
