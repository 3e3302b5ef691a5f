//! Changing the document and its lease in one step.

use std::time::Duration;

use distlock_api::AcquisitionId;
use distlock_engine::store::Used;
use mongodb::bson::{Bson, Document, doc};

use super::{Clock, Layout, WRITTEN, WRITTEN_LEN, answer, literal};

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
    /// The document, if the acquisition holds its lease unexpired, and neither this write nor a
    /// later one of its own has been made: in a filter, so that the pipeline needs no condition.
    pub(crate) fn writable(&self, identity: Bson, write: WriteId<'_>) -> Document {
        let mut filter = self.held_record(identity, write.acquisition);
        let made = doc! { "id": write.acquisition.as_str(), "n": { "$gte": write.number } };
        filter.insert(self.path(WRITTEN), doc! { "$not": { "$elemMatch": made } });
        filter
    }

    /// The stages after those of a change: that it has been made.
    pub(crate) fn written(&self, write: WriteId<'_>) -> Vec<Document> {
        let others = doc! { "$filter": {
            "input": self.writes(),
            "cond": { "$ne": ["$$this.id", literal(write.acquisition.as_str())] },
        } };
        let all = doc! { "$concatArrays": [[literal(write.entry())], others] };
        vec![doc! { "$set": { self.path(WRITTEN): { "$slice": [all, WRITTEN_LEN] } } }]
    }

    /// The stages after those of a commit: that it has been made, and the release.
    pub(crate) fn committed(&self, write: WriteId<'_>, hold_at_least: Option<Duration>, clock: Clock) -> Vec<Document> {
        let mut stages = self.written(write);
        // A typed style asks for blocks of one token.
        stages.extend(self.pass(write.acquisition, Used::Unknown, hold_at_least, clock));
        stages
    }

    /// The [`Wrote`](super::Wrote) of a document that has just been written; with the document, if
    /// it is asked for.
    pub(crate) fn wrote(&self, with_document: bool) -> Document {
        // A plain `true` would mean a field of the document.
        let mut fields = doc! { "applied": literal(true) };
        if with_document {
            fields.insert("document", self.rest());
        }
        answer(fields)
    }

    /// The [`Wrote`](super::Wrote) of a document that could not be written: whether it was done
    /// before.
    pub(crate) fn wrote_before(&self, write: WriteId<'_>, with_document: bool) -> Document {
        let mut projection = self.wrote(with_document);
        if let Ok(fields) = projection.get_document_mut(super::ANSWER) {
            fields.insert("applied", doc! { "$in": [literal(write.entry()), self.writes()] });
        }
        projection
    }

    fn writes(&self) -> Document {
        doc! { "$cond": [{ "$isArray": self.value(WRITTEN) }, self.value(WRITTEN), []] }
    }
}
