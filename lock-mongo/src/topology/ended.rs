//! The end of the driver's tasks, with the runtime on which the client was made.
//!
//! They find the servers and keep the connections. Without them every choice of a server fails, and
//! the driver's error blames the servers.

use std::sync::Arc;

use distlock_api::{Disposition, ErrorKind, LockError, Phase};
use futures_util::FutureExt;
use mongodb::Client;
use mongodb::bson::doc;
use mongodb::error::Error;
use mongodb::options::SelectionCriteria;
use tokio::task::unconstrained;

use crate::error::{Effect, is_unselected, translate};

/// Translates a driver's error of a call of this client.
pub(crate) fn translate_for(client: &Client, error: &Error, effect: Effect) -> LockError {
    ended_before(client, error).unwrap_or_else(|| translate(error, effect))
}

/// Makes the error of a call that had no server because the driver's tasks have ended. Returns
/// `None` for a call that failed for another reason.
pub(crate) fn ended_before(client: &Client, error: &Error) -> Option<LockError> {
    (is_unselected(error) && have_ended(client)).then(ended)
}

/// Returns whether the driver's tasks have ended.
///
/// The driver waits for a server that suits, unless the tasks are gone that would find one. No
/// server suits here, so nothing is sent.
pub(super) fn have_ended(client: &Client) -> bool {
    let no_server = SelectionCriteria::Predicate(Arc::new(|_| false));
    let database = client.database("admin");
    let command = async { database.run_command(doc! { "ping": 1 }).selection_criteria(no_server).await };
    let answer = unconstrained(command).now_or_never();
    answer.is_some_and(|answer| answer.is_err_and(|error| is_unselected(&error)))
}

pub(super) fn ended() -> LockError {
    let message = "the runtime on which the MongoDB client was made has ended, and the driver's tasks with it: make \
                   the client on a runtime that lasts, or one client per runtime. Each `#[tokio::test]` has a runtime \
                   of its own";
    let error = LockError::new(ErrorKind::Unavailable, message);
    error.with_disposition(Disposition::Permanent).with_phase(Phase::Connect)
}
