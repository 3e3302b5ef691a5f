//! The core of both layers: admits a request when it holds its locks. It does not depend on the
//! type of requests.
//!
//! [`Gate::admit`] acquires the locks from the provider. The answer is a [`Hold`] or a refusal. The
//! services of one layer share its [`Tally`]. A file imports only from its own row and those above:
//!
//! | file | owns |
//! |---|---|
//! | `flow`, `tally` | counters, and the [`Monitor`] that shows them |
//! | `config`, `record` | what can be set on a layer; metrics |
//! | `shared` | the [`Gate`] as data, what a request claims, and the refusals |
//! | `hold` | one hold: its guards, its end, a future under it |
//! | `outside` | requests that would wait for themselves |
//! | `admit` | one request on its way in |

mod admit;
mod config;
mod flow;
mod hold;
mod outside;
mod record;
mod shared;
mod tally;

pub(crate) use admit::{Admission, Admitting, Answer};
pub use config::OnLoss;
pub(crate) use config::{Config, MAX_HOLD, common_setters};
pub(crate) use hold::{Guarded, Hold, Slot};
pub(crate) use shared::{Claims, Ending, Gate};
pub use tally::Monitor;
pub(crate) use tally::Tally;
