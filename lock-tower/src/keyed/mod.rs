//! Locks around the calls of any tower service: jobs, gRPC, messages.
//!
//! [`KeyedLockLayer`] does not depend on HTTP. A function names the keys of a request. The locks
//! are held while the inner call runs, and released when it has ended, failed, panicked or been
//! dropped.
//!
//! ```
//! use distlock_api::{LockError, LockKey};
//! use distlock_memory::MemoryProvider;
//! use distlock_tower::{KeyedLockError, KeyedLockLayer, Reason};
//! use tower::{ServiceBuilder, ServiceExt, service_fn};
//!
//! struct Invoice {
//!     customer: u64,
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), KeyedLockError<std::io::Error>> {
//! let one_per_customer = KeyedLockLayer::new(MemoryProvider::new(), |invoice: &Invoice| {
//!     LockKey::new(format!("customer/{}", invoice.customer)).map(Some)
//! });
//! let send = ServiceBuilder::new()
//!     .layer(one_per_customer.fail_fast())
//!     .service(service_fn(|_: Invoice| async { Ok::<_, std::io::Error>("sent") }));
//!
//! match send.oneshot(Invoice { customer: 7 }).await {
//!     Ok(answer) => assert_eq!(answer, "sent"),
//!     Err(KeyedLockError::Refused(refusal)) if refusal.reason() == Reason::Busy => println!("later"),
//!     Err(error) => return Err(error),
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # Errors
//! The service's error is [`KeyedLockError`]: a refusal, or the error of the inner service. To turn
//! refusals into another error or into an answer, put `map_err` (for example with
//! [`KeyedLockError::into_boxed`]) or `map_result` of
//! [`ServiceBuilder`](https://docs.rs/tower/latest/tower/struct.ServiceBuilder.html) around the
//! layer.
//!
//! # gRPC
//! [`LockLayer`](crate::LockLayer) around a server sees only metadata. This layer around a method
//! of a tonic service can take keys from the message, because the method is a service of
//! `tonic::Request<Message>`. [`grpc_timeout`](crate::http::grpc_timeout) reads the caller's
//! deadline for [`KeyOf::deadline`], and [`Refusal::grpc_code`](crate::Refusal::grpc_code) gives
//! the status of a refusal.
//!
//! # When locks are released
//! When the call's future is dropped, the inner future is dropped first and then the locks are
//! released. When the inner call returns a stream, the locks are released before the stream is
//! read: for HTTP bodies use [`LockLayer`](crate::LockLayer).

mod error;
mod future;
mod key_of;
mod layer;
mod service;
mod with_mode;

pub use error::KeyedLockError;
pub use future::KeyedFuture;
pub use key_of::KeyOf;
pub use layer::KeyedLockLayer;
pub use service::KeyedLock;
pub use with_mode::WithMode;
