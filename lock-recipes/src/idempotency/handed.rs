//! What a handler gets to know of its run.

use std::sync::Arc;

use distlock_api::{FencingToken, HasFencingToken, LockKey};

use crate::once::{OnceGuard, OnceRun};

/// The run of the work that a request stands for: its key, its fencing token, and whether an
/// earlier run was interrupted.
///
/// [`IdempotencyLayer`](super::IdempotencyLayer) adds it to the extensions of each request whose
/// work it begins; in axum, take it with `Extension<IdempotentRun>`. A request that passes has
/// none, for example one without a key.
///
/// Write the [`fencing_token`](Self::fencing_token) with the data, and have the resource refuse
/// smaller ones.
#[derive(Clone, Debug)]
pub struct IdempotentRun {
    key: LockKey,
    token: FencingToken,
    interrupted: Option<OnceRun>,
    client_key: Arc<str>,
}

impl IdempotentRun {
    pub(super) fn of(guard: &OnceGuard, client_key: &str) -> Self {
        Self {
            key: guard.key().clone(),
            token: guard.fencing_token(),
            interrupted: guard.interrupted().cloned(),
            client_key: client_key.into(),
        }
    }

    /// Returns the key of the work: who sent the request, its method, its route and its
    /// idempotency key in one text, which no other request can have. It is the right key for a
    /// further service that offers idempotency itself.
    #[must_use]
    pub fn key(&self) -> &LockKey {
        &self.key
    }

    /// Returns the token of this run. Later runs of the same key have greater ones.
    #[must_use]
    pub fn fencing_token(&self) -> FencingToken {
        self.token
    }

    /// Returns the earlier run that was begun and did not end, if there was one. It may have done a
    /// part of the work, or all of it. Only with
    /// [`run_interrupted_again`](super::IdempotencyLayer::run_interrupted_again).
    #[must_use]
    pub fn interrupted(&self) -> Option<&OnceRun> {
        self.interrupted.as_ref()
    }

    /// Returns the value of `Idempotency-Key`, without quotes. Different clients may send equal
    /// ones.
    #[must_use]
    pub fn client_key(&self) -> &str {
        &self.client_key
    }
}

impl HasFencingToken for IdempotentRun {
    fn key(&self) -> &LockKey {
        self.key()
    }

    fn fencing_token(&self) -> FencingToken {
        self.fencing_token()
    }
}
