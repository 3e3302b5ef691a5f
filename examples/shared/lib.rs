//! What the example programs share: a MongoDB to run on, processes of their own to kill, and an
//! HTTP client.

#[cfg(feature = "mongodb")]
mod children;
#[cfg(feature = "mongodb")]
mod database;
#[cfg(feature = "mongodb")]
mod http;
#[cfg(feature = "mongodb")]
#[doc = include_str!("../../README.md")]
pub mod readme {}

use std::error::Error;
use std::process::ExitCode;

#[cfg(feature = "mongodb")]
pub use crate::children::{Children, Orders, Said, part, report};
#[cfg(feature = "mongodb")]
pub use crate::database::Database;
#[cfg(feature = "mongodb")]
pub use crate::http::{HttpClient, NoAnswer, serve};

/// Why an example cannot go on.
pub type Failure = Box<dyn Error + Send + Sync>;

/// What a program ends with: success only if everything was as promised. An error is told on
/// standard error, under the program's name.
#[must_use]
pub fn conclude(program: &str, outcome: Result<bool, Failure>) -> ExitCode {
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            let why = error.source().map(|source| format!(": {source}")).unwrap_or_default();
            eprintln!("{program}: {error}{why}");
            ExitCode::FAILURE
        }
    }
}

/// Prints the last word, and returns whether it is a good one.
#[must_use]
pub fn verdict(complaints: &[String]) -> bool {
    match complaints {
        [] => println!("\nas promised"),
        _ => println!("\nNOT as promised: {}", complaints.join("; ")),
    }
    complaints.is_empty()
}
