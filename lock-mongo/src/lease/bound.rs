//! The bound of a command: the server's time from which on it does nothing (R31).

use std::time::Duration;

use mongodb::bson::{DateTime, Document, doc};

use super::{ID, millis};

/// The text of the error of a pipeline that comes too late.
pub(crate) const LATE: &str = "distlock: late ";

/// Returns whether the command has begun before its bound.
pub(super) fn is_in_time(bound: Duration) -> Document {
    doc! { "$lt": ["$$NOW", DateTime::from_millis(millis(bound))] }
}

/// Makes a pipeline fail with the text [`LATE`] if the command begins at its bound or later.
///
/// The filter of an upsert cannot contain the bound: the server refuses `$expr` there, and would
/// insert a record that is missing. It computes the condition once for the whole command.
pub(crate) fn until(bound: Duration, mut pipeline: Vec<Document>) -> Vec<Document> {
    // A pipeline can only fail by a conversion. That of a constant would always fail.
    let refusal = doc! { "$toLong": { "$concat": [LATE, { "$type": format!("${ID}") }] } };
    let unchanged = doc! { "$cond": [is_in_time(bound), format!("${ID}"), refusal] };
    // A stage of its own would cost the server more.
    match pipeline.first_mut().and_then(|first| first.get_document_mut("$set").ok()) {
        Some(set) => {
            set.insert(ID, unchanged);
        }
        None => pipeline.insert(0, doc! { "$set": { ID: unchanged } }),
    }
    pipeline
}
