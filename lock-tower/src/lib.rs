//! tower middleware that takes a distributed lock per resource around each request.
//!
//! Two requests that change order 4711 are served one after the other, whichever replicas of the
//! service they reach. Requests for other orders do not wait. The lock comes from any
//! [`LockProvider`](distlock_api::LockProvider). The examples use the in-memory one, which is
//! enough for one process. Several replicas share a provider with a store, such as `MongoProvider`
//! of `distlock-mongo`.
//!
//! * [`LockLayer`] is for HTTP: axum, hyper, tonic, any `Service<http::Request<B>>`. Refusals are
//!   responses, and the error type is that of the inner service.
//! * [`PermitLayer`] serves at most `n` HTTP requests of a key at the same time, over all replicas.
//! * [`KeyedLockLayer`] is for every other tower service; see [`keyed`].
//! * [`key`] has the extractors that name the locks of a request.
//!
//! Requests with an `Idempotency-Key` are processed once by the `IdempotencyLayer` of
//! `distlock-recipes`.
//!
//! # With axum
//! ```
//! # #[cfg(feature = "axum")]
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! use axum::{Router, extract::Path, routing::{post, put}};
//! use distlock_memory::MemoryProvider;
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
//! let tenant = HeaderKey::typed::<u32>("tenant", HeaderName::from_static("x-tenant"))?;
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
//! 1. Safe methods (GET, HEAD, OPTIONS, TRACE) pass; [`only_if`](LockLayer::only_if) and
//!    [modes](#readers-together-and-permits) change that, but never for OPTIONS, which browsers
//!    send before a request (CORS). A request for which the extractor names no key passes as well.
//! 2. The request waits for its lock up to 5 s ([`wait_up_to`](LockLayer::wait_up_to),
//!    [`fail_fast`](LockLayer::fail_fast)), or less if the caller's own deadline is nearer. See
//!    [Limits](#limits).
//! 3. The inner service is called. The request carries a [`HeldLock`]. The lease is renewed as long
//!    as the request is served.
//! 4. The lock is released when the response body has ended, failed or been dropped, or
//!    [earlier](HoldUntil), and at the latest after a [maximum hold](LockLayer::max_hold). Ended
//!    means that the server has taken all of the body, not that the client has.
//!
//! A client that disconnects while it waits leaves no waiter. If it disconnects while it is served,
//! its handler is dropped and then its lock released, unless the layer
//! [detaches](LockLayer::detach) handlers.
//!
//! # Limits
//! A client may send and read as slowly as it likes, or go away and come again. So each of these
//! has a default:
//!
//! | what | default | set by |
//! |---|---|---|
//! | the wait for a lock | 5 s | [`wait_up_to`](LockLayer::wait_up_to) |
//! | a hold, from the grant to the end of the response | 1 min | [`max_hold`](LockLayer::max_hold), [`without_max_hold`](LockLayer::without_max_hold) |
//! | requests that wait for one key | 64, of one client 48 | [`max_waiters_per_key`](LockLayer::max_waiters_per_key) |
//! | requests that wait for any key | 1024, then a fair share for each key | [`max_waiters`](LockLayer::max_waiters) |
//! | requests of one client that wait or hold | 256 | [`client`](LockLayer::client), [`max_requests_per_client`](LockLayer::max_requests_per_client) |
//! | holds of a layer that detaches handlers | 1024 | [`max_held`](LockLayer::max_held) |
//!
//! The numbers are per replica. Without detached handlers, the holds are bounded by what the server
//! serves at the same time.
//!
//! # WebSockets and server-sent events
//! An upgraded connection has no body and continues without the lock: 101 over HTTP/1, the answer
//! to an extended CONNECT over HTTP/2. The lock covers the handler that accepts it. A stream of
//! server-sent events is a body, so the lock is held as long as the client listens, up to the
//! maximum hold. Then the stream ends with an error, and an `EventSource` of a browser connects
//! again. That is rarely meant: choose [`HoldUntil::Head`]. As both usually begin with a GET, they
//! pass without a lock unless a mode or `only_if` says otherwise.
//!
//! # Readers together, and permits
//! A lock is exclusive unless the layer has a [mode](LockLayer::mode). With
//! [`shared_for_safe_methods`](LockLayer::shared_for_safe_methods), requests with safe methods are
//! served together, and none of them while another request changes the resource. Readers and
//! writers wait in one queue, so neither starves the other.
//!
//! [`PermitLayer`] limits how many requests of a key are served at the same time. The provider must
//! have [shared locks](distlock_api::Capabilities::shared) or
//! [permits](distlock_api::Capabilities::permits).
//!
//! # Refusals
//! | [`Reason`] | status | `Retry-After` |
//! |---|---|---|
//! | `Busy`: locked, and the layer does not wait | 409, by choice 423 | yes |
//! | `Timeout`: stayed locked for the whole wait | 503 | yes |
//! | `NoPermit`: no permit became free within the wait | 429 | yes |
//! | `Full`: too many requests are waiting, or hold their locks | 503 | yes |
//! | `ClientLimit`: the client has too many requests at once | 429 | yes |
//! | `Unavailable`: the lock service cannot be reached | 503 | yes |
//! | `Lost`: the lock was lost while the request was served | 503 | yes |
//! | `HeldTooLong`: served for longer than [`max_hold`](LockLayer::max_hold) | 503 | yes |
//! | `BadKey`: the request names no valid key | 400 | no |
//! | `NotFound`: locks are kept in documents, and there is no such document | 404 | no |
//! | `Rejected`: locks are kept in documents, and the collection refuses the new document | 409 | no |
//! | `Misconfigured`: an extractor in the wrong place, two layers with one key, refused credentials, foreign data in the place of the lock | 500 | no |
//!
//! The body is a problem document (RFC 9457) whose `type` is `urn:distlock:problem:` and the reason
//! in lower case. It names neither key nor holder. [`status`](LockLayer::status) changes statuses,
//! [`refuse_with`](LockLayer::refuse_with) everything; for gRPC,
//! `refuse_with(Refusal::to_grpc_response)`.
//!
//! The layer fails closed: without its lock no request is served.
//! [`fail_open`](LockLayer::fail_open) changes that for outages of the lock service, and logs a
//! warning each time. An error that the lock service answers with is no outage.
//!
//! # What the lock cannot promise
//! A lease protects as long as its holder's process is awake. The layer drops a handler whose lock
//! is lost ([`OnLoss`]). A process that was paused for longer than its lease notices that only when
//! it continues. Where that matters, store the [fencing token](HeldLock::fencing_token) with the
//! data and refuse smaller ones.
//!
//! # A request that waits for itself
//! Locks are not re-entrant. A request that passes two layers with the same key would wait for
//! itself. The inner layer recognizes that: it refuses the request as [`Reason::Misconfigured`]
//! instead of waiting, and logs an error with the classes of both layers.
//!
//! Before it waits for a key that the request's [`HeldLock`] names, the inner layer queries both
//! providers for the acquisition that [holds it](distlock_api::LockAdmin::inspect). If the answer
//! is the same, so is the lock, whether or not there are clones, wrappers, or two providers of one
//! database. The name of a provider does not matter. So layers over different stores may use the
//! same keys: each waits for the holders of its own, at the price of the two queries.
//!
//! Where a provider has no administration, or a query fails, only clones of one layer recognize
//! each other. Other requests wait as usual: 503 after [`wait_up_to`](LockLayer::wait_up_to). The
//! same happens if the layers name one lock by different keys, such as `a/7` and `7` in the
//! namespace `a`.
//!
//! **A handler must not acquire the lock of its own layer.** Nothing recognizes that, because a
//! provider does not know for which request it is called. The acquisition waits until its own
//! timeout. Without one, it waits until the [maximum hold](LockLayer::max_hold) ends the request
//! with 503 and `Retry-After`, and each retry ends in the same way. The log has a warning with the
//! class of the layer then. A handler that calls its own service for the same resource waits in the
//! same way.
//!
//! Code that needs a proof of the lock takes a
//! [`HasFencingToken`](distlock_api::HasFencingToken). A [`HeldLock`] is one. So is a guard, for
//! callers that no layer has locked:
//!
//! ```
//! use distlock_api::{FencedRegister, FencedWrite, HasFencingToken};
//! use distlock_tower::HeldLock;
//!
//! fn store(balance: &FencedRegister<i64>, held: &impl HasFencingToken, value: i64) -> FencedWrite {
//!     balance.write(held.fencing_token(), value)
//! }
//!
//! // In the handler of a route with a layer. Elsewhere, pass a guard.
//! fn deposit(balance: &FencedRegister<i64>, held: &HeldLock) -> FencedWrite {
//!     store(balance, held, 7)
//! }
//! ```
//!
//! # Order of layers
//! *Outside* is the layer that sees the request first: the top of a `ServiceBuilder`, the last of
//! several `Router::layer` calls.
//!
//! * **Tracing: outside.** The span of a request is then a child of the server's, and its refusals
//!   are logged as well.
//! * **CORS: outside.** A browser shows a script only answers with CORS headers, and refusals need
//!   them, too. Expose `Retry-After` as well, or scripts do not see it. A preflight needs no lock,
//!   so it is answered in either place.
//! * **Authentication, rate limits, validation, limits of body length: outside.** A caller that may
//!   not change a resource must not lock it. The limit of axum (`DefaultBodyLimit`) counts when the
//!   handler reads the body, so under the lock. `RequestBodyLimitLayer` of tower-http outside
//!   refuses a declared length that is too long before the wait.
//! * **Compression: in either place.** The body that holds the lock is read to its end in both.
//!   Outside, refusals are compressed, too.
//! * **A timeout outside** covers the wait and the handler. When it ends, the handler is dropped
//!   and the lock released; a detached handler continues under the lock. This is the usual place.
//!   Keep the layer's wait shorter than the timeout. Callers then get 503 with `Retry-After` from
//!   the layer rather than a bare timeout.
//! * **A timeout inside** covers the handler alone, so a request that has waited still has all of
//!   it. It does not cover the body: [`max_hold`](LockLayer::max_hold) does.
//! * **`ConcurrencyLimit` does not protect from one hot key**, in either place. Outside, waiting
//!   requests occupy its permits. Inside they do as well, because a waiting request keeps the
//!   service that was ready for it. Limit the waiters instead:
//!   [`max_waiters`](LockLayer::max_waiters) below the limit leaves room for other keys.
//! * **Catching panics**: inside or outside, the lock is released.
//! * **Reading request bodies: outside, if disconnects of HTTP/1 clients matter.** A server
//!   does not notice that an HTTP/1 client has gone while a request body is unread. So a waiting
//!   request *with a body* keeps its place until its turn comes or its wait is over. In its turn,
//!   the handler starts, and is dropped soon after it has read the body. An outer layer that reads
//!   bodies first, `http::ReadAheadLayer` with the feature `axum`, lets the request leave at once.
//!   HTTP/2 has no such limit.
//!
//! # gRPC beside axum
//! One server may have services of tonic and routes of axum. Give each kind a layer of its own: the
//! key is in another place, and refusals look different. Extractors with the same namespace name
//! the same locks, so a call and an HTTP request for one account take turns:
//!
//! ```
//! # #[cfg(feature = "axum")]
//! # fn run() -> Result<(), Box<dyn std::error::Error>> {
//! # use std::{convert::Infallible, future::{Ready, ready}, task::{Context, Poll}};
//! # use tonic::{Status, body::Body, server::NamedService};
//! # #[derive(Clone)]
//! # struct AccountsServer;
//! # impl NamedService for AccountsServer {
//! #     const NAME: &'static str = "bank.Accounts";
//! # }
//! # impl tower::Service<http::Request<Body>> for AccountsServer {
//! #     type Response = http::Response<Body>;
//! #     type Error = Infallible;
//! #     type Future = Ready<Result<Self::Response, Infallible>>;
//! #     fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
//! #         Poll::Ready(Ok(()))
//! #     }
//! #     fn call(&mut self, _: http::Request<Body>) -> Self::Future {
//! #         ready(Ok(Status::unimplemented("an example").into_http()))
//! #     }
//! # }
//! use axum::{Router, routing::put};
//! use distlock_memory::MemoryProvider;
//! use distlock_tower::key::{HeaderKey, ParamKey};
//! use distlock_tower::{LockLayer, Refusal};
//! use http::HeaderName;
//! use tonic::service::Routes;
//!
//! let locks = MemoryProvider::new();
//! let account = ParamKey::typed::<u64>("account", "id")?.checked_for(["/accounts/{id}"])?;
//! let routes = Router::new()
//!     .route("/accounts/{id}", put(|| async { "changed" }))
//!     .route_layer(LockLayer::new(locks.clone(), account));
//!
//! let account = HeaderKey::typed::<u64>("account", HeaderName::from_static("x-account"))?;
//! let calls = Routes::new(AccountsServer)
//!     .into_axum_router()
//!     .reset_fallback() // the routes' own answer to unknown paths remains
//!     .route_layer(LockLayer::new(locks, account).refuse_with(Refusal::to_grpc_response));
//! let app: Router = routes.merge(calls);
//! # drop(app);
//! # Ok(())
//! # }
//! # #[cfg(feature = "axum")]
//! # run().unwrap();
//! ```
//!
//! [`KeyedLockLayer`] locks by the content of a message, which is unknown until it is decoded.
//!
//! # Shutting down
//! First shut the server down gracefully: requests that hold or wait for a lock are still served.
//! Then await [`Monitor::idle`] if the layer [detaches](LockLayer::detach) handlers. At last close
//! the provider (`locks.close().await`), which releases what is left.
//!
//! # Observability
//! Each request that needs a lock is a span `distlock.request` at level `INFO` with `lock.class`
//! (see [`class`](LockLayer::class)), `lock.wait_ms`, `lock.hold_ms` and `lock.outcome`; where
//! the lock service failed or the hold ended early also `otel.status_code` and `error`. The
//! outcome is `released`, `lost`, `held-too-long`, `panicked`, the reason of a refusal, or
//! `cancelled`. A cancelled request was dropped before its end, because the caller went away or the
//! server needed no more of the body. Keys appear in events at level `DEBUG` only.
//!
//! With the feature `metrics`, through the `metrics` facade, labelled `class`: histograms
//! `distlock_tower_wait_seconds` and `distlock_tower_hold_seconds` (also labelled `outcome`),
//! counters `distlock_tower_refusals_total` (also labelled `reason`) and
//! `distlock_tower_failed_open_total`, gauge `distlock_tower_queue_depth`. A [`Monitor`] has the
//! same numbers without a recorder.
//!
//! # Features
//! Both are off by default:
//!
//! * `axum`: the extractors of [`key`] that know routes, `HeldLock` as an extractor, and
//!   `ReadAheadLayer`
//! * `metrics`: the metrics above

// The walk of a request, if its lock is free:
//
// 1. http/service.rs: `begin` asks the rules whether the request is locked at all, and the
//    extractor for its keys.
// 2. gate/admit.rs: `admit` asks the provider for an answer without a wait (`acquire_now`). If
//    there is none, `acquire_later` waits: no longer than the caller's deadline, and counted
//    among the waiters (gate/tally.rs). gate/outside.rs finds out if it would wait for itself.
// 3. http/future.rs: `admitted` puts `HeldLock` into the request and calls the inner service, or
//    answers with the refusal (http/answer.rs).
// 4. http/run.rs: the call runs under its `Hold` (gate/hold.rs), which sees losses, the maximum
//    hold and a dropped client. A detached call runs in a task of its own.
// 5. http/body.rs: the response carries the hold along, and releases with the end of its body.
//
// keyed/ does the same for services that are not HTTP, without 5.

mod gate;
mod held;
pub mod http;
mod inner;
pub mod key;
pub mod keyed;
mod keys;
mod refusal;

pub use self::http::{HoldUntil, LockLayer, LockService, PermitLayer};
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
