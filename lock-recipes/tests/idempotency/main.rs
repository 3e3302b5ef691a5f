//! The middleware's tests: a real server and real clients, or a service that is called directly on
//! paused time.

#[macro_use]
#[expect(dead_code, reason = "these tests use a part of it")]
#[path = "../../../lock-tower/tests/tower/common/mod.rs"]
mod common;

mod hostile;
#[cfg(feature = "metrics")]
mod metrics;
mod over_tcp;
mod paused;
