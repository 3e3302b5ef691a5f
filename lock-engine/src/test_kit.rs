//! Short forms for unit tests.

use std::time::Duration;

use distlock_api::{FencingToken, LockKey};

pub(crate) const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

pub(crate) const fn token(token: u64) -> FencingToken {
    FencingToken::new(token)
}

pub(crate) fn key(name: &str) -> LockKey {
    LockKey::new(name).unwrap()
}
