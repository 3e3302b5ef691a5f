//! The `main` of every example.

use std::process::ExitCode;

use serde::de::DeserializeOwned;

use crate::children::{Orders, part};
use crate::{Failure, Outcome};

/// Runs a program and returns its exit code.
///
/// A process that was started as a child plays its part with `child`. Otherwise `arguments` reads
/// the command line, and `show` runs the program; `None` means that the help was printed. An error
/// goes to standard error, under the program's name.
pub async fn run<A, P: DeserializeOwned>(
    program: &str,
    arguments: impl FnOnce() -> Result<Option<A>, Failure>,
    show: impl AsyncFnOnce(A) -> Result<Outcome, Failure>,
    child: impl AsyncFnOnce(P, Orders) -> Result<(), Failure>,
) -> ExitCode {
    let outcome = async {
        if let Some((part, orders)) = part().await? {
            return child(part, orders).await.map(|()| Outcome::Proved);
        }
        match arguments()? {
            Some(arguments) => show(arguments).await,
            None => Ok(Outcome::Proved),
        }
    };
    match outcome.await {
        Ok(outcome) => outcome.into(),
        Err(error) => {
            let why = error.source().map(|source| format!(": {source}")).unwrap_or_default();
            eprintln!("{program}: {error}{why}");
            ExitCode::FAILURE
        }
    }
}

/// The part of a child, for a program that starts none.
///
/// # Errors
/// Always: no process should have started this one as a child.
pub async fn no_child((): (), _: Orders) -> Result<(), Failure> {
    Err("this program has no child processes".into())
}
