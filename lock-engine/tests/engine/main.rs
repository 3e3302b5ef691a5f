//! The engine's integration tests.

mod adversarial;
mod adversarial_contention;
mod auto_traits;
mod basics;
mod cancellation;
mod common;
mod contention;
mod hand_off;
mod lanes;
mod via;
