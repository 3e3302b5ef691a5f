//! The dates of a record by which it must not be removed.

use mongodb::bson::Document;

use super::holders::HOLDERS;
use super::once::{ONCE, OPEN, STATE};
use super::{ACQUIRED_AT, AUDIT, EXPIRES_AT, Layout, QUEUE};

impl Layout {
    /// Returns whether a document can still be in use when the date in this field has passed, by
    /// any time. A TTL index on such a field removes leases that are held, or outcomes that are
    /// kept (R6).
    ///
    /// The filter of the index is only examined where a filter of ours has the same field: none is
    /// known to spare all records.
    pub(crate) fn is_in_use_beyond(&self, field: &str, of: Option<&Document>, has_outcomes: bool) -> bool {
        // `expiresAt` moves with every renewal, and a record that is held has no `closedUntil`.
        let dates = [
            ACQUIRED_AT.to_owned(),
            format!("{HOLDERS}.{ACQUIRED_AT}"),
            format!("{HOLDERS}.{EXPIRES_AT}"),
            format!("{QUEUE}.seen"),
            format!("{AUDIT}.at"),
        ];
        if dates.iter().any(|date| self.path(date) == field) {
            return true;
        }
        if !has_outcomes {
            return false;
        }
        // An outcome is kept after its lease has ended, and a run may take any time.
        let is_of_open = of.is_some_and(|of| of.get_str(STATE).is_ok_and(|state| state == OPEN));
        [format!("{ONCE}.at"), format!("{ONCE}.begun.at")].iter().any(|date| date == field)
            || (field == self.path(EXPIRES_AT) && !is_of_open)
    }
}
