//! Locks around the calls of any tower service: jobs, gRPC, messages.
//!
//! [`KeyedLockLayer`] knows nothing of HTTP. A function names the keys of a request, the locks are
//! held while the inner call runs, and they are released when it has ended, failed, panicked or
//! been dropped.
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
//! The service's error is [`KeyedLockError`]: a refusal, or the error of the inner service. To make
//! something else of refusals – an own error, or an answer – put `map_err` (for example with
//! [`KeyedLockError::into_boxed`]) or `map_result` of
//! [`ServiceBuilder`](https://docs.rs/tower/latest/tower/struct.ServiceBuilder.html) around the
//! layer.
//!
//! # gRPC
//! Around a method of a tonic service, where [`LockLayer`](crate::LockLayer) around the server sees
//! only metadata, keys can come from the message: the method is a service of
//! `tonic::Request<Message>`. [`grpc_timeout`](crate::http::grpc_timeout) reads the caller's
//! deadline for [`KeyOf::deadline`], and [`Refusal::grpc_code`](crate::Refusal::grpc_code) is for
//! the status that a refusal becomes.
//!
//! # What is released when
//! When the call's future is dropped, the inner future is dropped first and the locks are released
//! after it. When the inner call answers with a stream that is still to be read, the locks are
//! released before it is: for HTTP bodies use [`LockLayer`](crate::LockLayer).

mod error;
mod future;
mod key_of;
mod layer;
mod service;

pub use error::KeyedLockError;
pub use future::KeyedFuture;
pub use key_of::KeyOf;
pub use layer::KeyedLockLayer;
pub use service::KeyedLock;
