//! What the example programs share: the command line, Ctrl-C, the verdict at the end, child
//! processes and their supervision, a MongoDB to run on, and an HTTP client.

mod children;
#[cfg(feature = "mongodb")]
mod database;
#[cfg(feature = "mongodb")]
mod http;
mod interrupt;
mod options;
mod program;
#[cfg(feature = "mongodb")]
#[doc = include_str!("../../README.md")]
pub mod readme {}
mod supervision;
mod verdict;

use std::error::Error;

pub use crate::children::{Children, Message, Orders, report};
#[cfg(feature = "mongodb")]
pub use crate::database::Database;
#[cfg(feature = "mongodb")]
pub use crate::http::{HttpClient, NoAnswer, serve};
pub use crate::interrupt::Interrupt;
pub use crate::options::{Values, read_options};
pub use crate::program::{no_child, run};
pub use crate::supervision::{Supervision, print_event};
pub use crate::verdict::{Checks, Outcome, wrapped};

/// Why an example cannot continue.
pub type Failure = Box<dyn Error + Send + Sync>;
