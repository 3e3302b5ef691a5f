//! Leadership: one process of a fleet runs a task, and another one takes over when it ends or dies.
//!
//! *Candidates* campaign for the leadership of a key, which is the lock of that key. The one that
//! holds the lock is the *leader*, and runs its *task* under a *term*, the fencing token of its
//! grant. [`lead`](LeadExt::lead) and [`observe`](LeadExt::observe) keep the clauses L1–L8 of the
//! [`contract`](crate::contract#leadership).
//!
//! # Example
//!
//! ```
//! use std::sync::Arc;
//!
//! use distlock_api::{LockError, LockProvider};
//! use distlock_recipes::lead::{LeadExt, LeadHealth, LeadStatus, Led, Term};
//!
//! # async fn send_due_mails(_: &Term) -> Result<(), LockError> { Ok(()) }
//! /// Runs on every server. One of them sends mails; another one takes over when it ends or dies.
//! async fn mailer(
//!     locks: Arc<dyn LockProvider>,
//!     health: LeadHealth,
//!     shutdown: impl Future<Output = ()>,
//! ) -> Result<(), LockError> {
//!     let candidate = locks.lead("mailer").owner("web-1").report_to(&health).until(shutdown);
//!     let led = candidate.run(async |term| send_due_mails(&term).await).await?;
//!     match led {
//!         Led::Finished(()) => println!("there are no mails any longer"),
//!         Led::Stopped => println!("resigned, because the server stops"),
//!     }
//!     Ok(())
//! }
//!
//! /// For a readiness probe: not ready while the store has not answered for a minute.
//! fn is_ready(health: &LeadHealth) -> bool {
//!     match health.get() {
//!         LeadStatus::Failing { since, .. } => since.elapsed().as_secs() < 60,
//!         _ => true,
//!     }
//! }
//! ```
//!
//! # Spans and metrics
//! Each term is a span `distlock.term` at level `INFO`, with the fields `lock.key`, `lock.token`
//! and `lock.outcome`, and of a failed one `otel.status_code` and `error`. The task runs inside it.
//! With the feature `metrics`, through the `metrics` facade:
//!
//! | metric | kind | labels | what |
//! |---|---|---|---|
//! | `distlock_lead_candidates` | gauge | `name`, `status` | candidates of this process that are `leading`, `following` or `failing`, as [`LeadStatus`] |
//! | `distlock_lead_term_seconds` | histogram | `name`, `outcome` | how long the terms took that have ended |
//!
//! A term is `finished`, `failed`, `stopped` or `lost`, as [`Lead::run`] says, or `dropped` with
//! the candidate, for example by a panic. `name` is that of [`Lead::named`], and otherwise the
//! provider's `Display`. Keys are never labels: an application may make them without a bound.
//!
//! Where candidates of a name run, and none of them leads for long, the work of the leader is not
//! done. So give each leadership a name of its own.

// The run of a candidate: `builder` has its terms, `campaign` drives it, `backoff` has its pauses,
// `health` and `record` report it. An observer is apart: `view` decides what is a change,
// `observer` does the I/O.

mod backoff;
mod builder;
mod campaign;
mod ext;
mod health;
mod observer;
mod record;
mod term;
mod view;

pub use builder::Lead;
pub use ext::LeadExt;
pub use health::{LeadHealth, LeadStatus};
pub use observer::LeaderObserver;
pub use term::{Led, Term};
pub use view::Leader;
