//! The terms of a candidate.

use std::fmt;
use std::future::{Future, Pending, ready};
use std::sync::Arc;
use std::time::Duration;

use distlock_api::style::yield_on_error;
use distlock_api::{AcquireOptions, LockError, LockKey, LockProvider, Result, Wait, acquire_setters};

use super::backoff::Backoff;
use super::campaign::Candidate;
use super::health::{LeadHealth, Reporter};
use super::term::{Led, Term};
use crate::exclusive::ensure_exclusive;

/// How long one campaign waits by default.
const DEFAULT_ROUND: Duration = Duration::from_secs(30);

/// A candidate for the leadership of a key; call [`run`](Self::run). Made by
/// [`LeadExt::lead`](super::LeadExt::lead).
///
/// The [clauses](crate::contract#leadership) say what it promises. It spawns nothing: the candidate
/// lives in the future of `run`, on any runtime with tokio's time.
///
/// ```
/// # use std::time::Duration;
/// # use distlock_api::LockError;
/// # use distlock_recipes::lead::{LeadExt, Term};
/// # async fn migrate(_: &Term) -> Result<u32, LockError> { Ok(12) }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), LockError> {
/// # let locks = distlock_memory::MemoryProvider::new();
/// let candidate = locks
///     .lead("jobs/migration")
///     .round(Duration::from_secs(10)) // then campaigns again, at the end of the queue
///     .backoff(Duration::from_millis(500), Duration::from_secs(60)); // after failures
/// let led = candidate.run(async |term| migrate(&term).await).await?;
/// if let Some(tables) = led.finished() {
///     println!("{tables} tables were migrated");
/// }
/// # Ok(())
/// # }
/// ```
#[must_use = "a candidate does nothing until it is run"]
pub struct Lead<'a, P: ?Sized, S = Pending<()>> {
    provider: &'a P,
    key: Result<LockKey>,
    options: AcquireOptions,
    backoff: Backoff,
    health: LeadHealth,
    name: Option<Arc<str>>,
    shutdown: S,
}

impl<'a, P: LockProvider + ?Sized> Lead<'a, P> {
    pub(crate) fn new(provider: &'a P, key: Result<LockKey>) -> Self {
        let (options, health) = (AcquireOptions::new(), LeadHealth::new());
        let shutdown = std::future::pending();
        Self { provider, key, options, backoff: Backoff::DEFAULT, health, name: None, shutdown }
    }
}

impl<'a, P: ?Sized, S> Lead<'a, P, S> {
    acquire_setters!();

    /// Replaces the lease terms, the owner, the metadata and the [`round`](Self::round), which is
    /// the wait of the options. Their mode must be exclusive.
    pub fn options(mut self, options: AcquireOptions) -> Self {
        self.options = options;
        self
    }

    /// Sets how long one campaign waits for the present leader before it begins again, at the end
    /// of the queue. Defaults to 30 s.
    ///
    /// A store that does not answer is [`Failing`](super::LeadStatus::Failing) by then. While it
    /// fails, a campaign waits for 5 s at most, so that the end of the failure is soon noticed.
    pub fn round(mut self, wait: Duration) -> Self {
        self.options = self.options.with_wait(Wait::UpTo(wait));
        self
    }

    /// Sets the pauses after failures of the store or of the task: the first one, and the longest.
    /// They double with each failure in a row, and each is shortened by a random part of up to a
    /// half. Defaults to 200 ms and 15 s; at most an hour.
    ///
    /// The pauses begin again with the first one after a campaign that found another leader, after
    /// a loss, and after a term that was longer than the longest pause.
    pub fn backoff(mut self, first: Duration, longest: Duration) -> Self {
        self.backoff = Backoff::new(first, longest);
        self
    }

    /// Reports what the candidate does to this handle. Defaults to one without readers.
    pub fn report_to(mut self, health: &LeadHealth) -> Self {
        self.health = health.clone();
        self
    }

    /// Sets the name in [metrics](super#spans-and-metrics): a constant, one for each leadership.
    /// Defaults to the provider's `Display`.
    pub fn named(mut self, name: impl AsRef<str>) -> Self {
        self.name = Some(name.as_ref().into());
        self
    }

    /// Resigns and ends when `shutdown` resolves, for example with a signal ([L4]). The task is
    /// dropped at its present await. Replaces the future that was set before; defaults to none.
    ///
    /// A task that must come to a clean end gets the signal itself, and finishes.
    ///
    /// [L4]: crate::contract#l4
    pub fn until<U: Future>(self, shutdown: U) -> Lead<'a, P, U> {
        let Self { provider, key, options, backoff, health, name, .. } = self;
        Lead { provider, key, options, backoff, health, name, shutdown }
    }
}

impl<P: LockProvider + ?Sized, S: Future> Lead<'_, P, S> {
    /// Campaigns, and runs what `task` returns while leading. The result of the task decides:
    ///
    /// | the task | the candidate |
    /// |---|---|
    /// | returns `Ok` | resigns, and ends with [`Led::Finished`] |
    /// | returns `Err` | resigns, pauses, and campaigns again |
    /// | is dropped, because the leadership was lost ([L3]) | campaigns again |
    /// | is dropped, because [`until`](Self::until) has resolved | resigns, and ends with [`Led::Stopped`] |
    /// | panics | the panic passes through `run`; the lock is released in the background |
    ///
    /// `task` is called once per term. It can therefore be called while effects of the previous
    /// term are still visible, but never before the previous future has been dropped.
    ///
    /// If the release after a finished task finds the lock lost, or cannot be confirmed, that is
    /// logged: the task has finished.
    ///
    /// # Errors
    /// [`InvalidKey`](distlock_api::ErrorKind::InvalidKey) and
    /// [`InvalidOptions`](distlock_api::ErrorKind::InvalidOptions), before any I/O;
    /// [`Unsupported`](distlock_api::ErrorKind::Unsupported) for an option that the provider does
    /// not promise; [`Closed`](distlock_api::ErrorKind::Closed) when the provider is shut down. All
    /// other errors are retried ([L5]), also those of privileges: an operator can remove their
    /// cause.
    ///
    /// # Cancel safety
    /// Dropping the future drops the task, and then releases the lock or leaves the queue in the
    /// background ([L7]).
    ///
    /// ```
    /// # use distlock_api::LockError;
    /// # use distlock_recipes::lead::{LeadExt, Led};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// # let locks = distlock_memory::MemoryProvider::new();
    /// let mut tries = 0;
    /// let led = locks.lead("migration").run(|term| {
    ///     tries += 1;
    ///     let result = if tries < 2 { Err("the schema is busy") } else { Ok(term.fencing_token()) };
    ///     std::future::ready(result)
    /// });
    /// let Led::Finished(term) = led.await? else { unreachable!("there is no `until`") };
    /// println!("migrated in term {term}, the second one");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// [L3]: crate::contract#l3
    /// [L5]: crate::contract#l5
    /// [L7]: crate::contract#l7
    pub async fn run<T, E, F>(self, task: impl FnMut(Term) -> F) -> Result<Led<T>>
    where
        F: Future<Output = Result<T, E>>,
        E: fmt::Display,
    {
        let Self { provider, key, options, backoff, health, name, shutdown } = self;
        let checked = key.and_then(|key| {
            let terms = terms(options).and_then(|terms| backoff.validate().map(|()| terms));
            terms.map(|terms| (key.clone(), terms)).map_err(|error| error.with_key(key))
        });
        let (key, (options, round)) = yield_on_error(ready(checked)).await?;
        let reporter = Reporter::begin(health, name.unwrap_or_else(|| provider.to_string().into()));
        let candidate = Candidate { provider, key, options, round, backoff, reporter };
        candidate.run(shutdown, task).await
    }
}

/// Returns the options of each campaign, and how long it waits.
fn terms(options: AcquireOptions) -> Result<(AcquireOptions, Duration)> {
    ensure_exclusive(options.mode(), "leadership")?;
    let round = match options.wait() {
        Wait::Forever => DEFAULT_ROUND,
        Wait::UpTo(round) if !round.is_zero() => round,
        Wait::Try | Wait::UpTo(_) => {
            return Err(LockError::invalid_options("a campaign must wait: give it a round that is not zero"));
        }
    };
    // The next leader must come at once, even if the provider's leases linger (L4).
    let lease = options.lease();
    let linger = lease.get_linger().unwrap_or(Duration::ZERO);
    Ok((options.with_lease(lease.linger(linger)), round))
}

impl<P: ?Sized, S> fmt::Debug for Lead<'_, P, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lead")
            .field("key", &self.key)
            .field("options", &self.options)
            .field("health", &self.health)
            .finish_non_exhaustive()
    }
}
