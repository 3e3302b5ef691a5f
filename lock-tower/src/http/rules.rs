//! The rules by which the services of one layer serve requests: which of them need the lock, how
//! long they hold it, and how refusals are answered.

use std::fmt;
use std::sync::Arc;

use distlock_api::Mode;
use distlock_api::style::Client;
use http::request::Parts;
use http::{HeaderName, Method, Response};

use super::answer::Answers;
use super::body::LockBody;
use super::deadline::DeadlineUnit;
use crate::gate::{Claims, Gate};
use crate::held::HeldLock;
use crate::keys::KeySet;
use crate::refusal::Refusal;

/// Until when a request holds its lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum HoldUntil {
    /// Until the head of the response is complete. The body is sent without the lock.
    Head,
    /// Until the body of the response has ended, failed or been dropped. The default.
    #[default]
    Body,
}

pub(super) type Applies = dyn Fn(&Parts) -> bool + Send + Sync;
pub(super) type NameClient = dyn Fn(&Parts) -> Option<String> + Send + Sync;

/// In which mode a request acquires its keys.
#[derive(Clone, Default)]
pub(super) enum Modes {
    #[default]
    Exclusive,
    /// Shared if its method is safe, exclusive otherwise.
    SharedIfSafe,
    /// Of [`PermitLayer`](crate::PermitLayer).
    Always(Mode),
    Chosen(Arc<dyn Fn(&Parts) -> Mode + Send + Sync>),
}

impl Modes {
    fn of(&self, parts: &Parts) -> Mode {
        match self {
            Self::SharedIfSafe if is_safe(&parts.method) => Mode::Shared,
            Self::Exclusive | Self::SharedIfSafe => Mode::Exclusive,
            Self::Always(mode) => *mode,
            Self::Chosen(choose) => choose(parts),
        }
    }
}

/// `Method::is_safe` of RFC 9110, 9.2.1: these four.
fn is_safe(method: &Method) -> bool {
    matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS | Method::TRACE)
}

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
    pub(super) client: Option<Arc<NameClient>>,
    pub(super) modes: Modes,
}

impl Rules {
    /// Whether a request needs the lock. OPTIONS never does: a browser sends it before the request
    /// itself, and its answer depends on no resource.
    pub(super) fn applies(&self, parts: &Parts) -> bool {
        if parts.method == Method::OPTIONS {
            return false;
        }
        match (&self.applies, &self.modes) {
            (Some(applies), _) => applies(parts),
            (None, Modes::Exclusive) => !is_safe(&parts.method),
            (None, _) => true,
        }
    }

    /// Whether the lock of a layer outside stays visible: a permit does not hide it.
    pub(super) fn keeps_outer_lock(&self) -> bool {
        matches!(self.modes, Modes::Always(_))
    }

    /// Returns what a request claims, or refuses it because of its client.
    pub(super) fn claims(&self, keys: KeySet, parts: &Parts) -> Result<Claims, Refusal> {
        let mut claims = Claims::new(keys, self.modes.of(parts));
        if let Some(held) = parts.extensions.get::<HeldLock>() {
            claims.outside = held.excluding(claims.keys.as_slice(), claims.mode);
        }
        claims.client = self.client(parts);
        claims.place = claims.client.clone().map(|client| self.gate.enter(client)).transpose()?;
        Ok(claims)
    }

    fn client(&self, parts: &Parts) -> Option<Client> {
        match &self.client {
            Some(name) => name(parts).map(Client::named),
            None => peer(parts),
        }
    }

    pub(super) fn refuse<B>(&self, refusal: &Refusal) -> Response<LockBody<B>> {
        self.answers.answer(refusal).map(LockBody::refused)
    }
}

/// The peer of the connection, if the server has put it into the request.
#[cfg(feature = "axum")]
fn peer(parts: &Parts) -> Option<Client> {
    let info = parts.extensions.get::<axum::extract::ConnectInfo<std::net::SocketAddr>>()?;
    Some(Client::peer(info.0.ip()))
}

#[cfg(not(feature = "axum"))]
fn peer(_: &Parts) -> Option<Client> {
    None
}

impl fmt::Debug for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rules").field("gate", &self.gate).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn safe_methods_share() {
        let mode = |method: Method| {
            let request = http::Request::builder().method(method).body(()).unwrap();
            Modes::SharedIfSafe.of(&request.into_parts().0)
        };
        for safe in [Method::GET, Method::HEAD, Method::OPTIONS, Method::TRACE] {
            assert_eq!(mode(safe), Mode::Shared);
        }
        for other in [Method::POST, Method::PUT, Method::PATCH, Method::DELETE, Method::CONNECT] {
            assert_eq!(mode(other), Mode::Exclusive);
        }
        assert_eq!(mode(Method::from_bytes(b"PROPFIND").unwrap()), Mode::Exclusive, "its class is not known");
    }
}
