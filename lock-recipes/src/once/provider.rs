//! The object-safe trait.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use async_trait::async_trait;
use distlock_api::{LockKey, Result};

use super::{Once, OnceOptions, OnceRecord};

/// Begins the work of keys, and remembers its outcomes. Applications hold an
/// `Arc<dyn OnceProvider>` and choose the backend in `main`.
///
/// The fluent calls are in [`OnceProviderExt`](super::OnceProviderExt). See the
/// [module](super) for what it is for. A provider keeps the clauses O1–O12 of the
/// [`contract`](crate::contract#once). For authors of backends, section 16 of the tutorial in
/// `distlock-conformance` walks through a small one.
#[async_trait]
pub trait OnceProvider: fmt::Debug + fmt::Display + Send + Sync + 'static {
    /// Begins the work of a key, or answers what is known of it. Waits for work that is under way
    /// as long as the options say.
    ///
    /// # Errors
    /// * [`InvalidOptions`](distlock_api::ErrorKind::InvalidOptions) before any I/O, see
    ///   [`OnceOptions::validate`] and [`LeaseOptions::terms`](distlock_api::LeaseOptions::terms);
    /// * [`Corrupt`](distlock_api::ErrorKind::Corrupt) if something else is stored under the key.
    ///   It is left as it is;
    /// * those of [`LockProvider::acquire_with`](distlock_api::LockProvider::acquire_with). After
    ///   an error the caller has begun nothing. If the outcome of the beginning is unknown, if the
    ///   lease ends before its answer, or if the process dies then, the key may be left
    ///   interrupted.
    ///
    /// # Cancel safety
    /// Cancel safe. When the future is dropped, work that has just been begun for it is discarded
    /// in the background.
    async fn once_with(&self, key: LockKey, options: OnceOptions) -> Result<Once>;

    /// Returns what is known of a key, without a change.
    ///
    /// # Errors
    /// [`Corrupt`](distlock_api::ErrorKind::Corrupt) if something else is stored under the key, and
    /// those of the store.
    ///
    /// # Cancel safety
    /// Cancel safe.
    async fn inspect(&self, key: &LockKey) -> Result<OnceRecord>;

    /// Shuts down: refuses new work, and ends the leases of all guards, whose work is interrupted
    /// then. See [`LockProvider::close`](distlock_api::LockProvider::close).
    ///
    /// # Errors
    /// As [`LockProvider::close`](distlock_api::LockProvider::close).
    ///
    /// # Cancel safety
    /// As [`LockProvider::close`](distlock_api::LockProvider::close).
    async fn close(&self) -> Result<()>;
}

type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

macro_rules! forward_once {
    ($($pointer:ident),*) => {$(
        #[async_trait]
        #[deny(clippy::missing_trait_methods)]
        impl<P: OnceProvider + ?Sized> OnceProvider for $pointer<P> {
            // Written out, so that the future inside is not boxed a second time.
            fn once_with<'a, 'f>(&'a self, key: LockKey, options: OnceOptions) -> BoxFuture<'f, Result<Once>>
            where
                'a: 'f,
                Self: 'f,
            {
                (**self).once_with(key, options)
            }

            async fn inspect(&self, key: &LockKey) -> Result<OnceRecord> {
                (**self).inspect(key).await
            }

            async fn close(&self) -> Result<()> {
                (**self).close().await
            }
        }
    )*};
}

forward_once!(Arc, Box);
