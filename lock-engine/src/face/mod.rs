//! The public face of the engine: configuration and guards.

pub(crate) mod guard;
pub(crate) mod provider;
#[cfg(all(test, target_os = "linux"))]
mod sleep_tests;
