//! The store itself, below the lease engine: each request, and each answer.
//!
//! The engine hides much of what a store does: it repeats calls, forgets late answers, and never sends
//! what it knows to be wrong. What a store must do all the same is checked here.

pub(super) mod admin;
pub(super) mod hooks;
pub(super) mod lease;
pub(super) mod push;
pub(super) mod queue;
pub(super) mod races;
