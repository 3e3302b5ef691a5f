//! Building blocks for authors of wrappers and of typed styles.
//!
//! A *typed style* is a kind of lock whose guard carries more than the lock, such as the document
//! that `distlock-mongo` locks and returns in one step. Its builders should offer what
//! [`Acquire`](crate::Acquire) and [`AcquireAll`](crate::AcquireAll) offer, and its groups of locks
//! should keep the same order. With these pieces each of that is written once:
//!
//! | piece | for |
//! |---|---|
//! | [`acquire_setters!`](crate::acquire_setters) | the lease terms and the holder, on a builder |
//! | [`mode_setters!`](crate::mode_setters) | the mode, on a builder |
//! | [`wait_setters!`](crate::wait_setters), [`try_setters!`](crate::try_setters) | the wait, on a builder |
//! | [`acquire_group`] | several locks, all or nothing |
//! | [`until_lost`], [`finish_run`] | work that runs while a lock is held |
//! | [`yield_on_error`] | calls that may be refused without I/O |
//! | [`report_acquisition`], [`ReportedHold`] | spans and metrics, as those of [`Instrumented`](crate::Instrumented) |
//! | [`record_key`], [`record_failure`], [`record_error`] | the fields that all spans of locks have |
//! | [`contained`] | calls into code of the application that may panic |
//! | [`push_escaped`] | values of requests as parts of a key |
//! | [`is_outage`] | layers that serve without a lock during an outage |
//! | [`Counts`], [`Client`] | the share of each client in a layer around requests |
//! | [`delegate_provider!`](crate::delegate_provider) | the methods that a wrapper passes on |

mod contained;
mod counts;
mod delegate;
mod escape;
mod group;
mod outage;
mod report;
mod run;
mod setters;
mod span;
mod yielding;

pub use crate::loss::until_lost;
pub use contained::contained;
pub use counts::{Client, Counted, Counts};
pub use escape::push_escaped;
pub use group::{Group, GroupGuard, acquire_group};
pub use outage::is_outage;
pub use report::{ReportedHold, report_acquisition};
pub use run::finish_run;
pub use span::{record_error, record_failure, record_key};
pub use yielding::yield_on_error;
