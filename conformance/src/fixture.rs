//! The interface that a backend author implements for the suite.

use std::sync::Arc;

use async_trait::async_trait;
use distlock_api::LockProvider;
use distlock_engine::LeaseStore;
use distlock_recipes::once::OnceProvider;

use crate::arena::Arena;
use crate::client::Client;
use crate::failure::FixtureError;
use crate::profile::Profile;

/// A backend under test.
///
/// Three methods are required. Start nothing before [`start`](Self::start): the suite also makes a
/// fixture to list the checks, and to run those of another fixture.
///
/// All clients of one call of [`clients`](Self::clients) must share one state, as processes share a
/// database. That state must be private to this process and this run, such as a database with a
/// random name. Some checks use fixed keys, such as `$$NOW`.
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

    /// Returns what the backend promises. Called before anything is started.
    fn profile(&self) -> Profile;

    /// Starts what the backend needs. Called once, before the first check that runs. Does nothing
    /// by default.
    ///
    /// # Errors
    /// Any error of the start. Every check of the fixture then fails with it.
    async fn start(&self) -> Result<(), FixtureError> {
        Ok(())
    }

    /// Makes `count` clients of one shared state. They are independent of each other, as if each
    /// were in its own process. Called once or twice per check.
    ///
    /// Clients of different calls may share their state or not. A backend whose state is inside one
    /// provider returns `count` clones of a new provider, and declares [`Profile::one_provider`].
    ///
    /// # Errors
    /// Any error. The check fails with it.
    async fn clients(&self, count: usize) -> Result<Vec<Client>, FixtureError>;

    /// Makes `count` clients that do work once, of one shared state, as if each were in its own
    /// process. Called once per check of the clauses O1–O11. Declared by
    /// [`Profile::once`](crate::Profile::once).
    ///
    /// # Errors
    /// Any error. The default always returns one.
    async fn once_clients(&self, count: usize) -> Result<Vec<Arc<dyn OnceProvider>>, FixtureError> {
        Err(format!("this fixture makes no clients that do work once, and {count} were requested").into())
    }

    /// Opens the bare store, without the lease engine, as another process would. All stores share
    /// one state. Called a few times per check that tests the store directly. Such a check gives up
    /// every lease and ticket that it has taken. Declared by
    /// [`Profile::store`](crate::Profile::store).
    ///
    /// # Errors
    /// Any error. The default always returns one.
    async fn store(&self) -> Result<Arc<dyn LeaseStore>, FixtureError> {
        Err("this fixture opens no bare store".into())
    }

    /// Returns the address at which another process finds the shared state, or `None` if no process
    /// can. Called after [`start`](Self::start). A fixture that has an address declares
    /// [`Profile::processes`]. Defaults to `None`.
    fn address(&self) -> Option<String> {
        None
    }

    /// Makes a client of the state at an [`address`](Self::address), in a child process that has
    /// started nothing.
    ///
    /// # Errors
    /// Any error. The default always returns one.
    async fn connect(&self, address: &str) -> Result<Arc<dyn LockProvider>, FixtureError> {
        Err(format!("this fixture cannot connect to {address:?}").into())
    }

    /// Opens the bare store at an [`Arena::address`], as another process would. All stores of an
    /// address share one state. Declared by [`Profile::hooks`](crate::Profile::hooks).
    ///
    /// # Errors
    /// Any error. The default always returns one.
    async fn store_at(&self, address: &str) -> Result<Arc<dyn LeaseStore>, FixtureError> {
        Err(format!("this fixture opens no bare store at {address:?}").into())
    }

    /// Makes a client that does work once, of the state at an [`Arena::address`], as another
    /// process would. All clients of an address share one state. Declared by
    /// [`Profile::once`](crate::Profile::once) together with
    /// [`Profile::hooks`](crate::Profile::hooks).
    ///
    /// # Errors
    /// Any error. The default always returns one.
    async fn once_at(&self, address: &str) -> Result<Arc<dyn OnceProvider>, FixtureError> {
        Err(format!("this fixture makes no client that does work once at {address:?}").into())
    }

    /// Starts a disposable deployment for fault injection. Called once for each check that needs
    /// one. The checks that use [hooks](crate::Hook) share one. Declared by
    /// [`Profile::arena`](crate::Profile::arena).
    ///
    /// # Errors
    /// Any error. The default always returns one.
    async fn arena(&self) -> Result<Box<dyn Arena>, FixtureError> {
        Err("this fixture has no deployment for fault injection".into())
    }

    /// Stops what was started. Called once, after the last check, whether or not checks failed.
    /// Does nothing by default.
    async fn stop(&self) {}
}
