//! Clients in processes of their own, which can be killed and whose clocks can be wrong.
//!
//! The test binary runs itself again with a job in an environment variable. Parent and child speak
//! lines of JSON over the child's standard input and output; a child whose input ends exits at
//! once, so none outlives its parent.

mod clock;
mod handle;
mod process;
mod protocol;
mod serve;

pub(crate) use handle::Handle;
pub(crate) use process::{Child, ChildGrant, Clock};
pub(crate) use protocol::ChildError;
pub(crate) use serve::serve;

/// The environment variable with the job.
const VARIABLE: &str = "DISTLOCK_CONFORMANCE_CHILD";

/// The job of this process, if it is a child.
pub(crate) fn job() -> Option<String> {
    std::env::var(VARIABLE).ok()
}
