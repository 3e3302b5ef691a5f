//! Several locks at once.

use std::collections::HashMap;
use std::fmt;
use std::future::{Future, IntoFuture, ready};
use std::ops::Index;
use std::pin::Pin;
use std::time::Duration;

use futures_util::future::{join_all, select_all};
use tokio::time::Instant;

use crate::error::{LockError, Result};
use crate::guard::{LockGuard, ReleaseOutcome};
use crate::key::LockKey;
use crate::loss::{Loss, LostSignal, until_lost};
use crate::mode::Mode;
use crate::options::AcquireOptions;
use crate::parse::IntoLockKey;
use crate::provider::{Acquired, LockProvider};
use crate::style::{Group, acquire_group, finish_run, yield_on_error};
use crate::token::FencingToken;
use crate::{acquire_setters, mode_setters, try_setters, wait_setters};

type Keys = Result<Vec<LockKey>>;

/// The keys whose modes differ from the mode of the others.
type Modes = Vec<(Result<LockKey>, Mode)>;

pub(crate) fn keys<K: IntoLockKey>(keys: impl IntoIterator<Item = K>) -> Keys {
    keys.into_iter().map(IntoLockKey::into_lock_key).collect()
}

async fn acquire<P: LockProvider + ?Sized>(
    provider: &P,
    keys: Keys,
    modes: Modes,
    options: AcquireOptions,
) -> Result<Group<LockGuard>> {
    let checked = keys.and_then(|keys| Ok((modes_by_key(&keys, modes)?, keys)));
    let (modes, keys) = yield_on_error(ready(checked)).await?;
    let with_mode = |key: &LockKey, options: AcquireOptions| match modes.get(key) {
        Some(mode) => options.with_mode(*mode),
        None => options,
    };
    let acquire_now = |key: &LockKey, options: &AcquireOptions| {
        let answer = provider.acquire_now(key, &with_mode(key, options.clone()))?;
        Some(answer.map(Acquired::held))
    };
    acquire_group(keys, &options, acquire_now, |key, options| {
        let options = with_mode(&key, options);
        async move { provider.acquire_with(key, options).await.map(Acquired::held) }
    })
    .await
}

/// Checks that the keys whose modes are set are among the keys to acquire.
fn modes_by_key(keys: &[LockKey], modes: Modes) -> Result<HashMap<LockKey, Mode>> {
    let checked = modes.into_iter().map(|(key, mode)| {
        let key = key?;
        if keys.contains(&key) {
            return Ok((key, mode));
        }
        let message = "a mode is set for a key that is not among those to acquire: add the key, or remove its mode";
        Err(LockError::invalid_options(message).with_key(key))
    });
    checked.collect()
}

/// Defines the setter of the mode of one key.
macro_rules! mode_of_setter {
    () => {
        /// Sets what is claimed of one of the keys. For the others the mode of all counts, which is
        /// [`Mode::Exclusive`] unless it is set. A key that is not among those to acquire is
        /// refused with [`InvalidOptions`](crate::ErrorKind::InvalidOptions) before any I/O.
        ///
        /// ```
        /// # use distlock_api::{LockError, LockProvider, LockProviderExt, Mode};
        /// async fn book(locks: &dyn LockProvider) -> Result<(), LockError> {
        ///     let both = locks.acquire_all(["prices", "orders"]).mode_of("prices", Mode::Shared);
        ///     both.await?.release().await?;
        ///     Ok(())
        /// }
        /// ```
        pub fn mode_of(mut self, key: impl IntoLockKey, mode: Mode) -> Self {
            self.modes.push((key.into_lock_key(), mode));
            self
        }
    };
}

/// The acquisition of several locks; await it to get the [`AllGuard`], or call [`run`](Self::run).
/// Made by [`LockProviderExt::acquire_all`](crate::LockProviderExt::acquire_all).
///
/// All locks are granted, or none ([C21]). The keys are sorted, and a caller waits for a lock only
/// while it holds those of smaller keys. So callers that name the same keys in different orders
/// cannot deadlock. Up to 64 locks are asked for at once, and go to the store together if it can do
/// that. Locks behind the first busy one are given back while it is waited for, and to others they
/// may seem busy for a moment. After an
/// answer without the locks none of them is held, unless the store takes longer than a second to
/// confirm their releases. A provider that answers at once
/// ([`acquire_now`](LockProvider::acquire_now)) grants free locks in one pass, up to the first busy
/// one. Behind [`Instrumented`](crate::Instrumented), which measures each acquisition, there is no
/// such pass.
///
/// One wait covers them all. If one lock is not granted, those already acquired are released again.
/// Without any key the guard is empty, and no request is sent.
///
/// Errors are those of [`Acquire`](crate::Acquire). At the end of the wait the error names the key
/// that was busy. Cancel safe ([C11]).
///
/// ```
/// # use std::time::Duration;
/// # use distlock_api::{LockProvider, LockProviderExt, LockError};
/// async fn transfer(locks: &dyn LockProvider, from: &str, to: &str) -> Result<(), LockError> {
///     let both = locks.acquire_all([from, to]).timeout(Duration::from_secs(5)).await?;
///     println!("{from}: token {}", both.fencing_tokens()[from]);
///     both.release().await?;
///     Ok(())
/// }
/// ```
///
/// [C11]: distlock_api::contract#c11
/// [C21]: distlock_api::contract#c21
#[must_use = "nothing is acquired until this is awaited"]
pub struct AcquireAll<'a, P: ?Sized> {
    provider: &'a P,
    keys: Keys,
    modes: Modes,
    options: AcquireOptions,
}

impl<'a, P: LockProvider + ?Sized> AcquireAll<'a, P> {
    pub(crate) fn new(provider: &'a P, keys: Keys) -> Self {
        Self { provider, keys, modes: Modes::new(), options: AcquireOptions::new() }
    }

    acquire_setters!();
    mode_setters!();
    mode_of_setter!();
    wait_setters!();

    /// Acquires all locks, runs what `work` returns while all are held, and releases them.
    ///
    /// # Errors
    /// As [`Acquire::run`](crate::Acquire::run).
    ///
    /// # Cancel safety
    /// Dropping the future drops the work and releases in the background.
    ///
    /// ```
    /// # use distlock_api::{FencingToken, LockProvider, LockProviderExt, LockError};
    /// # async fn book(_: &str, _: FencingToken) {}
    /// async fn transfer(locks: &dyn LockProvider, from: &str, to: &str) -> Result<(), LockError> {
    ///     locks
    ///         .acquire_all([from, to])
    ///         .run(async |tokens| {
    ///             book(from, tokens[from]).await;
    ///             book(to, tokens[to]).await;
    ///         })
    ///         .await
    /// }
    /// ```
    pub async fn run<F: Future>(self, work: impl FnOnce(FencingTokens) -> F) -> Result<F::Output> {
        run(self.await?, work).await
    }
}

impl<'a, P: LockProvider + ?Sized> IntoFuture for AcquireAll<'a, P> {
    type Output = Result<AllGuard>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'a>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let group = acquire(self.provider, self.keys, self.modes, self.options).await?;
            Ok(AllGuard { guards: group.or_not_granted()? })
        })
    }
}

impl<P: ?Sized> fmt::Debug for AcquireAll<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        describe(f, "AcquireAll", &self.keys, &self.options)
    }
}

/// The acquisition of several locks without a wait; await it to get the [`AllGuard`], or `None` if
/// one of them is busy. Made by
/// [`LockProviderExt::try_acquire_all`](crate::LockProviderExt::try_acquire_all).
///
/// All locks are granted, or none, as by [`AcquireAll`]. Of two callers that try the same free keys
/// at the same time, each may find one of them busy. Errors are those of
/// [`LockProvider::acquire_with`]. Cancel safe ([C11]).
///
/// [C11]: distlock_api::contract#c11
#[must_use = "nothing is acquired until this is awaited"]
pub struct TryAcquireAll<'a, P: ?Sized> {
    provider: &'a P,
    keys: Keys,
    modes: Modes,
    options: AcquireOptions,
}

impl<'a, P: LockProvider + ?Sized> TryAcquireAll<'a, P> {
    pub(crate) fn new(provider: &'a P, keys: Keys) -> Self {
        Self { provider, keys, modes: Modes::new(), options: AcquireOptions::try_once() }
    }

    acquire_setters!();
    mode_setters!();
    mode_of_setter!();
    try_setters!();

    /// Acquires all locks, runs what `work` returns while all are held, and releases them. Returns
    /// `None`, without a call of `work`, if one of the locks is busy.
    ///
    /// # Errors
    /// As [`TryAcquire::run`](crate::TryAcquire::run).
    ///
    /// # Cancel safety
    /// Dropping the future drops the work and releases in the background.
    pub async fn run<F: Future>(self, work: impl FnOnce(FencingTokens) -> F) -> Result<Option<F::Output>> {
        match self.await? {
            Some(all) => run(all, work).await.map(Some),
            None => Ok(None),
        }
    }
}

impl<'a, P: LockProvider + ?Sized> IntoFuture for TryAcquireAll<'a, P> {
    type Output = Result<Option<AllGuard>>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'a>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let group = acquire(self.provider, self.keys, self.modes, self.options).await?;
            Ok(group.held().map(|guards| AllGuard { guards }))
        })
    }
}

impl<P: ?Sized> fmt::Debug for TryAcquireAll<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        describe(f, "TryAcquireAll", &self.keys, &self.options)
    }
}

fn describe(f: &mut fmt::Formatter<'_>, name: &str, keys: &Keys, options: &AcquireOptions) -> fmt::Result {
    let mut described = f.debug_struct(name);
    match keys {
        Ok(keys) => described.field("keys", keys),
        Err(error) => described.field("error", error),
    };
    described.field("options", options).finish_non_exhaustive()
}

async fn run<F: Future>(all: AllGuard, work: impl FnOnce(FencingTokens) -> F) -> Result<F::Output> {
    let output = all.run(work(all.fencing_tokens())).await?;
    finish_run(output, None, all.release().await)
}

/// Several held locks. Dropping it releases all of them in the background.
#[derive(Debug)]
#[must_use = "the locks are released as soon as the guard is dropped"]
#[clippy::has_significant_drop]
pub struct AllGuard {
    guards: Vec<LockGuard>,
}

impl AllGuard {
    /// Returns the guards, in the order of their keys.
    pub fn guards(&self) -> &[LockGuard] {
        &self.guards
    }

    /// Returns the guard of one key, or `None` if the key is not among them.
    ///
    /// ```
    /// # use distlock_api::AllGuard;
    /// fn has_both(all: &AllGuard) -> bool {
    ///     all.get("orders/7").is_some() && all.get(("orders", 8)).is_some()
    /// }
    /// ```
    #[must_use]
    pub fn get(&self, key: impl IntoLockKey) -> Option<&LockGuard> {
        let key = key.into_lock_key().ok()?;
        self.guards.iter().find(|guard| *guard.key() == key)
    }

    /// Returns the guards one by one, in the order of their keys.
    #[must_use = "the locks are released as soon as the guards are dropped"]
    pub fn into_guards(self) -> Vec<LockGuard> {
        self.guards
    }

    /// Returns the fencing token of each key.
    #[must_use]
    pub fn fencing_tokens(&self) -> FencingTokens {
        FencingTokens(self.guards.iter().map(|guard| (guard.key().clone(), guard.fencing_token())).collect())
    }

    /// Returns whether any of the locks is lost. Once true, always true ([C4]).
    ///
    /// [C4]: distlock_api::contract#c4
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.loss().is_some()
    }

    /// Returns how the first of the lost locks, in the order of their keys, was lost; `None` while
    /// all are held.
    #[must_use]
    pub fn loss(&self) -> Option<Loss> {
        self.guards.iter().find_map(LockGuard::loss)
    }

    /// Returns the monotonic instant until which all of them are held unless a renewal moves it.
    /// `None` if they never expire. See [`LockGuard::valid_until`].
    #[must_use]
    pub fn valid_until(&self) -> Option<Instant> {
        self.guards.iter().filter_map(LockGuard::valid_until).min()
    }

    /// Returns how much longer all of them are held unless a renewal extends it: zero when one is
    /// lost, `None` if they never expire.
    #[must_use]
    pub fn remaining(&self) -> Option<Duration> {
        self.guards.iter().filter_map(LockGuard::remaining).min()
    }

    /// Returns a future that resolves when the first of them is lost. Without any lock it never
    /// resolves. See [`LockGuard::lost`].
    pub fn lost(&self) -> LostSignal {
        if self.guards.is_empty() {
            return LostSignal::never();
        }
        let signals: Vec<LostSignal> = self.guards.iter().map(LockGuard::lost).collect();
        LostSignal::new(async move { select_all(signals).await.0 })
    }

    /// Runs a future while all locks are held: drops it and fails as soon as one is lost.
    ///
    /// # Errors
    /// [`ErrorKind::Lost`](crate::ErrorKind::Lost) when a lock was lost before the future had
    /// finished.
    ///
    /// # Cancel safety
    /// As cancel safe as the given future.
    pub async fn run<F: Future>(&self, future: F) -> Result<F::Output> {
        until_lost(self.lost(), future).await.map_err(LockError::lost)
    }

    /// Releases all of them, each independently of the others, and returns whether all were held
    /// until now: [`AlreadyLost`](ReleaseOutcome::AlreadyLost) if any of them had been lost ([C9]).
    ///
    /// # Errors
    /// The first error, after every release was tried. The engine repeats the failed ones in the
    /// background.
    ///
    /// # Cancel safety
    /// When the future is dropped, polled or not, the releases continue in the background.
    ///
    /// [C9]: distlock_api::contract#c9
    #[must_use = "dropping the future releases in the background, and the outcome is lost"]
    pub fn release(self) -> impl Future<Output = Result<ReleaseOutcome>> + Send + 'static {
        let releases = join_all(self.guards.into_iter().rev().map(LockGuard::release));
        async move {
            let mut outcome = ReleaseOutcome::Released;
            for result in releases.await {
                if result? == ReleaseOutcome::AlreadyLost {
                    outcome = ReleaseOutcome::AlreadyLost;
                }
            }
            Ok(outcome)
        }
    }
}

/// The fencing tokens of several locks, by key. Made by [`AllGuard::fencing_tokens`], and passed to
/// the work of [`AcquireAll::run`].
///
/// Tokens of different keys must not be compared: pass each to the resource that its lock protects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FencingTokens(Vec<(LockKey, FencingToken)>);

impl FencingTokens {
    /// Returns the token of a key, or `None` if the key is not among them.
    #[must_use]
    pub fn get(&self, key: impl IntoLockKey) -> Option<FencingToken> {
        let key = key.into_lock_key().ok()?;
        self.iter().find(|(own, _)| **own == key).map(|(_, token)| token)
    }

    /// Returns the tokens, in the order of their keys.
    pub fn iter(&self) -> impl Iterator<Item = (&LockKey, FencingToken)> {
        self.0.iter().map(|(key, token)| (key, *token))
    }

    /// Returns the number of keys.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether there is no key.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<K: AsRef<str> + ?Sized> Index<&K> for FencingTokens {
    type Output = FencingToken;

    /// Returns the token of a key.
    ///
    /// # Panics
    /// When the key is not among them.
    fn index(&self, key: &K) -> &FencingToken {
        let key = key.as_ref();
        let found = self.0.iter().find(|(own, _)| own.as_str() == key);
        &found.unwrap_or_else(|| panic!("no lock is held for the key {key:?}")).1
    }
}
