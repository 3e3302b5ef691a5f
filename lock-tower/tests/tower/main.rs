//! The middleware's tests: a real server and real clients, or a service that is called directly on
//! paused time. Each module says what it examines.

#[macro_use]
mod common;

#[cfg(feature = "axum")]
mod bodies;
#[cfg(feature = "axum")]
mod crowd;
mod detached;
mod disconnects;
#[cfg(feature = "axum")]
mod exclusion;
#[cfg(feature = "axum")]
mod grpc;
mod holds;
#[cfg(feature = "axum")]
mod hostile;
mod keyed;
#[cfg(feature = "axum")]
mod loss;
#[cfg(feature = "axum")]
mod modes;
mod order;
mod paused;
#[cfg(feature = "axum")]
mod permits;
mod play;
#[cfg(feature = "axum")]
mod read_ahead;
mod readiness;
#[cfg(feature = "axum")]
mod refusals;
mod retry;
mod stacks;
mod timed;
#[cfg(feature = "axum")]
mod without_modes;
