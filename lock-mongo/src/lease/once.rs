//! The record of work that is done once: a document whose lease is in the field `lock`, and what is
//! known of the work in the field `once` (O1–O12).
//!
//! | field of `once` | type | meaning |
//! |---|---|---|
//! | `state` | `"open"`, `"done"` | whether an outcome is remembered. Other documents are never touched |
//! | `begun` | `{token, owner, at}` | the last run that was begun and neither completed nor discarded. Of a done record: the run that completed it |
//! | `fingerprint` | binary | that of the request that began this run |
//! | `value`, `at` | binary, date | the outcome, and when it was written |
//! | `until` | date | until when a done record counts |
//! | `kept` | date | until when a done record stays at least: not before the time of its token (R6) |
//!
//! All are written under the lease, by a write that the lease filters.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use distlock_api::{ErrorKind, LockError, Result};
use distlock_recipes::once::{Fingerprint, OnceRecord, OnceRun, OnceState, Outcome};
use mongodb::bson::spec::BinarySubtype;
use mongodb::bson::{Binary, Bson, DateTime, Document, doc};
use serde::Deserialize;

use super::{
    ACQUIRED_AT, EXPIRES_AT, LOCK_ID, Layout, OWNER, TOKEN, WriteId, answer, is_absent, later_by, literal, millis,
    time_of,
};
use crate::bson::from_document;
use crate::ids::TextIds;
use crate::numbers::token;

/// The field of the lease.
const LOCK: &str = "lock";
/// The field of what is known of the work.
pub(super) const ONCE: &str = "once";
pub(super) const STATE: &str = "once.state";
pub(super) const OPEN: &str = "open";
const DONE: &str = "done";
/// How long a record outlives its outcome: the tokens of a record that is purged earlier can repeat
/// (R6).
const GRACE: Duration = Duration::from_secs(60 * 60);

/// One TTL index of the collection.
pub(crate) struct OnceIndex {
    pub(crate) name: &'static str,
    pub(crate) keys: Document,
    pub(crate) of: Document,
    pub(crate) expire_after: Duration,
}

/// What is known of the work, as it is stored.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct StoredOnce {
    state: String,
    begun: Option<StoredRun>,
    fingerprint: Option<Binary>,
    value: Option<Binary>,
    at: Option<DateTime>,
    until: Option<DateTime>,
}

#[derive(Clone, Debug, Deserialize)]
struct StoredRun {
    token: i64,
    owner: Option<String>,
    at: DateTime,
}

/// A record, as [`Layout::once_record`] projects it.
#[derive(Debug, Deserialize)]
pub(crate) struct OnceFound {
    /// Whether the document is such a record.
    ours: bool,
    once: Option<Bson>,
    /// Whether the write in question is remembered.
    written: bool,
    held: bool,
    /// Whether the lease has a holder, expired or not.
    taken: bool,
    expires: Option<Bson>,
    /// The token, the owner and the beginning of the lease.
    token: Option<Bson>,
    owner: Option<Bson>,
    acquired: Option<Bson>,
    now: DateTime,
}

/// What has become of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// The write that ends it was carried out.
    Ended,
    /// A write of it may still be carried out.
    Open,
    /// Nothing of it is remembered, and nothing will be.
    Over,
}

impl Layout {
    /// Makes the layout of these records.
    pub(crate) fn of_once() -> Self {
        Self::within(LOCK, Arc::new(TextIds))
    }

    /// Returns the TTL indexes: of outcomes, and of all other records that have not been used for
    /// `keep_open` (O10). A lease that is renewed moves its end, so no index removes work under
    /// way.
    pub(crate) fn once_indexes(&self, keep_open: Duration) -> Vec<OnceIndex> {
        let index = |name, field: String, state: &str, expire_after| OnceIndex {
            name,
            keys: doc! { field: 1 },
            of: doc! { STATE: state },
            expire_after,
        };
        vec![
            index("distlock_once_done", format!("{ONCE}.kept"), DONE, GRACE),
            index("distlock_once_open", self.path(EXPIRES_AT), OPEN, keep_open),
        ]
    }

    /// Projects a document to an [`OnceFound`]. Of `write`, whether it was carried out.
    pub(crate) fn once_record(&self, write: Option<WriteId<'_>>) -> Document {
        let ours = doc! { "$and": [
            { "$in": [format!("${STATE}"), [OPEN, DONE]] },
            { "$eq": [{ "$type": self.value(TOKEN) }, "long"] },
        ] };
        answer(doc! {
            "ours": ours,
            "once": format!("${ONCE}"),
            "written": write.map_or_else(|| literal(false), |write| self.has_written(write).into()),
            "held": self.is_held(),
            "taken": { "$not": is_absent(self.value(LOCK_ID)) },
            "expires": self.value(EXPIRES_AT),
            "token": self.value(TOKEN),
            "owner": self.value(OWNER),
            "acquired": self.value(ACQUIRED_AT),
            "now": "$$NOW",
        })
    }

    /// Makes the stages that begin a run. Of the record before, nothing is left.
    pub(crate) fn once_begun(&self, fingerprint: Option<&Fingerprint>) -> Vec<Document> {
        let mut open = doc! { "state": OPEN };
        if let Some(print) = fingerprint {
            open.insert("fingerprint", binary(print.as_bytes()));
        }
        set(vec![literal(open), doc! { "begun": self.run() }.into()])
    }

    /// Makes the stages that complete the run with this token.
    pub(crate) fn once_done(&self, value: &[u8], token: i64, keep: Duration) -> Vec<Document> {
        let until = later_by(keep);
        let known = doc! {
            "begun": format!("${ONCE}.begun"),
            "fingerprint": format!("${ONCE}.fingerprint"),
            "at": "$$NOW",
            "until": until.clone(),
            // The record outlives the time of its token (R6).
            "kept": { "$max": [until, time_of(token)] },
        };
        set(vec![literal(doc! { "state": DONE, "value": binary(value) }), known.into()])
    }

    /// Makes the stages that restore what was known before a run.
    pub(crate) fn once_restored(&self, before: &Document) -> Vec<Document> {
        set(vec![literal(before.clone())])
    }

    /// The present holder's run.
    fn run(&self) -> Document {
        doc! { "token": self.value(TOKEN), "owner": self.value(OWNER), "at": "$$NOW" }
    }
}

/// Sets what is known to the merger of the parts. A plain document would be merged with the former
/// one.
fn set(parts: Vec<Bson>) -> Vec<Document> {
    vec![doc! { "$set": { ONCE: { "$mergeObjects": parts } } }]
}

fn binary(bytes: &[u8]) -> Binary {
    Binary { subtype: BinarySubtype::Generic, bytes: bytes.to_vec() }
}

/// Returns the part of a new record that is not the lease.
pub(crate) fn new_once() -> Document {
    doc! { ONCE: { "state": OPEN } }
}

/// Returns the condition that a document is such a record.
pub(crate) fn is_once() -> Document {
    doc! { STATE: { "$in": [OPEN, DONE] } }
}

/// Makes the error of a document that is no such record.
pub(crate) fn not_once() -> LockError {
    let message = "the document with this `_id` is no record of work that is done once, and is left as it is: give \
                   these records a collection of their own (`MongoOnceBuilder::collection`)";
    LockError::new(ErrorKind::Corrupt, message)
}

impl StoredOnce {
    /// Reads what is known of a document's work, as it is without a holder. Also returns the field
    /// as it is stored.
    pub(crate) fn of(document: &Document) -> Result<(Self, Document)> {
        let once = document.get_document(ONCE).map_err(|error| not_once().with_source(error))?;
        Ok((Self::read(once.clone())?, once.clone()))
    }

    fn read(once: Document) -> Result<Self> {
        from_document(once).map_err(|error| not_once().with_source(error))
    }

    pub(crate) fn is_done(&self) -> bool {
        self.state == DONE
    }

    /// Returns what is known of work that has no holder, unless an outcome is remembered.
    pub(crate) fn unheld(&self) -> Result<OnceRecord> {
        match self.begun.as_ref().filter(|_| !self.is_done()) {
            Some(run) => Ok(OnceRecord::new(OnceState::Interrupted(run.read()?), self.fingerprint())),
            None => Ok(OnceRecord::default()),
        }
    }

    pub(crate) fn fingerprint(&self) -> Option<Fingerprint> {
        self.fingerprint.as_ref().map(|print| Fingerprint::new(&print.bytes))
    }

    /// Returns the outcome, if it counts at this time.
    fn outcome(&self, now: DateTime) -> Result<Option<Outcome>> {
        if !self.is_done() || self.until.is_none_or(|until| until <= now) {
            return Ok(None);
        }
        let (Some(value), Some(run), Some(at)) = (&self.value, &self.begun, self.at) else { return Err(not_once()) };
        Ok(Some(Outcome::new(value.bytes.as_slice().into(), run.read()?, at.to_system_time())))
    }
}

impl StoredRun {
    fn read(&self) -> Result<OnceRun> {
        let owner = self.owner.as_deref().map(Arc::from);
        Ok(OnceRun::new(token(self.token)?, owner, self.at.to_system_time()))
    }
}

impl OnceFound {
    /// Returns what is known of the work, by the server's clock.
    pub(crate) fn record(&self) -> Result<OnceRecord> {
        let once = self.stored()?;
        if let Some(outcome) = once.outcome(self.now)? {
            return Ok(OnceRecord::new(OnceState::Done(outcome), once.fingerprint()));
        }
        if !self.held {
            return once.unheld();
        }
        match &once.begun {
            Some(run) if Some(run.token) == self.token() && !once.is_done() => {
                Ok(OnceRecord::new(OnceState::UnderWay(run.read()?), once.fingerprint()))
            }
            // The holder has not yet recorded that it begins. What is recorded is of another
            // request.
            _ => Ok(OnceRecord::new(OnceState::UnderWay(self.holder()?), None)),
        }
    }

    /// Returns what has become of the run with this token.
    ///
    /// A write that stalls at the server keeps the time of its start (R2), and is carried out after
    /// the expiry if the record still names its holder. `stall` bounds how long after.
    pub(crate) fn fate(&self, of: i64, stall: Duration) -> Result<Fate> {
        let once = self.stored()?;
        let is_of_run = once.begun.as_ref().is_some_and(|run| run.token == of);
        let expires = self.expires.as_ref().and_then(Bson::as_datetime);
        let is_over = expires
            .is_some_and(|end| end.timestamp_millis().saturating_add(millis(stall)) <= self.now.timestamp_millis());
        // An outcome may have been forgotten, and followed by another run.
        let has_ended = self.written || once.is_done() && is_of_run;
        Ok(match (has_ended, self.taken && self.token() == Some(of)) {
            (true, _) => Fate::Ended,
            (false, true) if !is_over => Fate::Open,
            (false, _) => Fate::Over,
        })
    }

    fn stored(&self) -> Result<StoredOnce> {
        match &self.once {
            Some(Bson::Document(once)) if self.ours => StoredOnce::read(once.clone()),
            _ => Err(not_once()),
        }
    }

    fn token(&self) -> Option<i64> {
        self.token.as_ref().and_then(Bson::as_i64)
    }

    fn holder(&self) -> Result<OnceRun> {
        let since =
            self.acquired.as_ref().and_then(Bson::as_datetime).map_or(SystemTime::UNIX_EPOCH, |at| at.to_system_time());
        let owner = self.owner.as_ref().and_then(Bson::as_str).map(Arc::from);
        Ok(OnceRun::new(token(self.token().ok_or_else(not_once)?)?, owner, since))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: i64 = 1_000_000;

    fn found(once: Document, held: bool, token: i64) -> OnceFound {
        let now = DateTime::from_millis(NOW);
        OnceFound {
            ours: true,
            once: Some(once.into()),
            written: false,
            held,
            taken: held,
            expires: Some(DateTime::from_millis(if held { NOW + 1 } else { NOW - 1 }).into()),
            token: Some(token.into()),
            owner: None,
            acquired: None,
            now,
        }
    }

    fn run(token: i64) -> Document {
        doc! { "token": token, "owner": "web-1", "at": DateTime::from_millis(5) }
    }

    fn done(token: i64, until: i64) -> Document {
        doc! { "state": DONE, "begun": run(token), "value": binary(b"ok"), "at": DateTime::from_millis(9), "until": DateTime::from_millis(until) }
    }

    fn state(found: &OnceFound) -> OnceState {
        found.record().unwrap().state
    }

    #[test]
    fn the_state_follows_from_the_record_and_the_lease() {
        let bare = doc! { "state": OPEN };
        let begun = doc! { "state": OPEN, "begun": run(7), "fingerprint": binary(b"a") };
        assert_eq!(state(&found(bare.clone(), false, 7)), OnceState::New);
        assert!(matches!(state(&found(bare, true, 7)), OnceState::UnderWay(run) if run.owner.is_none()));
        assert!(matches!(state(&found(begun.clone(), true, 7)), OnceState::UnderWay(run) if run.owner.is_some()));
        assert!(matches!(state(&found(begun.clone(), false, 7)), OnceState::Interrupted(run) if run.token.get() == 7));
        // The next holder has the lease, and has not recorded it: its fingerprint is not known.
        let next = found(begun, true, 8).record().unwrap();
        assert!(matches!(next.state, OnceState::UnderWay(run) if run.token.get() == 8));
        assert_eq!(next.fingerprint, None);
        for held in [false, true] {
            assert!(
                matches!(state(&found(done(7, NOW + 1), held, 8)), OnceState::Done(outcome) if outcome.value() == b"ok")
            );
        }
        assert_eq!(state(&found(done(7, NOW), false, 7)), OnceState::New);
        assert!(matches!(state(&found(done(7, NOW), true, 8)), OnceState::UnderWay(_)));
    }

    #[test]
    fn the_fate_of_a_run_is_that_of_its_token() {
        const STALL: Duration = Duration::from_millis(500);
        let open = doc! { "state": OPEN, "begun": run(7) };
        let fate = |once: &Document, held, token| found(once.clone(), held, token).fate(7, STALL).unwrap();
        assert_eq!(fate(&open, true, 7), Fate::Open);
        assert_eq!(fate(&open, false, 7), Fate::Over);
        assert_eq!(fate(&open, true, 8), Fate::Over);
        assert_eq!(fate(&done(7, NOW), true, 8), Fate::Ended);
        assert_eq!(fate(&done(6, NOW), false, 7), Fate::Over);
        // A lease that expired is still named, so a write that has stalled may be carried out.
        let expired = |once: &Document, token, ago| {
            let mut found = found(once.clone(), false, token);
            found.taken = true;
            found.expires = Some(DateTime::from_millis(NOW - ago).into());
            found.fate(7, STALL).unwrap()
        };
        assert_eq!([expired(&open, 7, 0), expired(&open, 7, 499)], [Fate::Open; 2]);
        assert_eq!([expired(&open, 7, 500), expired(&open, 8, 0)], [Fate::Over; 2]);
        assert_eq!(expired(&done(7, NOW), 7, 0), Fate::Ended);
        let mut followed = found(doc! { "state": OPEN, "begun": run(8) }, true, 8);
        followed.written = true;
        assert_eq!(followed.fate(7, STALL).unwrap(), Fate::Ended);
    }

    #[test]
    fn other_documents_are_refused() {
        let mut other = found(doc! { "state": OPEN }, false, 7);
        other.ours = false;
        assert_eq!(other.record().unwrap_err().kind(), ErrorKind::Corrupt);
        assert_eq!(found(doc! { "state": 7 }, false, 7).record().unwrap_err().kind(), ErrorKind::Corrupt);
        assert_eq!(StoredOnce::of(&doc! { "a": 1 }).unwrap_err().kind(), ErrorKind::Corrupt);
    }
}
