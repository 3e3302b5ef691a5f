//! Which answers are kept, and what of them.

use http::header::{
    ALLOW, CACHE_CONTROL, CONTENT_DISPOSITION, CONTENT_ENCODING, CONTENT_LANGUAGE, CONTENT_LOCATION,
    CONTENT_SECURITY_POLICY, CONTENT_SECURITY_POLICY_REPORT_ONLY, CONTENT_TYPE, ETAG, LAST_MODIFIED, LINK, LOCATION,
    REFERRER_POLICY, STRICT_TRANSPORT_SECURITY, VARY, WWW_AUTHENTICATE, X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};

/// What an answer says about the work. Chosen by status; see
/// [`IdempotencyLayer::after_answer`](super::IdempotencyLayer::after_answer).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AfterAnswer {
    /// The work is done. The answer is kept and sent to every duplicate.
    Keep,
    /// The work has had no effect. Nothing is remembered, and a retry runs it again.
    RunAgain,
    /// The work may have had an effect. It counts as interrupted, as if the handler had died. See
    /// [`IdempotencyLayer::run_interrupted_again`](super::IdempotencyLayer::run_interrupted_again).
    InDoubt,
}

impl AfterAnswer {
    /// Returns the default for a status: [`Keep`](Self::Keep) for 2xx, 3xx and 4xx, but
    /// [`RunAgain`](Self::RunAgain) for 1xx, 5xx, 408, 409, 425 and 429.
    ///
    /// * 3xx is kept because a redirect is the usual answer to a form that was processed.
    /// * 408, 425 and 429 ask for a retry of the same request.
    /// * 409 names a state of the resource that may change, and reports that nothing was done.
    /// * 5xx is the handler's own report of a failure. A handler whose failure may have had an
    ///   effect should have its status answered with [`InDoubt`](Self::InDoubt).
    #[must_use]
    pub fn usual(status: StatusCode) -> Self {
        match status.as_u16() {
            408 | 409 | 425 | 429 => Self::RunAgain,
            200..=499 => Self::Keep,
            _ => Self::RunAgain,
        }
    }

    /// Keeps the first result once the handler has begun, failures with 5xx included, as Stripe
    /// does. Statuses with which a request is refused before that are not kept
    /// ([`RunAgain`](Self::RunAgain)): 1xx, 400, 401, 403, 405, 406, 408, 409, 411, 413, 414, 415,
    /// 417, 421, 422, 425, 426, 428, 429 and 431.
    ///
    /// ```
    /// use distlock_memory::MemoryOnce;
    /// use distlock_recipes::idempotency::{AfterAnswer, IdempotencyLayer};
    ///
    /// let layer = IdempotencyLayer::for_everyone(MemoryOnce::new()).after_answer(AfterAnswer::first_result);
    /// ```
    ///
    /// For handlers that answer with none of these statuses after their work has had an effect. A
    /// layer that refuses with 503, for example because of load, belongs outside.
    #[must_use]
    pub fn first_result(status: StatusCode) -> Self {
        match status.as_u16() {
            ..200 | 400 | 401 | 403 | 405 | 406 | 408 | 409 | 411 | 413..=415 => Self::RunAgain,
            417 | 421 | 422 | 425 | 426 | 428 | 429 | 431 => Self::RunAgain,
            _ => Self::Keep,
        }
    }
}

/// The headers of an answer that are kept by default: what describes it, and what a browser needs
/// to handle it safely. None of them belongs to one connection or one client.
pub(super) const KEPT_HEADERS: [HeaderName; 23] = [
    ALLOW,
    CACHE_CONTROL,
    CONTENT_DISPOSITION,
    CONTENT_ENCODING,
    CONTENT_LANGUAGE,
    CONTENT_LOCATION,
    CONTENT_SECURITY_POLICY,
    CONTENT_SECURITY_POLICY_REPORT_ONLY,
    CONTENT_TYPE,
    HeaderName::from_static("cross-origin-embedder-policy"),
    HeaderName::from_static("cross-origin-opener-policy"),
    HeaderName::from_static("cross-origin-resource-policy"),
    ETAG,
    LAST_MODIFIED,
    LINK,
    LOCATION,
    HeaderName::from_static("permissions-policy"),
    REFERRER_POLICY,
    STRICT_TRANSPORT_SECURITY,
    VARY,
    WWW_AUTHENTICATE,
    X_CONTENT_TYPE_OPTIONS,
    X_FRAME_OPTIONS,
];

/// Returns the chosen headers of an answer, each with all of its values, in order.
pub(super) fn chosen(headers: &HeaderMap, names: &[HeaderName]) -> Vec<(HeaderName, HeaderValue)> {
    headers.iter().filter(|(name, _)| names.contains(name)).map(|(name, value)| (name.clone(), value.clone())).collect()
}

/// Whether a body of this exact length is read in order to be kept. A body without a length is a
/// stream: it may have no end, and must not be held back.
pub(super) fn is_kept(exact_len: Option<u64>, limit: usize) -> bool {
    exact_len.is_some_and(|len| usize::try_from(len).is_ok_and(|len| len <= limit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_that_ask_for_a_retry_are_not_kept() {
        let usual = |status| AfterAnswer::usual(StatusCode::from_u16(status).unwrap());
        for kept in [200, 201, 202, 204, 299, 302, 303, 400, 401, 402, 404, 410, 422, 499] {
            assert_eq!(usual(kept), AfterAnswer::Keep, "{kept}");
        }
        for again in [100, 101, 408, 409, 425, 429, 500, 502, 503, 504, 599, 600, 999] {
            assert_eq!(usual(again), AfterAnswer::RunAgain, "{again}");
        }
    }

    #[test]
    fn the_first_result_is_kept_and_refusals_are_not() {
        let rule = |status| AfterAnswer::first_result(StatusCode::from_u16(status).unwrap());
        for kept in [200, 201, 303, 402, 404, 410, 424, 500, 502, 503, 599] {
            assert_eq!(rule(kept), AfterAnswer::Keep, "{kept}");
        }
        for again in [100, 101, 400, 401, 403, 409, 413, 414, 415, 422, 429] {
            assert_eq!(rule(again), AfterAnswer::RunAgain, "{again}");
        }
    }

    #[test]
    fn only_chosen_headers_are_kept() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("content-type", "text/plain"),
            ("content-security-policy", "default-src 'self'"),
            ("set-cookie", "secret"),
            ("link", "<a>"),
            ("link", "<b>"),
            ("content-length", "7"),
            ("connection", "close"),
            ("date", "now"),
        ] {
            headers.append(name, HeaderValue::from_static(value));
        }
        let kept = chosen(&headers, &KEPT_HEADERS);
        let kept: Vec<_> = kept.iter().map(|(name, value)| (name.as_str(), value.to_str().unwrap())).collect();
        let policy = ("content-security-policy", "default-src 'self'");
        assert_eq!(kept, [("content-type", "text/plain"), policy, ("link", "<a>"), ("link", "<b>")]);
    }

    #[test]
    fn streams_and_long_bodies_are_not_kept() {
        let cases = [(Some(0), true), (Some(8), true), (Some(9), false), (Some(u64::MAX), false), (None, false)];
        for (len, kept) in cases {
            assert_eq!(is_kept(len, 8), kept, "{len:?}");
        }
    }
}
