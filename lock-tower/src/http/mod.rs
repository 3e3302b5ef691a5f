//! Locks around HTTP requests: the service, its future and the body that holds the lock.
//!
//! Start with [`LockLayer`]; the documentation of the [crate] explains what it does. The other
//! types appear in signatures.
//!
//! # Bounds
//! The inner service must be `Clone`. Its responses must be `http::Response`, with a body whose
//! data implements `From<Bytes>`, because refusals are sent as [`Bytes`](bytes::Bytes). Only
//! [detached](LockLayer::detach) handlers must be `Send`.
//!
//! # Bodies
//! `is_end_stream`, `size_hint`, data and trailers are those of the inner body. A response that has
//! no body to send (empty, 204, 304, an upgrade) releases the lock with its head.
//!
//! If the lock ends in the middle of a body, the inner body is dropped and then the lock released.
//! The reader gets an error: over HTTP/1 the connection is closed before the end of the message,
//! over HTTP/2 the stream is reset.

mod answer;
mod body;
mod deadline;
mod future;
mod layer;
mod permits;
#[cfg(feature = "axum")]
mod read_ahead;
mod rules;
mod run;
mod service;

pub use body::{LockBody, LockBodyError};
pub use deadline::{DeadlineUnit, grpc_timeout};
pub use future::LockFuture;
pub use layer::LockLayer;
pub use permits::PermitLayer;
#[cfg(feature = "axum")]
pub use read_ahead::{ReadAhead, ReadAheadFuture, ReadAheadLayer};
pub use rules::HoldUntil;
pub use run::{Attached, AttachedCall, Detached, DetachedCall};
pub use service::LockService;
