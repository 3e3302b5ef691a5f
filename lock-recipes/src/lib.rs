//! What people do with a distributed lock: recipes on the traits of `distlock-api`, for every
//! backend.
//!
//! | recipe | for |
//! |---|---|
//! | [`once`] | work that must be done once: a lock that ends in a remembered outcome |
//! | [`lead`] | a task that one process of a fleet runs, and another one when the first ends or dies |
//! | `idempotency` | HTTP requests that are sent twice: tower middleware over [`once`], with the feature of that name |
//!
//! ```
//! use distlock_memory::{MemoryOnce, MemoryProvider};
//! use distlock_recipes::prelude::*;
//!
//! # async fn charge(_order: u32) -> &'static str { "receipt 1" }
//! # async fn send_mails() {}
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), LockError> {
//! // The second caller gets the receipt of the first.
//! let payments = MemoryOnce::new();
//! if let Once::Begun(mut work) = payments.once(("payments", 7)).await? {
//!     let receipt = work.run(charge(7)).await?;
//!     work.complete(receipt).await?;
//! }
//!
//! // One server of the fleet sends mails.
//! let locks = MemoryProvider::new();
//! locks.lead("mailer").run(async |_term| Ok::<_, LockError>(send_mails().await)).await?;
//! # Ok(())
//! # }
//! ```
//!
//! An application takes the facade `distlock`, which has these modules under the same names. A
//! backend that remembers outcomes implements [`OnceProvider`](once::OnceProvider); leadership
//! needs nothing of a backend.
//!
//! # What the recipes promise
//!
//! The [`contract`]: the clauses O1–O12 and L1–L8. They rest on C1–C31 of
//! [`distlock_api::contract`].
//!
//! # Features
//!
//! All are off by default.
//!
//! | feature | what it adds |
//! |---|---|
//! | `idempotency` | the module `idempotency` |
//! | `axum` | the same with keys that count per route |
//! | `metrics` | answers of `once`, counters and waits of idempotent requests, candidates and terms of leaderships, through the `metrics` facade |

pub mod contract;
mod exclusive;
#[cfg(feature = "idempotency")]
pub mod idempotency;
pub mod lead;
pub mod once;
pub mod prelude;

/// Compiles the examples of the README.
#[cfg(all(doctest, feature = "axum"))]
#[doc = include_str!("../README.md")]
struct Readme;
