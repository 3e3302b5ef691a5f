//! The store itself, below the lease engine: each request, and each answer.
//!
//! The engine hides much of what a store does: it repeats calls, ignores late answers, and never
//! sends a wrong request on purpose. These checks send such requests directly.

pub(super) mod admin;
pub(super) mod batch;
pub(super) mod blocked;
pub(super) mod holders;
pub(super) mod hooks;
pub(super) mod keys;
pub(super) mod lag;
pub(super) mod lease;
pub(super) mod modes;
pub(super) mod numbers;
pub(super) mod push;
pub(super) mod queue;
pub(super) mod races;
pub(super) mod record;
