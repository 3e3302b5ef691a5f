//! The requests of the lease engine, of guards and of administration, one file for each.
//!
//! Each request builds filters, pipelines and projections by `lease`, sends them by `calls`, and
//! decides by the decoded answers. A request uses the [`Records`](crate::records::Records), not the
//! store, and no other request. There are two exceptions. A batch of renewals also refreshes
//! tickets. A batch of acquisitions, releases or withdrawals does some of them one by one.

pub(crate) mod acquire;
pub(crate) mod admin;
pub(crate) mod batch;
pub(crate) mod connect;
mod foreign;
pub(crate) mod once;
pub(crate) mod release;
pub(crate) mod renew;
mod run;
mod tickets;
pub(crate) mod waiters;
pub(crate) mod watch;
pub(crate) mod write;
