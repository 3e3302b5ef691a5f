//! The options of one call of `once`.

use distlock_api::{AcquireOptions, LockError, Result, Wait};

use crate::exclusive::ensure_exclusive;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

/// What identifies a request, so that another request under the same key is noticed: some bytes or
/// a text, such as the digest of the request's body.
///
/// Two fingerprints are equal exactly when their bytes are. At most
/// [`MAX_LEN`](Self::MAX_LEN) bytes, which is checked when the fingerprint is used.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Fingerprint(Arc<[u8]>);

impl Fingerprint {
    /// The length of the longest fingerprint, in bytes: 1,024. Use a digest of longer requests.
    pub const MAX_LEN: usize = 1024;

    /// Makes a fingerprint of bytes or a text.
    pub fn new(bytes: impl AsRef<[u8]>) -> Self {
        Self(bytes.as_ref().into())
    }

    /// Returns the bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// Shows a text as such, and other bytes in hexadecimal.
impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match std::str::from_utf8(&self.0) {
            Ok(text) => fmt::Debug::fmt(text, f),
            Err(_) => self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}")),
        }
    }
}

/// The options of one call of [`OnceProvider::once_with`](super::OnceProvider::once_with). The
/// setters of [`BeginOnce`](super::BeginOnce) set the same values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OnceOptions {
    acquire: AcquireOptions,
    keep: Option<Duration>,
    fingerprint: Option<Fingerprint>,
    at_most_once: bool,
}

impl OnceOptions {
    /// How long an outcome is kept by default: one day.
    pub const DEFAULT_KEEP: Duration = Duration::from_secs(24 * 60 * 60);
    /// The longest time that an outcome is kept: ten years of 365 days.
    pub const MAX_KEEP: Duration = Duration::from_secs(3650 * 24 * 60 * 60);
    /// The length of the longest value, in bytes: 1 MiB. Store larger outcomes elsewhere, and
    /// remember where.
    pub const MAX_VALUE_LEN: usize = 1 << 20;

    /// Returns the defaults: a wait without a limit, an outcome that is kept for a day, no
    /// fingerprint.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the wait for work that is under way, the terms of the lease, and the holder. The mode
    /// must be exclusive.
    #[must_use]
    pub fn with_acquire(mut self, options: AcquireOptions) -> Self {
        self.acquire = options;
        self
    }

    /// Sets how long the outcome is kept, in whole milliseconds. Defaults to
    /// [`DEFAULT_KEEP`](Self::DEFAULT_KEEP).
    #[must_use]
    pub fn with_keep(mut self, keep: Duration) -> Self {
        self.keep = Some(keep);
        self
    }

    /// Sets the fingerprint of the request. Defaults to none, which is equal to every other.
    #[must_use]
    pub fn with_fingerprint(mut self, fingerprint: Fingerprint) -> Self {
        self.fingerprint = Some(fingerprint);
        self
    }

    /// Never begins work that was interrupted. Defaults to beginning it again.
    #[must_use]
    pub fn at_most_once(mut self) -> Self {
        self.at_most_once = true;
        self
    }

    /// Returns the wait, the terms of the lease, and the holder.
    #[must_use]
    pub fn acquire(&self) -> &AcquireOptions {
        &self.acquire
    }

    /// Returns how long the outcome is kept.
    #[must_use]
    pub fn keep(&self) -> Duration {
        self.keep.unwrap_or(Self::DEFAULT_KEEP)
    }

    /// Returns the fingerprint, if one is set.
    #[must_use]
    pub fn fingerprint(&self) -> Option<&Fingerprint> {
        self.fingerprint.as_ref()
    }

    /// Whether interrupted work is never begun again.
    #[must_use]
    pub fn is_at_most_once(&self) -> bool {
        self.at_most_once
    }

    /// Returns the rest of the wait of a call that began at `since`. For backends.
    #[must_use]
    pub fn wait_left(&self, since: Instant) -> Wait {
        match self.acquire.wait() {
            Wait::UpTo(limit) => match limit.saturating_sub(since.elapsed()) {
                Duration::ZERO => Wait::Try,
                left => Wait::UpTo(left),
            },
            other => other,
        }
    }

    /// Checks the options, except those of the lease. For backends, before any I/O.
    ///
    /// # Errors
    /// [`InvalidOptions`](distlock_api::ErrorKind::InvalidOptions) for a `keep` below 1 ms or above
    /// [`MAX_KEEP`](Self::MAX_KEEP), for a fingerprint that is too long, and for a
    /// [mode](distlock_api::Mode) that is not exclusive.
    pub fn validate(&self) -> Result<()> {
        ensure_exclusive(self.acquire.mode(), "work that is done once")?;
        let keep = self.keep();
        if keep < Duration::from_millis(1) || keep > Self::MAX_KEEP {
            return Err(LockError::invalid_options(format!(
                "an outcome is kept for at least 1 ms and at most {:?}, not for {keep:?}",
                Self::MAX_KEEP
            )));
        }
        if let Some(len) = self.fingerprint().map(|print| print.0.len()).filter(|len| *len > Fingerprint::MAX_LEN) {
            return Err(LockError::invalid_options(format!(
                "a fingerprint has at most {} bytes, this one has {len}: use a digest of the request",
                Fingerprint::MAX_LEN
            )));
        }
        Ok(())
    }

    /// Checks a value to remember. For backends, before any I/O.
    ///
    /// # Errors
    /// [`InvalidOptions`](distlock_api::ErrorKind::InvalidOptions) for a value above
    /// [`MAX_VALUE_LEN`](Self::MAX_VALUE_LEN).
    pub fn validate_value(value: &[u8]) -> Result<()> {
        if value.len() > Self::MAX_VALUE_LEN {
            return Err(LockError::invalid_options(format!(
                "a remembered value has at most {} bytes, this one has {}: store it elsewhere, and remember where",
                Self::MAX_VALUE_LEN,
                value.len()
            )));
        }
        Ok(())
    }
}
