//! Work that is done once per key: a lock that ends in a remembered outcome.
//!
//! A lock keeps two processes from working at the same time. It does not keep the second one from
//! doing the work again. A nightly job whose servers start it a minute apart, or a payment whose
//! request is sent twice, needs more: the second caller must get what the first one did.
//!
//! [`once(key)`](OnceProviderExt::once) begins the work of a key, or answers what is known of it:
//!
//! ```
//! use std::time::Duration;
//!
//! use distlock_api::LockError;
//! use distlock_recipes::once::{Once, OnceProvider, OnceProviderExt};
//! # async fn charge(_: &str) -> String { "receipt 1".into() }
//!
//! async fn pay(payments: &dyn OnceProvider, id: &str, request: &str) -> Result<String, LockError> {
//!     let begun = payments
//!         .once(("payments", id))
//!         .keep(Duration::from_secs(7 * 24 * 3600)) // the outcome
//!         .ttl(Duration::from_secs(20)) // the lease of the work, renewed until it is done
//!         .fingerprint(request)
//!         .timeout(Duration::from_secs(10)) // for a duplicate, while the first request works
//!         .await?;
//!     match begun {
//!         Once::Begun(mut work) => {
//!             let receipt = work.run(charge(request)).await?;
//!             work.complete(&receipt).await?;
//!             Ok(receipt)
//!         }
//!         Once::Done(outcome) => Ok(String::from_utf8_lossy(outcome.value()).into_owned()),
//!         Once::Mismatch(_) => Ok("409: this id belongs to another request".into()),
//!         _ => Ok("503: still being paid, try again".into()),
//!     }
//! }
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), LockError> {
//! # let payments = distlock_memory::MemoryOnce::new();
//! # assert_eq!(pay(&payments, "7", "5 EUR").await?, "receipt 1");
//! # assert_eq!(pay(&payments, "7", "5 EUR").await?, "receipt 1");
//! # assert!(pay(&payments, "7", "6 EUR").await?.starts_with("409"));
//! # Ok(())
//! # }
//! ```
//!
//! # Two times
//! The *ttl* of the lease, seconds, says how soon the work of a process that died is open again.
//! *keep*, days, says how long an outcome is remembered. A crash thus reopens the work after the
//! ttl, and not after days.
//!
//! # What can be known of a key
//!
//! | [`OnceState`] | meaning | `once` answers |
//! |---|---|---|
//! | `New` | never begun, discarded, or forgotten after `keep` | `Begun` |
//! | `UnderWay` | a holder works, and its lease has not ended | waits; then, or without a wait, `Busy` |
//! | `Done` | completed | `Done`, with the value |
//! | `Interrupted` | begun, and neither completed nor discarded: the holder died, dropped its guard, or lost its lease | `Begun`, and [`OnceGuard::interrupted`] names the earlier run; with [`at_most_once`](BeginOnce::at_most_once) `Interrupted` |
//!
//! An interrupted run may have done a part of the work, or all of it but the completion. Only the
//! application knows whether it can be repeated. If not, `at_most_once` never begins it again.
//!
//! # Completing
//! [`complete`](OnceGuard::complete) remembers the value and ends the lease in one step, which only
//! the holder can make. A holder whose lease has ended is refused, and nothing is remembered.
//!
//! # Spans and metrics
//! A provider with a name for reports (`instrumented` on `MemoryOnce` and on the builder of
//! `MongoOnce`) reports its locks as [`Instrumented`](distlock_api::Instrumented) does, and each
//! call by a span `distlock.once` at level `INFO`, with fields as there. With the feature
//! `metrics`, through the `metrics` facade:
//!
//! | metric | type | labels |
//! |---|---|---|
//! | `distlock_once_total` | counter | `provider`, `outcome` |
//!
//! | `outcome` | meaning |
//! |---|---|
//! | `begun` | the caller does the work |
//! | `begun_again` | the same, and an earlier run was interrupted |
//! | `busy`, `done`, `interrupted`, `mismatch` | see [`Once`] |
//! | an error kind | the call failed |
//!
//! # The promises
//! The clauses O1–O12 of the [`contract`](crate::contract#once).

mod answer;
mod ext;
mod guard;
mod options;
mod provider;
mod record;
mod report;

pub use answer::Once;
pub use ext::{BeginOnce, OnceProviderExt};
pub use guard::{NotCompleted, OnceGuard, OnceHandle};
pub use options::{Fingerprint, OnceOptions};
pub use provider::OnceProvider;
pub use record::{OnceRecord, OnceRun, OnceState, Outcome};
pub use report::report_once;
