//! Requests that are processed once: the `Idempotency-Key` header.
//!
//! A client that got no answer to `POST /payments` cannot know whether it has paid. With this layer
//! it sends the request again, with the same key. Whichever replica gets it, the payment is made
//! once, and the retry gets the answer of the first request. The layer follows
//! draft-ietf-httpapi-idempotency-key-header-07. What has been done is kept by an
//! [`OnceProvider`](crate::once::OnceProvider): `MemoryOnce` of `distlock-memory` in one
//! process, `MongoOnce` of `distlock-mongo` for several replicas.
//!
//! ```
//! # #[cfg(feature = "axum")]
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! use axum::{Extension, Router, http::StatusCode, routing::post};
//! use distlock_memory::MemoryOnce;
//! use distlock_recipes::idempotency::{IdempotencyLayer, IdempotentRun, Reason, Refusal};
//!
//! /// What an outer layer has established.
//! #[derive(Clone)]
//! struct User(String);
//!
//! let once = IdempotencyLayer::new(MemoryOnce::new(), |parts| match parts.extensions.get::<User>() {
//!     Some(User(id)) => Ok(id.clone()),
//!     None => Err(Refusal::new(Reason::Misconfigured).with_source("the authentication is missing")),
//! });
//! let pay = |Extension(run): Extension<IdempotentRun>, order: String| async move {
//!     (StatusCode::CREATED, format!("paid {order} in run {}", run.fencing_token()))
//! };
//! let app: Router = Router::new()
//!     .route("/payments", post(pay))
//!     .route_layer(once.required())
//!     .layer(Extension(User("ann".into()))); // in place of the authentication
//!
//! # use tower::ServiceExt;
//! let request = || {
//!     let request = http::Request::post("/payments").header("idempotency-key", "\"8e03978e\"");
//!     request.body(axum::body::Body::from("order 7"))
//! };
//! let first = app.clone().oneshot(request()?).await?;
//! assert_eq!(first.status(), 201);
//! let retry = app.oneshot(request()?).await?;
//! assert_eq!((retry.status(), retry.headers()["idempotent-replayed"].to_str()?), (StatusCode::CREATED, "true"));
//! # Ok(())
//! # }
//! # #[cfg(feature = "axum")]
//! # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(run()).unwrap();
//! ```
//!
//! # What happens to a request
//! 1. POST and PATCH are covered ([`methods`](IdempotencyLayer::methods)). A request without the
//!    header passes, or is refused if the key is [`required`](IdempotencyLayer::required). Without
//!    `required`, handlers take `Option<Extension<IdempotentRun>>`.
//! 2. The body is read, up to 1 MiB ([`max_request_body`](IdempotencyLayer::max_request_body))
//!    within 30 s ([`read_timeout`](IdempotencyLayer::read_timeout)). Trailers are dropped.
//! 3. The store is queried. A new request is begun. A duplicate of one that is done gets its
//!    answer. A duplicate of one that is under way waits for it up to 5 s
//!    ([`wait_up_to`](IdempotencyLayer::wait_up_to)); at most 100 of them do at each replica
//!    ([`max_waiters_per_key`](IdempotencyLayer::max_waiters_per_key)).
//! 4. The inner service is called in a task of its own, with an [`IdempotentRun`] in the extensions
//!    of the request. The lease is renewed as long as it runs. If the lease is lost, the call is
//!    dropped.
//! 5. The answer is remembered, and then sent. An answer that could not be remembered is not sent:
//!    the client gets [`Reason::NotRemembered`], and learns by a retry what has become of the
//!    request.
//!
//! # Keys
//! The header is a string of structured fields, `"8e03978e-40d5"`. A bare token without space,
//! quote, backslash, comma and semicolon is accepted as well, because many clients send one. It
//! means the same as in quotes. A key has 1 to 255 printable ASCII characters. Parameters, lists
//! and several fields are refused.
//!
//! A key counts within a *scope*: who sent the request, its method, and its route. The route is the
//! matched one with the feature `axum`, such as `/orders/{id}/pay`, otherwise the path. All parts
//! are escaped, so no client can spell a key of another scope.
//!
//! Within its scope a key belongs to one request: to its path, query, host, content type and body.
//! A request that differs is refused with [`Reason::KeyReused`]. The boundary of a multipart form
//! may differ, because each try has another one. [`fingerprint`](IdempotencyLayer::fingerprint)
//! changes what counts. The store has a digest (SHA-256) of it, not the request.
//!
//! So a request to another host gets no answer of this one, and is not processed either: one
//! service may have several names, and must not charge twice. If hosts are tenants, make the host a
//! part of who sent the request; then each has keys of its own.
//!
//! # Answers
//! [`AfterAnswer::usual`] says by status which answers are kept: 2xx, 3xx and 4xx, but not 408,
//! 409, 425 and 429. After another answer nothing is remembered, and a retry is processed again.
//! [`AfterAnswer::first_result`] is the other rule, Stripe's: the first result counts once the
//! handler has begun, failures included.
//!
//! Status, [some headers](IdempotencyLayer::kept_headers) and the body are kept for a day
//! ([`keep`](IdempotencyLayer::keep)). The header `Idempotency-Keep: 86400` tells clients for how
//! many seconds, from the first answer on. `Set-Cookie` is not kept unless it is chosen. A replay
//! has the header `Idempotent-Replayed: true`.
//!
//! An answer *with* such a status may be impossible to keep: its body is longer than 64 KiB
//! ([`max_answer_body`](IdempotencyLayer::max_answer_body)), has no declared length, has trailers,
//! or fails. It is sent as it is, marked `Idempotency-Status: not-kept`, and the request **counts
//! as done**: nothing is charged twice because an answer was long.
//!
//! A retry is refused with [`Reason::NotKept`], which says that the request is done. A body without
//! a length counts as a stream, because it must not be held back. So put compression outside of
//! this layer. A stream counts as done when its head is complete.
//!
//! `Idempotency-Status: not-covered` marks the answer of a request that was processed without
//! protection, which only happens by choice ([`fail_open`](IdempotencyLayer::fail_open),
//! [`pass_long_requests`](IdempotencyLayer::pass_long_requests)).
//!
//! # Interruptions
//! A run is interrupted if its process dies, its handler panics or returns an error instead of a
//! response, its lease is lost, or the answer is [`AfterAnswer::InDoubt`]. The layer cannot know
//! whether it has charged the card. So by default it never repeats it: retries are refused with
//! [`Reason::Interrupted`]. [`run_interrupted_again`](IdempotencyLayer::run_interrupted_again) is
//! for handlers that can be repeated, and is worth some effort: with the default, an operator has
//! to look at each request that a crash has interrupted.
//!
//! A client that disconnects interrupts nothing, because its handler finishes in its task
//! ([`cancel_on_disconnect`](IdempotencyLayer::cancel_on_disconnect) changes that). When a server
//! shuts down, await [`IdempotencyMonitor::idle`] after the server has stopped, and then close the
//! provider.
//!
//! The lease is that of a lock: a process that was paused for longer than its ttl notices that only
//! when it continues. Store the [fencing token](IdempotentRun::fencing_token) with the data where
//! that matters.
//!
//! # Limits
//! A client may send as slowly as it likes, or go away as soon as its handler has begun. So at each
//! replica at most 256 requests are in the layer at a time
//! ([`max_requests`](IdempotencyLayer::max_requests)), 64 of them of one client
//! ([`max_requests_per_client`](IdempotencyLayer::max_requests_per_client)). They count from the
//! first byte of their body until their handler has ended, whether or not the client is still
//! there.
//!
//! # Refusals
//! | [`Reason`] | problem type | status | `Retry-After` |
//! |---|---|---|---|
//! | `KeyMissing` | `idempotency-key-missing` | 400 | no |
//! | `KeyInvalid` | `idempotency-key-invalid` | 400 | no |
//! | `BodyUnreadable` | `body-unreadable` | 400 | no |
//! | `UnderWay` | `request-under-way` | 409 | 1 s |
//! | `Interrupted` | `request-interrupted` | 409 | no |
//! | `NotKept` | `answer-not-kept` | 409 | no |
//! | `BodyTooSlow` | `body-too-slow` | 408 | no |
//! | `BodyTooLong` | `body-too-long` | 413 | no |
//! | `KeyReused` | `idempotency-key-reused` | 422 | no |
//! | `Corrupt` | `outcome-corrupt` | 500 | no |
//! | `Misconfigured` | `misconfigured` | 500 | no |
//! | `ClientLimit` | `client-limit` | 429 | 1 s |
//! | `Full` | `full` | 503 | 1 s |
//! | `NotRemembered` | `answer-not-remembered` | 503 | 1 s |
//! | `Unavailable` | `unavailable` | 503 | 5 s |
//!
//! The body is a problem document (RFC 9457) whose `type` is `urn:distlock:problem:` and the word
//! above. [`status`](IdempotencyLayer::status) changes statuses,
//! [`refuse_with`](IdempotencyLayer::refuse_with) everything.
//!
//! # Order of layers
//! Authentication, rate limits and catching of panics: outside, so that a refusal of theirs is not
//! an answer to keep. Compression: outside. A timeout: outside; the handler then finishes in its
//! task. A `LockLayer` of `distlock-tower`: inside, so that a replay waits for no lock.
//!
//! A `ConcurrencyLimit` outside does not limit handlers: its permit falls when the client goes
//! away, and the handler goes on. [`max_requests`](IdempotencyLayer::max_requests) is that limit.
//!
//! # Bounds
//! The inner service must be `Clone + Send + 'static`, its request body must implement
//! `From<Bytes>`, and the data of its response body too. Requests need a tokio runtime.
//!
//! # Observability
//! Each covered request is a span `distlock.idempotent_request` at level `INFO` with
//! `idempotency.class`, `idempotency.wait_ms` and `idempotency.outcome`: `begun`, `replayed`,
//! `failed-open` or the problem type of the refusal.
//!
//! With the feature `metrics`, the layer reports two metrics, labelled `class`. The counter
//! `distlock_idempotency_total` is also labelled `event`: `begun`, `replayed`, `not-kept`,
//! `failed-open` or a problem type. The histogram `distlock_idempotency_wait_seconds` of the
//! query with its wait is also labelled `outcome`. An [`IdempotencyMonitor`] has the same counts
//! without a recorder.
//!
//! # Files
//! A file imports only from its own row and those above:
//!
//! | file | owns |
//! |---|---|
//! | `header`, `digest`, `codec`, `policy` | pure: the key, the digest, the format of an outcome, what is kept |
//! | `scope` | pure: the key of the record |
//! | `refusal`, `record`, `tally` | refusals and counters |
//! | `body`, `handed`, `config` | bodies, what a handler sees, what can be set |
//! | `fingerprint` | what tells two requests apart |
//! | `shared` | what the requests of a layer share |
//! | `work`, `flow` | one request: the call and its answer; the way there |
//! | `service`, `layer` | the service and its layer |

mod body;
mod codec;
mod config;
mod digest;
mod fingerprint;
mod flow;
mod handed;
mod header;
mod layer;
mod policy;
mod record;
mod refusal;
mod scope;
mod service;
mod shared;
mod tally;
mod work;

pub use body::IdempotencyBody;
pub use handed::IdempotentRun;
pub use layer::IdempotencyLayer;
pub use policy::AfterAnswer;
pub use refusal::{Reason, Refusal};
pub use service::{IdempotencyFuture, IdempotencyService};
pub use tally::IdempotencyMonitor;
