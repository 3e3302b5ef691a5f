//! The tests of this package that are no conformance checks.

mod admin;
mod kit;
mod modes;
mod once;
mod provider;
mod queue;
mod runtimes;
mod store;
mod store_modes;
mod wakers;
