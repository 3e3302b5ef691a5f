//! The configuration of a store.

use std::fmt;
use std::num::NonZeroUsize;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use distlock_api::{LockError, Result};
use distlock_engine::store::Lanes;
use tokio::sync::OnceCell;
use tokio_postgres::config::TargetSessionAttrs;
use tokio_postgres::tls::{MakeTlsConnect, TlsConnect};
use tokio_postgres::{Config, NoTls, Socket};

use crate::PostgresStore;
use crate::calls::{Calls, Manager};
use crate::connection::{Dial, Tls};
use crate::install::Options;
use crate::names::SchemaName;
use crate::statement::Texts;

const DEFAULT_SCHEMA: &str = "distlock";
const DEFAULT_CONNECTIONS: NonZeroUsize = NonZeroUsize::new(8).expect("not zero");
/// The driver's default, with which it takes two hours to notice that a server is gone.
const NO_KEEPALIVE: Duration = Duration::from_secs(2 * 60 * 60);
const KEEPALIVE_IDLE: Duration = Duration::from_secs(10);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const TCP_USER_TIMEOUT: Duration = Duration::from_secs(20);

/// Construction.
impl PostgresStore {
    /// Makes a store with the defaults from a connection string:
    /// `postgres://user:password@host/database`, or `host=… user=…`. It connects with the first
    /// request.
    ///
    /// # Errors
    /// [`InvalidOptions`](distlock_api::ErrorKind::InvalidOptions) when the text is not a
    /// connection string.
    pub fn new(uri: &str) -> Result<Self> {
        Self::parse(uri)?.build()
    }

    /// Configures a store, with a connection string.
    ///
    /// # Errors
    /// [`InvalidOptions`](distlock_api::ErrorKind::InvalidOptions) when the text is not a
    /// connection string.
    pub fn parse(uri: &str) -> Result<PostgresStoreBuilder> {
        PostgresStoreBuilder::parse(uri)
    }

    /// Configures a store, with a configuration of the driver.
    pub fn builder(config: Config) -> PostgresStoreBuilder {
        PostgresStoreBuilder::new(config)
    }
}

/// Configures a [`PostgresStore`]. Made by [`PostgresStore::builder`].
#[must_use]
pub struct PostgresStoreBuilder {
    config: Config,
    dial: Arc<dyn Dial>,
    schema: String,
    connections: NonZeroUsize,
    options: Options,
}

impl PostgresStoreBuilder {
    pub(crate) fn new(config: Config) -> Self {
        Self {
            config,
            dial: Arc::new(Tls(NoTls)),
            schema: DEFAULT_SCHEMA.to_owned(),
            connections: DEFAULT_CONNECTIONS,
            options: Options::default(),
        }
    }

    pub(crate) fn parse(uri: &str) -> Result<Self> {
        // The driver's error is left out: it may quote the text, and with it a password.
        let config = Config::from_str(uri);
        let config = config.map_err(|_| LockError::invalid_options("this is not a connection string of PostgreSQL"))?;
        Ok(Self::new(config))
    }

    /// Connects with TLS, by one of the crates for tokio-postgres. Defaults to no TLS: a
    /// configuration with `sslmode=require` then fails.
    pub fn tls<T>(mut self, tls: T) -> Self
    where
        T: MakeTlsConnect<Socket> + Clone + Send + Sync + 'static,
        T::Stream: Send,
        T::TlsConnect: Send,
        <T::TlsConnect as TlsConnect<Socket>>::Future: Send,
    {
        self.dial = Arc::new(Tls(tls));
        self
    }

    /// The schema for the store's tables and functions: 1 to 32 characters of `a`–`z`, `0`–`9` and
    /// `_`. Stores with different schemas have different locks. Defaults to `distlock`.
    pub fn schema(mut self, name: impl Into<String>) -> Self {
        self.schema = name.into();
        self
    }

    /// How many requests the store sends at once, each on a connection of its own. One more
    /// connection is for administration, and one for each provider that listens to events. Defaults
    /// to 8.
    pub fn connections(mut self, connections: NonZeroUsize) -> Self {
        self.connections = connections;
        self
    }

    /// Accepts a server that runs with `fsync=off`. Its locks and tokens do not survive a power
    /// failure. Defaults to refusing such a server.
    pub fn accept_fsync_off(mut self) -> Self {
        self.options.accepts_fsync_off = true;
        self
    }

    /// Has the database report lock events, for
    /// [`LockAdmin::watch`](distlock_api::LockAdmin::watch). The first request creates a trigger,
    /// as the role that owns the schema. From then on all stores of the schema report and may
    /// watch, until an operator drops the trigger (`DROP TRIGGER lock_events ON distlock.lease`).
    ///
    /// Each grant and each end of a lease then costs a NOTIFY, and the commits of those wait for
    /// each other. Defaults to no events.
    pub fn lock_events(mut self) -> Self {
        self.options.lock_events = true;
        self
    }

    /// Makes the store. It connects with the first request.
    ///
    /// # Errors
    /// [`InvalidOptions`](distlock_api::ErrorKind::InvalidOptions) when the name of the schema
    /// is invalid.
    pub fn build(self) -> Result<PostgresStore> {
        let schema = SchemaName::new(&self.schema)?;
        let config = defaults(self.config);
        let texts = Arc::new(Texts::new(&schema));
        let manager = Manager { dial: Arc::clone(&self.dial), config: config.clone(), texts };
        let calls = Calls::new(manager, self.connections.get() + 1)?;
        let lanes = Lanes::new(self.connections);
        let (dial, options, installed) = (self.dial, self.options, Arc::new(OnceCell::new()));
        Ok(PostgresStore { calls, lanes, dial, config, schema, options, installed })
    }
}

/// Sets what the configuration leaves open.
fn defaults(mut config: Config) -> Config {
    if config.get_application_name().is_none() {
        config.application_name("distlock");
    }
    if config.get_keepalives_idle() == NO_KEEPALIVE {
        config.keepalives_idle(KEEPALIVE_IDLE);
    }
    if config.get_keepalives_interval().is_none() {
        config.keepalives_interval(KEEPALIVE_INTERVAL);
    }
    if config.get_tcp_user_timeout().is_none() {
        config.tcp_user_timeout(TCP_USER_TIMEOUT);
    }
    // Of several hosts, use the primary.
    config.target_session_attrs(TargetSessionAttrs::ReadWrite);
    config
}

impl fmt::Debug for PostgresStoreBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { schema, connections, .. } = self;
        f.debug_struct("PostgresStoreBuilder")
            .field("schema", schema)
            .field("connections", connections)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use distlock_api::ErrorKind;

    use super::*;

    #[test]
    fn an_invalid_string_is_refused_and_not_quoted() {
        let error = PostgresStoreBuilder::parse("postgres://me:secret@host:port/x").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidOptions);
        assert!(!format!("{error:?}").contains("secret"), "{error:?}");
    }

    #[test]
    fn debug_shows_no_secret() {
        let builder = PostgresStoreBuilder::parse("postgres://me:secret@host/x").unwrap();
        assert!(!format!("{builder:?}").contains("secret"));
        assert!(!format!("{:?}", builder.schema("a b").build().unwrap_err()).contains("secret"));
    }

    #[test]
    fn what_the_user_has_set_stays() {
        let config = |text: &str| defaults(Config::from_str(text).unwrap());
        let mine = config("host=a application_name=me keepalives_idle=3 tcp_user_timeout=4000");
        assert_eq!(mine.get_application_name(), Some("me"));
        assert_eq!(mine.get_keepalives_idle(), Duration::from_secs(3));
        let open = config("host=a");
        assert_eq!(open.get_application_name(), Some("distlock"));
        assert_eq!(open.get_tcp_user_timeout(), Some(&TCP_USER_TIMEOUT));
        assert_eq!(open.get_target_session_attrs(), TargetSessionAttrs::ReadWrite);
    }
}
