//! The rules by which the services of one layer serve requests: which of them need the lock, how
//! long they hold it, and how refusals are answered.

use std::fmt;
use std::sync::Arc;

use http::request::Parts;
use http::{HeaderName, Method, Response};

use super::answer::Answers;
use super::body::LockBody;
use super::deadline::DeadlineUnit;
use crate::gate::Gate;
use crate::refusal::Refusal;

/// Until when a request holds its lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum HoldUntil {
    /// Until the head of the response is complete. The body is sent without the lock.
    Head,
    /// Until the body of the response has ended, failed or been dropped. The default.
    #[default]
    Body,
}

pub(super) type Applies = dyn Fn(&Parts) -> bool + Send + Sync;

/// What all services of one `layer` call share. It is behind one `Arc`, because axum clones the
/// service for each request, and each `Arc` in it costs a change of its counter.
pub(super) struct Shared<K> {
    pub(super) key: Arc<K>,
    pub(super) rules: Arc<Rules>,
}

/// How requests are served.
pub(super) struct Rules {
    pub(super) gate: Arc<Gate>,
    pub(super) hold_until: HoldUntil,
    pub(super) answers: Answers,
    pub(super) deadlines: Arc<[(HeaderName, DeadlineUnit)]>,
    pub(super) applies: Option<Arc<Applies>>,
}

impl Rules {
    pub(super) fn applies(&self, parts: &Parts) -> bool {
        match &self.applies {
            Some(applies) => applies(parts),
            // `Method::is_safe` of RFC 9110, 9.2.1: these four.
            None => !matches!(parts.method, Method::GET | Method::HEAD | Method::OPTIONS | Method::TRACE),
        }
    }

    pub(super) fn refuse<B>(&self, refusal: &Refusal) -> Response<LockBody<B>> {
        self.answers.answer(refusal).map(LockBody::refused)
    }
}

impl fmt::Debug for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rules").field("gate", &self.gate).finish_non_exhaustive()
    }
}
