//! Why a request was refused, and how that is answered.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use distlock_api::{Disposition, ErrorKind, LockError};
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderValue, Response, StatusCode};

type Source = Box<dyn StdError + Send + Sync + 'static>;

/// Seconds until another try, while the first request is under way: it may end at any time.
const RETRY_UNDER_WAY: u64 = 1;

/// Seconds until another try, when the store is not available.
const RETRY_OUTAGE: u64 = 5;

/// Why the layer refused a request. The [module](crate::idempotency#refusals) has the statuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reason {
    /// The request has no `Idempotency-Key`, and the layer requires one.
    KeyMissing,
    /// The value of `Idempotency-Key` is not valid.
    KeyInvalid,
    /// The key was used for another request: its path, query, host, content type or body differ.
    KeyReused,
    /// The first request with this key was still under way when the wait was over, or too many
    /// others were waiting for it.
    UnderWay,
    /// An earlier request with this key was interrupted, and may have had an effect.
    Interrupted,
    /// The first request with this key is done, but its answer was not kept.
    NotKept,
    /// The request was begun, but its end could not be remembered: its lease was lost, or the store
    /// did not answer.
    NotRemembered,
    /// Too many requests with a key are in the layer.
    Full,
    /// The client has too many requests with a key at once.
    ClientLimit,
    /// The body is longer than the layer reads.
    BodyTooLong,
    /// The body did not come within the time for reading it.
    BodyTooSlow,
    /// The body could not be read to its end.
    BodyUnreadable,
    /// The store could not be reached, or is shutting down.
    Unavailable,
    /// What is remembered of the key cannot be read. The operator must act.
    Corrupt,
    /// The layer cannot work as it was set up. The operator must act.
    Misconfigured,
}

impl Reason {
    pub(super) const ALL: [Self; 15] = [
        Self::KeyMissing,
        Self::KeyInvalid,
        Self::KeyReused,
        Self::UnderWay,
        Self::Interrupted,
        Self::NotKept,
        Self::NotRemembered,
        Self::Full,
        Self::ClientLimit,
        Self::BodyTooLong,
        Self::BodyTooSlow,
        Self::BodyUnreadable,
        Self::Unavailable,
        Self::Corrupt,
        Self::Misconfigured,
    ];

    /// Returns the reason as a short lower-case word, for logs, metric labels and problem types.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::KeyMissing => "idempotency-key-missing",
            Self::KeyInvalid => "idempotency-key-invalid",
            Self::KeyReused => "idempotency-key-reused",
            Self::UnderWay => "request-under-way",
            Self::Interrupted => "request-interrupted",
            Self::NotKept => "answer-not-kept",
            Self::NotRemembered => "answer-not-remembered",
            Self::Full => "full",
            Self::ClientLimit => "client-limit",
            Self::BodyTooLong => "body-too-long",
            Self::BodyTooSlow => "body-too-slow",
            Self::BodyUnreadable => "body-unreadable",
            Self::Unavailable => "unavailable",
            Self::Corrupt => "outcome-corrupt",
            Self::Misconfigured => "misconfigured",
        }
    }

    pub(super) const fn index(self) -> usize {
        self as usize
    }

    const fn title(self) -> &'static str {
        match self {
            Self::KeyMissing => "Idempotency-Key is missing",
            Self::KeyInvalid => "Idempotency-Key is not valid",
            Self::KeyReused => "Idempotency-Key is already used",
            Self::UnderWay => "Request is outstanding",
            Self::Interrupted => "Request was interrupted",
            Self::NotKept => "Request is done, answer not kept",
            Self::NotRemembered => "Outcome is unknown",
            Self::Full => "Too many requests",
            Self::ClientLimit => "Too many requests of one client",
            Self::BodyTooLong => "Request body is too long",
            Self::BodyTooSlow => "Request body is too slow",
            Self::BodyUnreadable => "Request body is not complete",
            Self::Unavailable => "Idempotency store not available",
            Self::Corrupt => "Outcome cannot be read",
            Self::Misconfigured => "Idempotency layer misconfigured",
        }
    }

    const fn usual_status(self) -> StatusCode {
        match self {
            Self::KeyMissing | Self::KeyInvalid | Self::BodyUnreadable => StatusCode::BAD_REQUEST,
            Self::UnderWay | Self::Interrupted | Self::NotKept => StatusCode::CONFLICT,
            Self::BodyTooLong => StatusCode::PAYLOAD_TOO_LARGE,
            Self::BodyTooSlow => StatusCode::REQUEST_TIMEOUT,
            Self::ClientLimit => StatusCode::TOO_MANY_REQUESTS,
            Self::KeyReused => StatusCode::UNPROCESSABLE_ENTITY,
            Self::Corrupt | Self::Misconfigured => StatusCode::INTERNAL_SERVER_ERROR,
            Self::NotRemembered | Self::Unavailable | Self::Full => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    /// After how many seconds another try of the same request is worth it.
    const fn retry_after_secs(self) -> Option<u64> {
        match self {
            Self::UnderWay | Self::NotRemembered | Self::Full | Self::ClientLimit => Some(RETRY_UNDER_WAY),
            Self::Unavailable => Some(RETRY_OUTAGE),
            _ => None,
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::KeyMissing => "this operation needs an Idempotency-Key: send a new one with each new request",
            Self::KeyInvalid => "the Idempotency-Key must be one string of 1 to 255 printable ASCII characters",
            Self::KeyReused => "the Idempotency-Key belongs to another request: send a new one with each new request",
            Self::UnderWay => "a request with this Idempotency-Key is still being processed: send it again later",
            Self::Interrupted => {
                "an earlier request with this Idempotency-Key was interrupted, and may have had an effect"
            }
            Self::NotKept => "the request with this Idempotency-Key is done, but its answer was not kept",
            Self::NotRemembered => {
                "the request may have had an effect: send it again with the same Idempotency-Key to learn its outcome"
            }
            Self::Full => "too many requests with an Idempotency-Key are being processed: send it again later",
            Self::ClientLimit => "the client has too many requests with an Idempotency-Key at once",
            Self::BodyTooSlow => "the request body did not come in time",
            Self::BodyTooLong => "the request body is longer than is allowed with an Idempotency-Key",
            Self::BodyUnreadable => "the request body could not be read to its end",
            Self::Unavailable => "the store of idempotency keys is not available",
            Self::Corrupt => "what is remembered of this Idempotency-Key cannot be read",
            Self::Misconfigured => "the idempotency layer is misconfigured",
        })
    }
}

/// A refused request: the [reason](Self::reason), when another try is worth it, and the cause as
/// [`source`](StdError::source). The cause is for logs; callers must not see it.
#[derive(Debug)]
pub struct Refusal {
    reason: Reason,
    source: Option<Source>,
}

impl Refusal {
    /// Refuses a request for this reason. For the closure of
    /// [`IdempotencyLayer::new`](super::IdempotencyLayer::new).
    #[must_use]
    pub fn new(reason: Reason) -> Self {
        Self { reason, source: None }
    }

    /// Adds the cause: an error or a text for the log.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// Returns why the request was refused.
    #[must_use]
    pub fn reason(&self) -> Reason {
        self.reason
    }

    /// Returns after how many seconds another try is worth it. `None` if it is pointless.
    #[must_use]
    pub fn retry_after_secs(&self) -> Option<u64> {
        self.reason.retry_after_secs()
    }

    /// Returns the error of the store that caused the refusal, if there is one.
    #[must_use]
    pub fn lock_error(&self) -> Option<&LockError> {
        self.source.as_deref()?.downcast_ref()
    }

    /// Returns the `type` of the problem document: `urn:distlock:problem:` and [`Reason::as_str`].
    /// It never changes.
    #[must_use]
    pub fn problem_type(&self) -> String {
        format!("urn:distlock:problem:{}", self.reason.as_str())
    }

    /// Returns the default answer with its default status, for handlers that only add to it: a
    /// problem document (RFC 9457), and `Retry-After` if another try is worth it.
    #[must_use]
    pub fn to_response(&self) -> Response<Bytes> {
        self.document(self.reason.usual_status())
    }

    /// Returns the problem document. All texts are fixed: neither key nor owner nor any error is
    /// disclosed, and nothing needs escaping.
    fn document(&self, status: StatusCode) -> Response<Bytes> {
        let reason = self.reason;
        let text = format!(
            r#"{{"type":"{}","title":"{}","status":{},"detail":"{reason}"}}"#,
            self.problem_type(),
            reason.title(),
            status.as_u16(),
        );
        let mut response = Response::new(Bytes::from(text));
        *response.status_mut() = status;
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if let Some(seconds) = self.retry_after_secs() {
            response.headers_mut().insert(RETRY_AFTER, seconds.into());
        }
        response
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.reason, f)
    }
}

impl StdError for Refusal {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source.as_deref().map(|source| source as &(dyn StdError + 'static))
    }
}

/// The store answered with an error, or not at all.
impl From<LockError> for Refusal {
    fn from(error: LockError) -> Self {
        let reason = match error.kind() {
            ErrorKind::Corrupt => Reason::Corrupt,
            ErrorKind::Timeout
            | ErrorKind::Unavailable
            | ErrorKind::Overloaded
            | ErrorKind::QueueFull
            | ErrorKind::Lost
            | ErrorKind::Closed => Reason::Unavailable,
            ErrorKind::InvalidKey
            | ErrorKind::InvalidOptions
            | ErrorKind::NotFound
            | ErrorKind::Rejected
            | ErrorKind::Unsupported
            | ErrorKind::PermissionDenied => Reason::Misconfigured,
            // A permanent error needs a change, so another try is pointless.
            _ if error.disposition() == Disposition::Permanent => Reason::Misconfigured,
            _ => Reason::Unavailable,
        };
        Self::new(reason).with_source(error)
    }
}

type Replace = dyn Fn(&Refusal) -> Response<Bytes> + Send + Sync;

/// How the refusals of a layer are answered.
#[derive(Clone, Default)]
pub(super) struct Answers {
    /// The statuses that are not the usual ones. The last one of a reason counts.
    statuses: Vec<(Reason, StatusCode)>,
    replace: Option<Arc<Replace>>,
}

impl Answers {
    pub(super) fn set_status(&mut self, reason: Reason, status: StatusCode) {
        self.statuses.push((reason, status));
    }

    pub(super) fn replace(&mut self, replace: impl Fn(&Refusal) -> Response<Bytes> + Send + Sync + 'static) {
        self.replace = Some(Arc::new(replace));
    }

    pub(super) fn answer(&self, refusal: &Refusal) -> Response<Bytes> {
        if let Some(replace) = &self.replace {
            return replace(refusal);
        }
        let chosen = self.statuses.iter().rfind(|(reason, _)| *reason == refusal.reason);
        refusal.document(chosen.map_or_else(|| refusal.reason.usual_status(), |(_, status)| *status))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_refusal_has_a_problem_type_of_its_own_and_valid_json() {
        let mut types = std::collections::BTreeSet::new();
        for (index, reason) in Reason::ALL.into_iter().enumerate() {
            assert_eq!(reason.index(), index);
            let refusal = Refusal::new(reason).with_source("secret-host");
            let response = refusal.to_response();
            let problem: serde_json::Value = serde_json::from_slice(response.body()).unwrap();
            assert_eq!(problem["type"], refusal.problem_type());
            assert_eq!(problem["status"], response.status().as_u16());
            assert!(!problem.to_string().contains("secret"));
            assert!(types.insert(refusal.problem_type()));
        }
    }

    #[test]
    fn every_error_of_the_store_has_a_reason() {
        let reason = |kind| Refusal::from(LockError::new(kind, "")).reason();
        assert_eq!(reason(ErrorKind::Unavailable), Reason::Unavailable);
        assert_eq!(reason(ErrorKind::Timeout), Reason::Unavailable);
        assert_eq!(reason(ErrorKind::Closed), Reason::Unavailable);
        assert_eq!(reason(ErrorKind::QueueFull), Reason::Unavailable);
        assert_eq!(reason(ErrorKind::Corrupt), Reason::Corrupt);
        assert_eq!(reason(ErrorKind::InvalidOptions), Reason::Misconfigured);
        assert_eq!(reason(ErrorKind::PermissionDenied), Reason::Misconfigured);
        let refusal = Refusal::from(LockError::new(ErrorKind::Unavailable, ""));
        assert_eq!(refusal.lock_error().map(LockError::kind), Some(ErrorKind::Unavailable));
    }
}
