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
//! | [`contained`] | calls into code of the application that may panic |
//! | [`delegate_provider!`](crate::delegate_provider) | the methods that a wrapper passes on |

mod contained;
mod delegate;
mod group;
mod run;
mod setters;
mod yielding;

pub use crate::loss::until_lost;
pub use contained::contained;
pub use group::{Group, GroupGuard, acquire_group};
pub use run::finish_run;
pub use yielding::yield_on_error;
