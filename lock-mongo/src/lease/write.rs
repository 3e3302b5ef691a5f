//! Changes of a document and its lease in one step.

use std::time::Duration;

use distlock_api::AcquisitionId;
use distlock_engine::store::Used;
use mongodb::bson::{Bson, Document, doc};

use super::{CLOSED_UNTIL, Clock, LOCK_ID, Layout, NextHolders, WRITTEN, WRITTEN_LEN, answer, literal};

/// One write of an acquisition: its number, from 1.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WriteId<'a> {
    pub(crate) acquisition: &'a AcquisitionId,
    pub(crate) number: i64,
}

impl WriteId<'_> {
    fn entry(self) -> Bson {
        doc! { "id": self.acquisition.as_str(), "n": self.number }.into()
    }
}

impl Layout {
    /// Returns the filter of the document, if the acquisition holds its lease, unexpired, and has
    /// made neither this write nor a later one. As it is a filter, the pipeline needs no condition.
    pub(crate) fn writable(&self, identity: Bson, write: WriteId<'_>) -> Document {
        let mut filter = self.held_record(identity, write.acquisition);
        let made = doc! { "id": write.acquisition.as_str(), "n": { "$gte": write.number } };
        filter.insert(self.path(WRITTEN), doc! { "$not": { "$elemMatch": made } });
        filter
    }

    /// Makes the stages after those of a change: they record the write.
    pub(crate) fn written(&self, write: WriteId<'_>) -> Vec<Document> {
        let others = doc! { "$filter": {
            "input": self.writes(),
            "cond": { "$ne": ["$$this.id", literal(write.acquisition.as_str())] },
        } };
        let all = doc! { "$concatArrays": [[literal(write.entry())], others] };
        vec![doc! { "$set": { self.path(WRITTEN): { "$slice": [all, WRITTEN_LEN] } } }]
    }

    /// Makes the stages after those of a commit: they record the write, and release.
    pub(crate) fn committed(
        &self,
        write: WriteId<'_>,
        used: Used,
        hold_at_least: Option<Duration>,
        clock: Clock,
    ) -> Vec<Document> {
        let mut stages = self.written(write);
        stages.extend(self.pass(write.acquisition, used, hold_at_least, NextHolders::OfAnyMode, clock));
        stages
    }

    /// Projects a document that has just been written to a [`Wrote`](super::Wrote), with the
    /// document itself if `with_document` is set.
    pub(crate) fn wrote(&self, with_document: bool) -> Document {
        // A plain `true` would project a field of the document.
        let in_use = doc! { "$ifNull": [self.value(LOCK_ID), self.value(CLOSED_UNTIL), Bson::Null] };
        let mut fields = doc! { "applied": literal(true), "is_free": { "$eq": [in_use, Bson::Null] } };
        if with_document {
            fields.insert("document", self.without_lease());
        }
        answer(fields)
    }

    /// Projects a document that was not written to a [`Wrote`](super::Wrote): whether an earlier
    /// try has made the write.
    pub(crate) fn wrote_before(&self, write: WriteId<'_>, with_document: bool) -> Document {
        let mut projection = self.wrote(with_document);
        if let Ok(fields) = projection.get_document_mut(super::ANSWER) {
            fields.insert("applied", self.has_written(write));
        }
        projection
    }

    /// Returns whether this is the last write of its acquisition, which is remembered.
    pub(super) fn has_written(&self, write: WriteId<'_>) -> Document {
        doc! { "$in": [literal(write.entry()), self.writes()] }
    }

    fn writes(&self) -> Document {
        let written = doc! { "$slice": [self.value(WRITTEN), WRITTEN_LEN] };
        doc! { "$cond": [{ "$isArray": self.value(WRITTEN) }, written, []] }
    }
}
