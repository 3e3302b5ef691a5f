//! The core of both layers: admits a request when it holds its locks. It does not depend on the
//! type of requests.
//!
//! [`Gate::admit`] acquires the locks from the provider. The answer is a [`Hold`] or a refusal. The
//! services of one layer share its [`Tally`]. A file imports only from its own row and those above:
//!
//! | file | owns |
//! |---|---|
//! | `flow`, `pace`, `waiters`, `tally` | counters, and the [`Monitor`] that shows them |
//! | `config` | what can be set on a layer |
//! | `claims` | the keys of a request, and their mode |
//! | `contained`, `record` | metrics, and the panics of their recorders |
//! | `ending`, `guards` | plain values: why a hold ends, what it holds |
//! | `shared` | the [`Gate`] as data, and its refusals |
//! | `slot`, `hold`, `guarded` | one hold: its guards, its end, a future under it |
//! | `arrival`, `admit` | one request on its way in |

mod admit;
mod arrival;
mod claims;
mod config;
mod contained;
mod ending;
mod flow;
mod guarded;
mod guards;
mod hold;
mod pace;
mod record;
mod shared;
mod slot;
mod tally;
mod waiters;

pub(crate) use admit::{Admitting, Answer};
pub(crate) use arrival::Admission;
pub(crate) use claims::Claims;
pub use config::OnLoss;
pub(crate) use config::{Config, common_setters};
#[cfg(feature = "metrics")]
pub(crate) use contained::contained;
pub(crate) use ending::Ending;
pub(crate) use guarded::Guarded;
pub(crate) use hold::Hold;
pub(crate) use shared::Gate;
pub(crate) use slot::Slot;
pub use tally::Monitor;
pub(crate) use tally::Tally;
pub(crate) use waiters::{Limits, Waiters};
