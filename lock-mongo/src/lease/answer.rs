//! The answers, as the projections compute them.

use std::collections::BTreeMap;

use distlock_api::Mode;
use mongodb::bson::{Bson, DateTime, RawDocumentBuf};
use serde::{Deserialize, Deserializer};

use super::holders::BETWEEN;
use crate::bson::from_document;

/// A reply that may lack the marker.
#[derive(Debug, Deserialize)]
pub(crate) struct Marked<T> {
    #[serde(rename = "distlock")]
    pub(crate) answer: Option<T>,
}

/// The answer to an acquisition.
#[derive(Debug, Deserialize)]
pub(crate) struct AcquireReply {
    pub(crate) granted: bool,
    /// The last token of the last grant.
    pub(crate) token: i64,
    pub(crate) tokens: i32,
    /// The first token of the present block, or the last one that was used.
    #[serde(default)]
    pub(crate) since: i64,
    /// Milliseconds until the lease ends, if granted; otherwise until this acquisition's turn, or
    /// zero if that is not known.
    pub(crate) remaining: i64,
    /// The number of live tickets before its own; -1 if it has none.
    pub(crate) at: i64,
    /// The number of live tickets.
    pub(crate) waiting: i64,
    /// How many others hold the key, if it is held in a mode that is not exclusive.
    #[serde(default)]
    pub(crate) others: i64,
    /// Whether a holder or a waiter was not exclusive; only reported to an exclusive acquisition.
    #[serde(default)]
    pub(crate) met_modes: bool,
    /// Milliseconds since the epoch, by the server.
    pub(crate) now: i64,
    /// The document without the lease, if granted and requested.
    #[serde(default)]
    pub(crate) document: Option<RawDocumentBuf>,
}

/// The answer to a write under a lease.
#[derive(Debug, Deserialize)]
pub(crate) struct Wrote {
    /// Whether it was carried out.
    pub(crate) applied: bool,
    /// Whether the key has no holder and no minimum hold afterwards.
    pub(crate) is_free: bool,
    /// The document without the lease, if requested.
    #[serde(default)]
    pub(crate) document: Option<RawDocumentBuf>,
}

/// What one of several acquisitions has, after a batch.
#[derive(Debug, Deserialize)]
pub(crate) struct TakenTogether {
    /// The acquisition.
    pub(crate) id: String,
    /// The last token of the block.
    pub(crate) token: i64,
    /// Milliseconds until the lease ends.
    pub(crate) remaining: i64,
    /// Milliseconds since the epoch, by the server.
    pub(crate) now: i64,
    /// The document without the lease, if requested.
    #[serde(default)]
    pub(crate) document: Option<RawDocumentBuf>,
}

/// The answer to a release.
#[derive(Debug, Deserialize)]
pub(crate) struct Released {
    pub(crate) released: bool,
    /// Whether the key has no holder, no ticket and no minimum hold afterwards, if that is told.
    #[serde(default)]
    pub(crate) is_unused: bool,
}

/// The state of a record.
#[derive(Debug, Deserialize)]
pub(crate) struct State {
    /// The acquisition that holds the lease, unexpired.
    #[serde(default, deserialize_with = "text")]
    pub(crate) holder: Option<String>,
    #[serde(default)]
    pub(crate) token: Option<i64>,
    /// Milliseconds until the key opens; zero if it is free, and negative if it is not known.
    pub(crate) remaining: i64,
    #[serde(default, deserialize_with = "text")]
    pub(crate) revoked: Option<String>,
    #[serde(default, deserialize_with = "text")]
    pub(crate) owner: Option<String>,
    /// The number of live tickets.
    pub(crate) waiting: u32,
    /// The live holders, if the lease is not exclusive. Then `holder` is their marker.
    #[serde(default)]
    pub(crate) holders: Option<Vec<HolderState>>,
    /// Milliseconds since the epoch, by the server.
    pub(crate) now: i64,
    /// As any program has written it.
    #[serde(default)]
    meta: Option<Bson>,
}

/// Reads a text. A value of another type, which another program has written, counts as none.
fn text<'de, D: Deserializer<'de>>(value: D) -> Result<Option<String>, D::Error> {
    Ok(match Bson::deserialize(value)? {
        Bson::String(text) => Some(text),
        _ => None,
    })
}

/// Reads remarks. What has another form is left out.
fn remarks(meta: Option<&Bson>) -> BTreeMap<String, String> {
    let remark = |remark: &Bson| {
        let remark = remark.as_document()?;
        Some((remark.get_str("k").ok()?.to_owned(), remark.get_str("v").ok()?.to_owned()))
    };
    meta.and_then(Bson::as_array).into_iter().flatten().filter_map(remark).collect()
}

/// One of several holders.
#[derive(Debug, Deserialize)]
pub(crate) struct HolderState {
    pub(crate) id: String,
    /// The last token of its block.
    pub(crate) token: i64,
    /// Milliseconds until its lease ends.
    pub(crate) remaining: i64,
    shared: bool,
    take: i64,
    of: i64,
    /// Whether it has released, and stays for its minimum hold.
    pub(crate) kept: bool,
    #[serde(default)]
    pub(crate) owner: Option<String>,
    /// As any program has written it.
    #[serde(default)]
    meta: Option<Bson>,
}

impl HolderState {
    pub(crate) fn mode(&self) -> Mode {
        let number = |number: i64| u32::try_from(number).unwrap_or(u32::MAX);
        if self.shared { Mode::Shared } else { Mode::Permits { take: number(self.take), of: number(self.of) } }
    }

    pub(crate) fn metadata(&self) -> BTreeMap<String, String> {
        remarks(self.meta.as_ref())
    }

    /// Returns whether this acquisition holds a lease with this last token.
    pub(crate) fn is(&self, id: &str, token: i64) -> bool {
        self.id == id && self.token == token && !self.kept
    }
}

/// Returns whether a field that contains one acquisition, or several, contains this one.
pub(crate) fn names(field: Option<&str>, id: &str) -> bool {
    field.is_some_and(|field| field.split(BETWEEN).any(|one| one == id))
}

/// The state of one of several records.
#[derive(Debug, Deserialize)]
pub(crate) struct Keyed {
    #[serde(rename = "_id")]
    pub(crate) identity: Bson,
    #[serde(rename = "distlock")]
    pub(crate) state: State,
}

impl State {
    pub(crate) fn metadata(&self) -> BTreeMap<String, String> {
        remarks(self.meta.as_ref())
    }
}

/// The states of the requested tickets of one of several records.
#[derive(Debug, Deserialize)]
pub(crate) struct KeyedTickets {
    #[serde(rename = "_id")]
    pub(crate) identity: Bson,
    #[serde(rename = "distlock")]
    pub(crate) states: TicketStates,
}

/// The states of the requested tickets of one record.
#[derive(Debug, Deserialize)]
pub(crate) struct TicketStates {
    /// For each the number of live tickets before it; -1 if it does not exist.
    pub(crate) positions: Vec<i64>,
    /// The acquisition that holds the lease, unexpired.
    #[serde(default, deserialize_with = "text")]
    pub(crate) holder: Option<String>,
    /// As in a [`State`].
    #[serde(default)]
    pub(crate) holders: Option<Vec<HolderState>>,
    pub(crate) token: i64,
    /// Milliseconds until the first waiter may take the lease; negative in the past.
    pub(crate) opens: i64,
    /// Milliseconds until the lease ends.
    pub(crate) remaining: i64,
    #[serde(default, deserialize_with = "text")]
    pub(crate) revoked: Option<String>,
    /// Milliseconds since the epoch, by the server.
    pub(crate) now: i64,
}

/// The number of waiters.
#[derive(Debug, Deserialize)]
pub(crate) struct Waiters {
    pub(crate) waiters: u32,
}

/// The forced releases that a record keeps, the oldest first.
#[derive(Debug, Deserialize)]
pub(crate) struct Forced {
    #[serde(default)]
    entries: Option<Bson>,
}

impl Forced {
    /// Returns the entries. What has another form, which another program has written, is left out.
    pub(crate) fn into_entries(self) -> Vec<ForcedEntry> {
        let Some(Bson::Array(entries)) = self.entries else { return Vec::new() };
        let entries = entries.iter().filter_map(Bson::as_document).cloned();
        entries.filter_map(|entry| from_document(entry).ok()).collect()
    }
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
