//! The responses of refusals: problem documents (RFC 9457), unless the layer has others.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderValue, Response, StatusCode};

use crate::refusal::{Reason, Refusal};

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
        let chosen = self.statuses.iter().rfind(|(reason, _)| *reason == refusal.reason());
        document(refusal, chosen.map_or_else(|| usual_status(refusal.reason()), |(_, status)| *status))
    }
}

impl fmt::Debug for Answers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Answers").field("statuses", &self.statuses).finish_non_exhaustive()
    }
}

/// Returns a response with a problem document. All texts are fixed: neither key nor owner nor any
/// error is disclosed, and nothing needs escaping.
fn document(refusal: &Refusal, status: StatusCode) -> Response<Bytes> {
    let reason = refusal.reason();
    let text = format!(
        r#"{{"type":"{}","title":"{}","status":{},"detail":"{reason}"}}"#,
        refusal.problem_type(),
        title(reason),
        status.as_u16(),
    );
    let mut response = Response::new(Bytes::from(text));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
    if let Some(seconds) = refusal.retry_after_secs() {
        response.headers_mut().insert(RETRY_AFTER, seconds.into());
    }
    response
}

fn usual_status(reason: Reason) -> StatusCode {
    match reason {
        Reason::Busy | Reason::Rejected => StatusCode::CONFLICT,
        Reason::Timeout | Reason::Full | Reason::Unavailable | Reason::Lost | Reason::HeldTooLong => {
            StatusCode::SERVICE_UNAVAILABLE
        }
        Reason::NoPermit | Reason::ClientLimit => StatusCode::TOO_MANY_REQUESTS,
        Reason::BadKey => StatusCode::BAD_REQUEST,
        Reason::NotFound => StatusCode::NOT_FOUND,
        Reason::Misconfigured => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

impl Refusal {
    /// Returns the `type` of the problem document: `urn:distlock:problem:` and [`Reason::as_str`].
    /// It never changes.
    #[must_use]
    pub fn problem_type(&self) -> String {
        format!("urn:distlock:problem:{}", self.reason().as_str())
    }

    /// Returns the default answer with its default status, for handlers that only add to it: a
    /// problem document (RFC 9457), and `Retry-After` if another try is worth it.
    #[must_use]
    pub fn to_response(&self) -> Response<Bytes> {
        document(self, usual_status(self.reason()))
    }

    /// Returns the gRPC status code of this refusal, for `tonic::Code::from_i32`.
    ///
    /// | [`Reason`] | code |
    /// |---|---|
    /// | `Busy`, `Lost` | `ABORTED` (10) |
    /// | `Timeout` | `DEADLINE_EXCEEDED` (4) |
    /// | `NoPermit`, `Full`, `ClientLimit`, `HeldTooLong` | `RESOURCE_EXHAUSTED` (8) |
    /// | `Unavailable` | `UNAVAILABLE` (14) |
    /// | `BadKey` | `INVALID_ARGUMENT` (3) |
    /// | `NotFound` | `NOT_FOUND` (5) |
    /// | `Rejected` | `FAILED_PRECONDITION` (9) |
    /// | `Misconfigured` | `INTERNAL` (13) |
    #[must_use]
    pub fn grpc_code(&self) -> i32 {
        match self.reason() {
            Reason::BadKey => 3,
            Reason::Timeout => 4,
            Reason::NotFound => 5,
            Reason::NoPermit | Reason::Full | Reason::ClientLimit | Reason::HeldTooLong => 8,
            Reason::Rejected => 9,
            Reason::Busy | Reason::Lost => 10,
            Reason::Misconfigured => 13,
            Reason::Unavailable => 14,
        }
    }

    /// Returns the answer for gRPC callers: a response of trailers only, with the
    /// [code](Self::grpc_code) as `grpc-status`, and `grpc-message`.
    #[must_use]
    pub fn to_grpc_response(&self) -> Response<Bytes> {
        let mut response = Response::new(Bytes::new());
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        headers.insert("grpc-status", self.grpc_code().into());
        headers.insert("grpc-message", HeaderValue::from_static(title(self.reason())));
        response
    }
}

const fn title(reason: Reason) -> &'static str {
    match reason {
        Reason::Busy => "Resource is locked",
        Reason::Timeout => "Resource stayed locked",
        Reason::NoPermit => "Too many requests at once",
        Reason::Full => "Too many requests for a resource",
        Reason::ClientLimit => "Too many requests of one client",
        Reason::Unavailable => "Lock service not available",
        Reason::Lost => "Lock lost",
        Reason::HeldTooLong => "Lock held too long",
        Reason::BadKey => "Invalid lock key",
        Reason::NotFound => "Nothing to lock",
        Reason::Rejected => "Resource refused to be locked",
        Reason::Misconfigured => "Lock layer misconfigured",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_refusal_has_a_problem_type_of_its_own_and_valid_json() {
        let mut types = std::collections::BTreeSet::new();
        for reason in Reason::ALL {
            let refusal = Refusal::new(reason);
            let response = refusal.to_response();
            let problem: serde_json::Value = serde_json::from_slice(response.body()).unwrap();
            assert_eq!(problem["type"], refusal.problem_type());
            assert!(types.insert(refusal.problem_type()));
            let grpc = refusal.to_grpc_response();
            assert!(grpc.status() == 200 && grpc.body().is_empty() && grpc.headers()["grpc-status"] != "0");
        }
    }

    #[test]
    fn nothing_of_the_cause_is_disclosed() {
        let cause = distlock_api::LockError::new(distlock_api::ErrorKind::Unavailable, "secret-host refused");
        let response = Refusal::from(cause).to_response();
        assert!(!std::str::from_utf8(response.body()).unwrap().contains("secret"));
    }
}
