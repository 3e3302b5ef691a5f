//! tower middleware that serializes requests per resource, across all replicas of a service.
//!
//! Two requests that change order 4711 are served one after the other, whichever servers they
//! reach; requests for other orders are not held up. The lock comes from any
//! [`LockProvider`](distlock_api::LockProvider).
//!
//! * [`LockLayer`] is for HTTP: axum, hyper, tonic, anything that is a `Service<http::Request<B>>`.
//!   Its error type is that of the inner service; refusals are responses.
//! * [`KeyedLockLayer`] is for every other tower service; see [`keyed`].
//! * [`key`] has the extractors that name a request's locks.
//!
//! # With axum
//! ```
//! # #[cfg(feature = "axum")]
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! use axum::{Router, extract::Path, routing::{post, put}};
//! use distlock_memory::MemoryProvider; // several replicas share a provider with a store, such as MongoDB's
//! use distlock_tower::{HeldLock, LockLayer, key::ParamKey};
//!
//! let order = ParamKey::typed::<u64>("order", "id")?.checked_for(["/orders/{id}", "/orders/{id}/ship"])?;
//! let app: Router = Router::new()
//!     .route("/orders/{id}", put(|Path(id): Path<u64>| async move { format!("changed {id}") }))
//!     .route("/orders/{id}/ship", post(|held: HeldLock| async move { format!("token {}", held.fencing_token()) }))
//!     .route_layer(LockLayer::new(MemoryProvider::new(), order));
//!
//! # use tower::ServiceExt;
//! let request = http::Request::put("/orders/7").body(axum::body::Body::empty())?;
//! assert_eq!(app.oneshot(request).await?.status(), 200);
//! # Ok(())
//! # }
//! # #[cfg(feature = "axum")]
//! # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(run()).unwrap();
//! ```
//!
//! # With any HTTP service
//! ```
//! use std::convert::Infallible;
//!
//! use bytes::Bytes;
//! use distlock_memory::MemoryProvider;
//! use distlock_tower::{LockLayer, key::HeaderKey};
//! use http::{HeaderName, Request, Response};
//! use http_body_util::Full;
//! use tower::{ServiceBuilder, ServiceExt, service_fn};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let tenant = HeaderKey::typed::<u32>("tenant", HeaderName::from_static("x-tenant"))?.required();
//! let service = ServiceBuilder::new()
//!     .layer(LockLayer::new(MemoryProvider::new(), tenant).fail_fast())
//!     .service(service_fn(|_: Request<()>| async { Ok::<_, Infallible>(Response::new(Full::<Bytes>::from("done"))) }));
//!
//! let request = Request::post("/reports").header("x-tenant", "7").body(())?;
//! assert_eq!(service.oneshot(request).await?.status(), 200);
//! # Ok(())
//! # }
//! ```
//!
//! # What happens to a request
//! 1. Safe methods pass, unless [`only_if`](LockLayer::only_if) says otherwise; so does a request
//!    for which the extractor names no key.
//! 2. It waits for its lock up to 5 s ([`wait_up_to`](LockLayer::wait_up_to),
//!    [`fail_fast`](LockLayer::fail_fast)), less if the caller's own deadline is nearer. How many
//!    may wait is bounded, per key and in total.
//! 3. The inner service is called. The request carries a [`HeldLock`].
//! 4. The lock is released when the response body has ended, failed or been dropped, or
//!    [earlier](HoldUntil). Ended means that the server has taken all of the body, not that the
//!    client has. An upgraded connection (101) has no body and continues without the lock.
//!
//! A client that disconnects while it waits leaves no waiter. One that disconnects while it is
//! served has its handler dropped and then its lock released, unless the layer
//! [detaches](LockLayer::detach) handlers.
//!
//! # Refusals
//! | [`Reason`] | status | `Retry-After` |
//! |---|---|---|
//! | `Busy`: locked, and the layer does not wait | 409, by choice 423 | yes |
//! | `Timeout`: stayed locked for the whole wait | 503 | yes |
//! | `Full`: too many wait already | 503 | yes |
//! | `Unavailable`: the lock service is out of reach | 503 | yes |
//! | `Lost`: the lock was lost while the request was served | 503 | yes |
//! | `HeldTooLong`: served for longer than [`max_hold`](LockLayer::max_hold) | 503 | yes |
//! | `BadKey`: the request names no valid key | 400 | no |
//! | `NotFound`: locks are kept in documents, and there is no such document | 404 | no |
//! | `Rejected`: locks are kept in documents, and the collection refuses the one to begin with | 409 | no |
//! | `Misconfigured`: an extractor in the wrong place, credentials refused, something else where the lock should be | 500 | no |
//!
//! The body is a problem document (RFC 9457) whose `type` is `urn:distlock:problem:` and the reason
//! in lower case. It names neither key nor holder. [`status`](LockLayer::status) changes statuses,
//! [`refuse_with`](LockLayer::refuse_with) everything; for gRPC,
//! `refuse_with(Refusal::to_grpc_response)`.
//!
//! The layer fails closed: without its lock no request is served.
//! [`fail_open`](LockLayer::fail_open) changes that for outages of the lock service, and logs a
//! warning each time; whatever the lock service answers is no outage.
//!
//! # What the lock cannot promise
//! A lease protects as long as its holder's process is awake. The layer drops a handler whose lock
//! is lost ([`OnLoss`]), but a process that was paused for longer than its lease finds out only
//! when it continues. Where that matters, store the [fencing token](HeldLock::fencing_token) with
//! the data and refuse smaller ones.
//!
//! Locks are not re-entrant: a request that comes through two layers with the same key, or that
//! calls its own service for the same resource, waits for itself until the wait is over.
//!
//! # Order of layers
//! *Outside* is what sees the request first: the top of a `ServiceBuilder`, the last of several
//! `Router::layer` calls.
//!
//! * **Authentication, rate limits, validation: outside.** A caller that may not do it must not
//!   lock it.
//! * **A timeout outside** covers the wait and the handler. When it strikes, the handler is dropped
//!   and the lock released; a detached handler continues under the lock. This is the usual place.
//!   Keep the layer's wait shorter, so that callers receive 503 with `Retry-After` from here rather
//!   than a bare timeout.
//! * **A timeout inside** covers the handler alone; a request that has waited still has all of it.
//!   It does not cover the body: [`max_hold`](LockLayer::max_hold) does.
//! * **`ConcurrencyLimit`: neither protects from one hot key.** Outside, waiting requests occupy
//!   its permits; inside as well, because a waiting request keeps the service that was ready for
//!   it. Bound the waiters instead: [`max_waiters`](LockLayer::max_waiters) below the limit leaves
//!   room for other keys.
//! * **Catching panics**: inside or outside, the lock is released.
//! * **Reading the request body: outside, where disconnects of HTTP/1 clients matter.** A server
//!   does not see that an HTTP/1 client has gone while there is a request body that is not read.
//!   So a waiting request *with a body* keeps its place until its turn comes or its wait is over;
//!   then its handler starts, and is dropped soon after it has read the body. An outer layer that
//!   reads bodies first – `http::ReadAheadLayer` with the feature `axum` – lets it leave at once.
//!   HTTP/2 has no such limit.
//!
//! # Observability
//! Each request that needs a lock is a span `distlock.request` at level `INFO` with `lock.class`
//! (see [`class`](LockLayer::class)), `lock.wait_ms`, `lock.hold_ms` and `lock.outcome`:
//! `released`, `lost`, `held-too-long`, `cancelled` (dropped before its end: the caller went away,
//! or the server needed no more of the body), `panicked`, or the reason of a refusal. Keys appear
//! in events at level `DEBUG` only.
//!
//! With the feature `metrics`, through the `metrics` facade, labelled `class`: histograms
//! `distlock_tower_wait_seconds` and `distlock_tower_hold_seconds` (also labelled `outcome`),
//! counters `distlock_tower_refusals_total` (also labelled `reason`) and
//! `distlock_tower_failed_open_total`, gauge `distlock_tower_queue_depth`. A [`Monitor`] has the
//! same without a recorder.
//!
//! # Features
//! Both are off by default: `axum` for the extractors of [`key`] that know routes, `HeldLock` as an
//! extractor and `ReadAheadLayer`, `metrics` for the above.

mod gate;
mod held;
pub mod http;
pub mod key;
pub mod keyed;
mod keys;
mod refusal;

pub use self::http::{HoldUntil, LockLayer, LockService};
pub use gate::{Monitor, OnLoss};
pub use held::HeldLock;
#[cfg(feature = "axum")]
pub use held::NotLocked;
pub use keyed::{KeyedLock, KeyedLockError, KeyedLockLayer};
pub use keys::KeySet;
pub use refusal::{KeyRejection, Reason, Refusal};

/// Compiles the example of the README.
#[cfg(all(doctest, feature = "axum"))]
#[doc = include_str!("../README.md")]
struct Readme;
