//! What the projections make of a record.

use std::collections::BTreeMap;

use mongodb::bson::DateTime;
use serde::Deserialize;

/// A reply that may lack the marker.
#[derive(Debug, Deserialize)]
pub(crate) struct Marked<T> {
    #[serde(rename = "distlock")]
    pub(crate) answer: Option<T>,
}

/// The answer to an acquisition.
#[derive(Debug, Deserialize)]
pub(crate) struct Acquisition {
    pub(crate) granted: bool,
    /// The last token of the last grant.
    pub(crate) token: i64,
    pub(crate) tokens: i32,
    /// Milliseconds until the key opens.
    pub(crate) remaining: i64,
    /// Milliseconds since the epoch, by the server.
    pub(crate) now: i64,
}

/// The answer to a release.
#[derive(Debug, Deserialize)]
pub(crate) struct Released {
    pub(crate) released: bool,
}

/// The state of a record.
#[derive(Debug, Deserialize)]
pub(crate) struct State {
    /// Who has the lease, unexpired.
    #[serde(default)]
    pub(crate) holder: Option<String>,
    #[serde(default)]
    pub(crate) token: Option<i64>,
    /// Milliseconds until the key opens.
    pub(crate) remaining: i64,
    #[serde(default)]
    pub(crate) revoked: Option<String>,
    #[serde(default)]
    pub(crate) owner: Option<String>,
    #[serde(default)]
    meta: Option<Vec<Remark>>,
}

#[derive(Debug, Deserialize)]
struct Remark {
    k: String,
    v: String,
}

/// The state of one of several records.
#[derive(Debug, Deserialize)]
pub(crate) struct Keyed {
    #[serde(rename = "_id")]
    pub(crate) key: String,
    #[serde(rename = "distlock")]
    pub(crate) state: State,
}

impl State {
    pub(crate) fn into_metadata(self) -> BTreeMap<String, String> {
        self.meta.unwrap_or_default().into_iter().map(|Remark { k, v }| (k, v)).collect()
    }
}

/// The releases by force that a record remembers, the oldest first.
#[derive(Debug, Deserialize)]
pub(crate) struct Forced {
    #[serde(default)]
    pub(crate) entries: Option<Vec<ForcedEntry>>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct ForcedEntry {
    #[serde(rename = "lockId", default)]
    pub(crate) id: Option<String>,
    #[serde(default)]
    pub(crate) owner: Option<String>,
    pub(crate) token: i64,
    pub(crate) at: DateTime,
    #[serde(rename = "why")]
    pub(crate) reason: String,
}
