//! What can be set on a layer.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use distlock_api::{AcquireOptions, Wait};
use http::request::Parts;
use http::{HeaderName, Method, StatusCode};

use super::policy::{AfterAnswer, KEPT_HEADERS};
use super::refusal::{Answers, Refusal};
use super::tally::Limits;
use crate::once::{Fingerprint, OnceOptions};

pub(super) type Who = dyn Fn(&Parts) -> Result<String, Refusal> + Send + Sync;
pub(super) type Content = dyn Fn(&Parts, &Bytes) -> Bytes + Send + Sync;
type After = dyn Fn(StatusCode) -> AfterAnswer + Send + Sync;

#[derive(Clone)]
pub(super) struct Config {
    pub(super) class: Arc<str>,
    /// `None` for everyone.
    pub(super) who: Option<Arc<Who>>,
    pub(super) required: bool,
    pub(super) methods: Arc<[Method]>,
    /// These include the wait.
    pub(super) acquire: AcquireOptions,
    /// How many requests with one key may wait.
    pub(super) max_waiters: usize,
    pub(super) limits: Limits,
    /// For the whole body of a request.
    pub(super) read_timeout: Duration,
    /// What of a request besides its path and query tells it from others, if not the usual.
    pub(super) content: Option<Arc<Content>>,
    pub(super) keep: Duration,
    pub(super) run_interrupted_again: bool,
    pub(super) cancel_on_disconnect: bool,
    pub(super) fail_open: bool,
    pub(super) max_request_body: usize,
    pub(super) pass_long_requests: bool,
    pub(super) max_answer_body: usize,
    pub(super) kept_headers: Arc<[HeaderName]>,
    pub(super) after: Arc<After>,
    pub(super) answers: Answers,
}

impl Config {
    pub(super) fn new(who: Option<Arc<Who>>) -> Self {
        Self {
            class: "idempotency".into(),
            who,
            required: false,
            methods: Arc::new([Method::POST, Method::PATCH]),
            acquire: AcquireOptions::new().with_wait(Wait::UpTo(Duration::from_secs(5))),
            max_waiters: 100,
            limits: Limits { total: 256, per_client: 64 },
            read_timeout: Duration::from_secs(30),
            content: None,
            keep: OnceOptions::DEFAULT_KEEP,
            run_interrupted_again: false,
            cancel_on_disconnect: false,
            fail_open: false,
            max_request_body: 1 << 20,
            pass_long_requests: false,
            max_answer_body: 64 << 10,
            kept_headers: Arc::new(KEPT_HEADERS),
            after: Arc::new(AfterAnswer::usual),
            answers: Answers::default(),
        }
    }

    /// Returns the options with which the work of a request is begun.
    pub(super) fn once(&self, fingerprint: Fingerprint) -> OnceOptions {
        let options =
            OnceOptions::new().with_acquire(self.acquire.clone()).with_keep(self.keep).with_fingerprint(fingerprint);
        if self.run_interrupted_again { options } else { options.at_most_once() }
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("class", &self.class)
            .field("for_everyone", &self.who.is_none())
            .field("required", &self.required)
            .field("methods", &self.methods)
            .field("acquire", &self.acquire)
            .field("max_waiters", &self.max_waiters)
            .field("limits", &self.limits)
            .field("read_timeout", &self.read_timeout)
            .field("keep", &self.keep)
            .field("run_interrupted_again", &self.run_interrupted_again)
            .field("cancel_on_disconnect", &self.cancel_on_disconnect)
            .field("fail_open", &self.fail_open)
            .field("max_request_body", &self.max_request_body)
            .field("max_answer_body", &self.max_answer_body)
            .finish_non_exhaustive()
    }
}
