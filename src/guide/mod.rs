//! Guides: how to choose, size, test and operate locks.
//!
//! | guide | answers |
//! |---|---|
//! | [`ttl`] | Which ttl, cadence and safety margin? |
#![cfg_attr(feature = "memory", doc = "| [`modes`] | Exclusive, shared, or permits? |")]
//! | [`untrusted_keys`] | What if keys come from outside? |
//! | [`operating`] | What do I measure, when do I alert, what do I do about a stuck lock? |
#![cfg_attr(feature = "memory", doc = "| [`testing`] | How do I test code that uses locks, without a server? |")]
#![cfg_attr(feature = "mongodb", doc = "| [`styles`] | Where do locks in MongoDB live, and what reaches the server? |")]
#![cfg_attr(feature = "mongodb", doc = "| [`failover`] | What do my users see when MongoDB's primary changes? |")]
#![cfg_attr(feature = "mongodb", doc = "| [`errors`] | What does this error of MongoDB mean, and what do I do? |")]
#![cfg_attr(feature = "mongodb", doc = "| [`sizing`] | How many keys, waiters, processes and commands per second? |")]
#![cfg_attr(feature = "mongodb", doc = "| [`privileges`] | Which role does the application need? |")]
#![cfg_attr(feature = "mongodb", doc = "| [`deployments`] | Standalone, replica set, arbiter, sharded cluster? |")]
//!
//! What a type or a method does is in its own documentation. The guides link there, and say how the
//! parts work together.

#[doc = include_str!("ttl.md")]
pub mod ttl {}

#[cfg(feature = "memory")]
#[doc = include_str!("modes.md")]
pub mod modes {}

#[cfg(feature = "memory")]
#[doc = include_str!("testing.md")]
pub mod testing {}

#[doc = include_str!("untrusted_keys.md")]
pub mod untrusted_keys {}

#[doc = include_str!("operating.md")]
///
/// # Alert rules
/// Rules for Prometheus, in the repository as `src/guide/alerts.yml`:
///
/// <details><summary>alerts.yml</summary>
///
/// ```yaml
#[doc = include_str!("alerts.yml")]
/// ```
///
/// </details>
///
/// # Dashboard
/// For Grafana 10 or later, in the repository as `src/guide/grafana.json`. Import it, and choose
/// the Prometheus data source:
///
/// <details><summary>grafana.json</summary>
///
/// ```json
#[doc = include_str!("grafana.json")]
/// ```
///
/// </details>
pub mod operating {}

#[cfg(feature = "mongodb")]
#[doc = include_str!("styles.md")]
pub mod styles {}

#[cfg(feature = "mongodb")]
#[doc = include_str!("failover.md")]
pub mod failover {}

#[cfg(feature = "mongodb")]
#[doc = include_str!("errors.md")]
pub mod errors {}

#[cfg(feature = "mongodb")]
#[doc = include_str!("sizing.md")]
pub mod sizing {}

#[cfg(feature = "mongodb")]
#[doc = include_str!("privileges.md")]
pub mod privileges {}

#[cfg(feature = "mongodb")]
#[doc = include_str!("deployments.md")]
pub mod deployments {}
