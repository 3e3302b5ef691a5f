//! Problem documents (RFC 9457), as which refusals are answered.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderValue, Response, StatusCode};

/// A refusal that is answered by a problem document.
pub(crate) trait Problem {
    type Reason: Copy + Eq + fmt::Debug;

    fn reason(&self) -> Self::Reason;

    /// Returns the document, with the usual status unless another one is given.
    fn document(&self, status: Option<StatusCode>) -> Response<Bytes>;
}

type Replace<R> = dyn Fn(&R) -> Response<Bytes> + Send + Sync;

/// How the refusals of a layer are answered.
pub(crate) struct Answers<R: Problem> {
    /// Those that are not the usual ones. The last one of a reason counts.
    statuses: Vec<(R::Reason, StatusCode)>,
    replace: Option<Arc<Replace<R>>>,
}

impl<R: Problem> Answers<R> {
    pub(crate) fn set_status(&mut self, reason: R::Reason, status: StatusCode) {
        self.statuses.push((reason, status));
    }

    pub(crate) fn replace(&mut self, replace: impl Fn(&R) -> Response<Bytes> + Send + Sync + 'static) {
        self.replace = Some(Arc::new(replace));
    }

    pub(crate) fn answer(&self, refusal: &R) -> Response<Bytes> {
        if let Some(replace) = &self.replace {
            return replace(refusal);
        }
        let chosen = self.statuses.iter().rfind(|(reason, _)| *reason == refusal.reason());
        refusal.document(chosen.map(|(_, status)| *status))
    }
}

impl<R: Problem> Default for Answers<R> {
    fn default() -> Self {
        Self { statuses: Vec::new(), replace: None }
    }
}

impl<R: Problem> Clone for Answers<R> {
    fn clone(&self) -> Self {
        Self { statuses: self.statuses.clone(), replace: self.replace.clone() }
    }
}

impl<R: Problem> fmt::Debug for Answers<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Answers").field("statuses", &self.statuses).finish_non_exhaustive()
    }
}

/// Returns the `type` of a problem.
pub(crate) fn problem_type(name: &str) -> String {
    format!("urn:distlock:problem:{name}")
}

/// Returns a response with a problem document. All texts are fixed: neither key nor owner nor any
/// error is disclosed, and nothing needs escaping.
pub(crate) fn problem(
    name: &str,
    title: &str,
    status: StatusCode,
    detail: impl fmt::Display,
    retry_after_secs: Option<u64>,
) -> Response<Bytes> {
    let text = format!(
        r#"{{"type":"{}","title":"{title}","status":{},"detail":"{detail}"}}"#,
        problem_type(name),
        status.as_u16(),
    );
    let mut response = Response::new(Bytes::from(text));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
    if let Some(seconds) = retry_after_secs {
        response.headers_mut().insert(RETRY_AFTER, seconds.into());
    }
    response
}

/// Returns a duration in whole seconds, rounded up and at least one, for a `Retry-After` field.
pub(crate) fn whole_secs(duration: Duration) -> u64 {
    (duration.as_secs() + u64::from(duration.subsec_nanos() > 0)).max(1)
}
