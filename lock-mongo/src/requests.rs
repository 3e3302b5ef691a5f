//! The requests of the lease engine, of guards and of administration, one file for each.
//!
//! Each builds filters, pipelines and projections by `lease`, sends them by `calls`, and decides by
//! the decoded answers. A request sees the [`Records`](crate::records::Records), not the store, and
//! no request knows another one, with two exceptions: a batch of renewals refreshes tickets along
//! with leases, and connecting tries the privileges, as does an acquisition that was refused for
//! want of one.

pub(crate) mod acquire;
pub(crate) mod admin;
pub(crate) mod connect;
mod foreign;
mod privileges;
pub(crate) mod release;
pub(crate) mod renew;
mod tickets;
pub(crate) mod waiters;
pub(crate) mod watch;
pub(crate) mod write;
