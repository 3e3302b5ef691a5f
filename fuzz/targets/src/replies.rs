//! What a MongoDB server answers and reports of records, which any program can write.

use std::time::Duration;

use distlock_api::LockKey;
use distlock_engine::store::{ProviderId, StoreEvent};
use mongodb::bson::{Document, doc};
use serde::de::DeserializeOwned;

use crate::bson::{from_document, from_slice};
use crate::mongo::lease::{
    AcquireReply, EventDecoder, Forced, Keyed, KeyedTickets, Layout, Marked, OnceFound, Released, ReportedChange,
    State, StoredOnce, Subject, TakenTogether, Waiters, Wrote,
};

/// Reads bytes as every reply that there is, and as a reported change.
///
/// # Panics
/// If that is not so.
pub fn replies(bytes: &[u8]) {
    if let Some(found) = marked::<OnceFound>(bytes) {
        let _ = (found.record(), found.fate(7, Duration::from_secs(1)));
    }
    let states = marked::<State>(bytes).into_iter().chain(read::<Keyed>(bytes).map(|keyed| keyed.state));
    for state in states {
        let _ = state.metadata();
        let holders = state.holders.unwrap_or_default();
        holders.iter().for_each(|holder| _ = (holder.mode(), holder.metadata(), holder.is("a", 7)));
    }
    let _ = marked::<Forced>(bytes).map(Forced::into_entries);
    let _ = (marked::<AcquireReply>(bytes), marked::<Released>(bytes), marked::<Wrote>(bytes));
    let _ = (marked::<TakenTogether>(bytes), marked::<Waiters>(bytes), read::<KeyedTickets>(bytes));
    if let Some(document) = read::<Document>(bytes) {
        let stored = StoredOnce::of(&document).map(|(stored, _)| (stored.unheld(), stored.fingerprint()));
        let _ = stored.map(|(known, _)| known);
    }
    if let Some(change) = read::<ReportedChange>(bytes) {
        for (layout, _) in layouts() {
            events(&change, layout, ProviderId::random());
        }
    }
}

/// Reads bytes as the text of the grants beside other holders; `@` stands for the provider. Each
/// event of a grant names an acquisition of this provider.
///
/// # Panics
/// If that is not so.
pub fn grants(bytes: &[u8]) {
    let provider = ProviderId::random();
    let text = String::from_utf8_lossy(bytes).replace('@', &provider.to_string());
    for (layout, fields) in layouts() {
        let lease = doc! { fields: { "grants": &text, "token": 7_i64, "released": "x" } };
        let id = layout.identity(&LockKey::new("k").expect("a key")).expect("an id");
        let change = doc! { "operationType": "update", "documentKey": { "_id": id }, "lease": lease };
        let change: ReportedChange = from_document(change).expect("a change");
        for event in events(&change, layout, provider) {
            if let StoreEvent::Granted { id, .. } = event {
                assert!(id.as_str().starts_with(&provider.to_string()) && text.contains(id.as_str()), "{id}");
            }
        }
    }
}

/// Returns layouts, and where a change has the fields of each.
fn layouts() -> [(Layout, &'static str); 3] {
    [(Layout::new(""), "at"), (Layout::new("lock."), "at6c6f636b2e"), (Layout::of_once(), "at6c6f636b2e")]
}

fn events(change: &ReportedChange, layout: Layout, provider: ProviderId) -> Vec<StoreEvent> {
    let _ = change.concerns(&Subject::new("locks", layout.clone(), provider));
    EventDecoder::new(layout, provider).read(change)
}

fn read<T: DeserializeOwned>(bytes: &[u8]) -> Option<T> {
    // The driver reads some replies from bytes, and others from values.
    let value = from_slice::<Document>(bytes).ok().and_then(|document| from_document(document).ok());
    from_slice(bytes).ok().or(value)
}

fn marked<T: DeserializeOwned>(bytes: &[u8]) -> Option<T> {
    read::<Marked<T>>(bytes)?.answer
}
