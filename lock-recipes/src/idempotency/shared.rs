//! What all requests of one layer share, and what follows from it without I/O.

use std::fmt;
use std::sync::Arc;

use distlock_api::LockKey;
use distlock_api::style::Client;
use http::request::Parts;
use http::{HeaderName, HeaderValue, Response};
use http_body::Body;

use super::body::IdempotencyBody;
use super::codec::{KeptAnswer, Remembered, decode};
use super::config::Config;
use super::header::idempotency_key;
use super::refusal::{Reason, Refusal};
use super::scope::{Route, Scope};
use super::tally::{Event, Tally};
use crate::once::OnceProvider;

const REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");
const STATUS: HeaderName = HeaderName::from_static("idempotency-status");
const KEEP: HeaderName = HeaderName::from_static("idempotency-keep");

/// The provider, the settings and the counters of one layer.
pub(super) struct Shared {
    pub(super) provider: Arc<dyn OnceProvider>,
    pub(super) config: Config,
    pub(super) tally: Arc<Tally>,
}

/// The keys of a request that is covered.
pub(super) struct Keys {
    /// As the client sent it.
    pub(super) client: String,
    pub(super) record: LockKey,
    /// Who sent it: the user, or else the peer of the connection, if one is known.
    pub(super) sender: Option<Client>,
}

impl Shared {
    pub(super) fn new(provider: Arc<dyn OnceProvider>, config: Config, tally: Arc<Tally>) -> Self {
        Self { provider, config, tally }
    }

    /// Returns the keys of a request, or `None` if it is not covered.
    pub(super) fn keys(&self, parts: &Parts) -> Result<Option<Keys>, Refusal> {
        if !self.config.methods.contains(&parts.method) {
            return Ok(None);
        }
        let client = match idempotency_key(&parts.headers) {
            Ok(Some(key)) => key,
            Ok(None) if self.config.required => return Err(Refusal::new(Reason::KeyMissing)),
            Ok(None) => return Ok(None),
            Err(error) => return Err(Refusal::new(Reason::KeyInvalid).with_source(error)),
        };
        let who = self.config.who.as_ref().map(|who| who(parts)).transpose()?;
        let scope = Scope { who: who.as_deref(), method: parts.method.as_str(), route: route(parts), key: &client };
        let record = scope.record_key()?;
        let sender = who.map(Client::named).or_else(|| peer(parts));
        Ok(Some(Keys { client, record, sender }))
    }

    /// Reports a refusal in the counters, the metrics and the log, and answers it.
    pub(super) fn refuse<B: Body>(&self, refusal: &Refusal) -> Response<IdempotencyBody<B>> {
        let reason = refusal.reason();
        self.tally.refused(&self.config.class, reason);
        let class = &*self.config.class;
        let error = std::error::Error::source(refusal).map(tracing::field::display);
        match reason {
            Reason::Misconfigured | Reason::Corrupt => {
                tracing::error!(
                    idempotency.class = class,
                    idempotency.outcome = reason.as_str(),
                    error,
                    "request refused"
                );
            }
            Reason::NotRemembered => {
                tracing::warn!(
                    idempotency.class = class,
                    idempotency.outcome = reason.as_str(),
                    error,
                    "answer not sent"
                );
            }
            _ => {
                tracing::debug!(
                    idempotency.class = class,
                    idempotency.outcome = reason.as_str(),
                    error,
                    "request refused"
                );
            }
        }
        self.config.answers.answer(refusal).map(IdempotencyBody::whole)
    }

    /// Tells the client for how many seconds an outcome is kept, from the first answer on.
    pub(super) fn tell_keep<B>(&self, response: &mut Response<B>) {
        response.headers_mut().insert(KEEP, self.config.keep.as_secs().into());
    }

    /// Answers with what is remembered, or refuses.
    pub(super) fn replay<B: Body>(&self, value: &[u8]) -> Result<Response<IdempotencyBody<B>>, Refusal> {
        match decode(value) {
            Ok(Remembered::Answer(answer)) => {
                self.tally.event(&self.config.class, Event::Replayed);
                let mut response = replayed(answer);
                self.tell_keep(&mut response);
                Ok(response)
            }
            Ok(Remembered::NotKept(_)) => Err(Refusal::new(Reason::NotKept)),
            Err(error) => Err(Refusal::new(Reason::Corrupt).with_source(error)),
        }
    }
}

/// Returns the peer of the connection, if the server has put it into the request.
#[cfg(feature = "axum")]
fn peer(parts: &Parts) -> Option<Client> {
    let info = parts.extensions.get::<axum::extract::ConnectInfo<std::net::SocketAddr>>()?;
    Some(Client::peer(info.0.ip()))
}

#[cfg(not(feature = "axum"))]
fn peer(_: &Parts) -> Option<Client> {
    None
}

/// Returns the path that the client sent. A nested router of axum changes that of the URI.
pub(super) fn path(parts: &Parts) -> &str {
    #[cfg(feature = "axum")]
    if let Some(original) = parts.extensions.get::<axum::extract::OriginalUri>() {
        return original.0.path();
    }
    parts.uri.path()
}

fn route(parts: &Parts) -> Route<'_> {
    #[cfg(feature = "axum")]
    if let Some(matched) = parts.extensions.get::<axum::extract::MatchedPath>() {
        return Route::Matched(matched.as_str());
    }
    Route::Path(path(parts))
}

fn replayed<B: Body>(answer: KeptAnswer) -> Response<IdempotencyBody<B>> {
    let mut response = Response::new(IdempotencyBody::whole(answer.body));
    *response.status_mut() = answer.status;
    response.headers_mut().extend(answer.headers);
    response.headers_mut().insert(REPLAYED, HeaderValue::from_static("true"));
    response
}

/// Marks the answer of a request whose retry does not get this answer.
pub(super) fn mark<B>(response: &mut Response<B>, status: &'static str) {
    response.headers_mut().insert(STATUS, HeaderValue::from_static(status));
}

/// The mark of a request that was done, but whose answer is not kept.
pub(super) const NOT_KEPT: &str = "not-kept";

/// The mark of a request that was processed without protection.
pub(super) const NOT_COVERED: &str = "not-covered";

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("provider", &self.provider).field("config", &self.config).finish_non_exhaustive()
    }
}
