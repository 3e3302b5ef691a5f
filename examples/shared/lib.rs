//! What the example programs share: the command line, Ctrl-C, the checks at the end, child
//! processes and their supervision, a MongoDB to run on, and an HTTP client.

mod checks;
mod child;
mod children;
#[cfg(feature = "mongodb")]
mod database;
#[cfg(feature = "mongodb")]
mod http;
mod interrupt;
mod program;
#[cfg(feature = "mongodb")]
#[doc = include_str!("../../README.md")]
pub mod readme {}

use std::error::Error;

pub use crate::checks::{Checks, Outcome, millis, wrapped};
pub use crate::child::{Orders, report};
pub use crate::children::{Children, Clock};
#[cfg(feature = "mongodb")]
pub use crate::database::{Database, Place, shut_down};
#[cfg(feature = "mongodb")]
pub use crate::http::{HttpClient, NoAnswer, segment, serve};
pub use crate::interrupt::Interrupt;
pub use crate::program::{Given, MONGODB, Opt, Program};

/// Why an example cannot continue.
pub type Failure = Box<dyn Error + Send + Sync>;
