//! Helpers of several files.

pub(crate) mod calls;
pub(crate) mod store;
