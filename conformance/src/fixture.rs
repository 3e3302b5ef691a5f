//! What a backend author writes: how to get clients of the backend, and what it promises.

use std::sync::Arc;

use async_trait::async_trait;
use distlock_api::LockProvider;
use distlock_engine::LeaseStore;

use crate::arena::Arena;
use crate::client::Client;
use crate::failure::FixtureError;
use crate::profile::Profile;

/// A backend under test.
///
/// Three methods are required. Everything is lazy: nothing may be started before [`start`](Self::start), so that listing the checks, and running
/// those of another fixture, costs nothing.
///
/// The state behind a fixture must be private to this process and this run (a database with a random name): the checks use
/// keys such as `$$NOW` literally.
///
/// ```no_run
/// use std::process::ExitCode;
/// use std::sync::Arc;
/// use distlock_api::{Capabilities, LockProvider};
/// use distlock_conformance::{Client, Fixture, FixtureError, Profile, async_trait, run_one};
/// # fn my_backend() -> Arc<dyn LockProvider> { Arc::new(distlock_memory::MemoryStore::new().provider()) }
///
/// struct MyFixture;
///
/// #[async_trait]
/// impl Fixture for MyFixture {
///     fn name(&self) -> &str {
///         "my-backend"
///     }
///
///     fn profile(&self) -> Profile {
///         let mut promised = Capabilities::default();
///         promised.expiry = true;
///         Profile::new(promised)
///     }
///
///     async fn clients(&self, count: usize) -> Result<Vec<Client>, FixtureError> {
///         Ok((0..count).map(|_| Client::new(my_backend())).collect())
///     }
/// }
///
/// fn main() -> ExitCode {
///     run_one(MyFixture)
/// }
/// ```
#[async_trait]
pub trait Fixture: Send + Sync + 'static {
    /// The first part of the names of its checks, such as `mongo-upsert-replica-set`.
    fn name(&self) -> &str;

    /// What the backend promises. Asked before anything is started.
    fn profile(&self) -> Profile;

    /// Starts what the backend needs. Called once, before the first check that runs. Defaults to nothing.
    ///
    /// # Errors
    /// Whatever went wrong; every check of the fixture then fails with it.
    async fn start(&self) -> Result<(), FixtureError> {
        Ok(())
    }

    /// New clients of one shared state, independent of each other, as so many processes would have. Called once or twice per check.
    ///
    /// Clients of different calls may share their state or not. A backend whose state lives inside one provider returns so many
    /// clones of a new provider, and declares [`Profile::one_provider`].
    ///
    /// # Errors
    /// Whatever went wrong; the check fails with it.
    async fn clients(&self, count: usize) -> Result<Vec<Client>, FixtureError>;

    /// The bare store, without the lease engine, as another process would open it. All stores share one
    /// state. Called a few times per check that looks below the engine. Every lease and ticket that a
    /// check has taken is given up after it.
    /// Declared by [`Profile::store`](crate::Profile::store).
    ///
    /// # Errors
    /// Whatever went wrong. By default always.
    async fn store(&self) -> Result<Arc<dyn LeaseStore>, FixtureError> {
        Err("this fixture opens no bare store".into())
    }

    /// Where another process finds the shared state; none if no process can. Asked after [`start`](Self::start). A fixture that
    /// has one declares [`Profile::processes`]. Defaults to none.
    fn address(&self) -> Option<String> {
        None
    }

    /// A client of the state at an [`address`](Self::address), in a child process in which nothing was started.
    ///
    /// # Errors
    /// Whatever went wrong. By default always.
    async fn connect(&self, address: &str) -> Result<Arc<dyn LockProvider>, FixtureError> {
        Err(format!("this fixture cannot connect to {address:?}").into())
    }

    /// The bare store at an [`Arena::address`], as another process would open it. All stores of an
    /// address share one state. Declared by [`Profile::hooks`](crate::Profile::hooks).
    ///
    /// # Errors
    /// Whatever went wrong. By default always.
    async fn store_at(&self, address: &str) -> Result<Arc<dyn LeaseStore>, FixtureError> {
        Err(format!("this fixture opens no bare store at {address:?}").into())
    }

    /// A deployment of its own that may be damaged by all means. Called once for each check that needs
    /// one; those that use [hooks](crate::Hook) share one. Declared by [`Profile::arena`](crate::Profile::arena).
    ///
    /// # Errors
    /// Whatever went wrong. By default always.
    async fn arena(&self) -> Result<Box<dyn Arena>, FixtureError> {
        Err("this fixture has no deployment that may be damaged".into())
    }

    /// Stops what was started. Called once, after the last check, whether checks failed or not. Defaults to nothing.
    async fn stop(&self) {}
}
