//! A key function with a mode.

use std::sync::Arc;
use std::time::Duration;

use distlock_api::Mode;

use super::key_of::KeyOf;
use crate::held::HeldLock;
use crate::keys::KeySet;
use crate::refusal::KeyRejection;

/// The keys of `K`, in the modes that a closure returns. Made by
/// [`KeyedLockLayer::mode`](crate::KeyedLockLayer::mode).
#[derive(Debug)]
pub struct WithMode<K, F> {
    key: Arc<K>,
    mode: F,
}

impl<K, F> WithMode<K, F> {
    pub(super) fn new(key: Arc<K>, mode: F) -> Self {
        Self { key, mode }
    }
}

impl<Req, K: KeyOf<Req>, F: Fn(&Req) -> Mode> KeyOf<Req> for WithMode<K, F> {
    fn keys(&self, request: &Req) -> Result<Option<KeySet>, KeyRejection> {
        self.key.keys(request)
    }

    fn mode(&self, request: &Req) -> Mode {
        (self.mode)(request)
    }

    fn deadline(&self, request: &Req) -> Option<Duration> {
        self.key.deadline(request)
    }

    fn granted(&self, request: &mut Req, held: HeldLock) {
        self.key.granted(request, held);
    }

    fn class(&self) -> &str {
        self.key.class()
    }
}
