//! The loop of the requests that have a plan.

use serde::de::DeserializeOwned;

use crate::calls::{ChangeOptions, Failure};
use crate::error::is_lost_race;
use crate::lease::plan::{Plan, Step};
use crate::records::Records;

/// Sends the steps of a plan, one after the other, until the answer of one `decides`. Returns the
/// answer of the last one otherwise.
pub(super) async fn run<P: Copy, T: DeserializeOwned + Send + Sync + 'static>(
    records: &Records,
    plan: Plan<P>,
    step: impl Fn(P) -> Step,
    options: ChangeOptions<'_>,
    decides: impl Fn(&T) -> bool,
) -> Result<Option<T>, Failure> {
    let mut answer = Ok(None);
    for path in plan {
        answer = records.change(step(*path), options.clone()).await;
        match &answer {
            Ok(Some(found)) if !decides(found) => {}
            Ok(None) | Err(Failure::Late) => {}
            Err(Failure::Driver(error)) if is_lost_race(error) => {}
            _ => break,
        }
    }
    answer
}
