//! Two documents that only change together, by fenced transactions.

use std::time::Duration;

use distlock_api::FencingToken;
use distlock_mongo::mongodb::bson::{Document, doc};
use distlock_mongo::mongodb::error::Error;
use distlock_mongo::mongodb::{ClientSession, Collection};
use distlock_mongo::{Fence, Fenced, FencedTransaction, TransactionError, TransactionWork};

/// Two documents, the collection of their fence record, and how long a transaction may take.
#[derive(Clone)]
pub(crate) struct Pair {
    pub(crate) documents: Collection<Document>,
    pub(crate) records: Collection<Document>,
    limit: Duration,
}

impl Pair {
    pub(crate) async fn create(
        documents: Collection<Document>,
        records: Collection<Document>,
        limit: Duration,
    ) -> Self {
        documents.insert_many([doc! { "_id": 1, "log": [] }, doc! { "_id": 2, "log": [] }]).await.unwrap();
        Self { documents, records, limit }
    }

    pub(crate) fn transaction(&self, token: u64) -> FencedTransaction {
        Fence::new(FencingToken::new(token)).unwrap().transaction(&self.records, "the lock").within(self.limit)
    }

    /// Adds a line to one of them.
    pub(crate) async fn add_to(&self, id: i32, line: u64, session: &mut ClientSession) -> Result<(), Error> {
        let change = doc! { "$push": { "log": line.cast_signed() } };
        self.documents.update_one(doc! { "_id": id }, change).session(session).await.map(drop)
    }

    /// Adds a line to both.
    pub(crate) async fn add(&self, line: u64, session: &mut ClientSession) -> Result<(), Error> {
        self.add_to(1, line, session).await?;
        self.add_to(2, line, session).await
    }

    /// Adds a line to both, in one transaction.
    pub(crate) async fn commit(&self, token: u64, line: u64) -> Result<Fenced<()>, TransactionError> {
        self.transaction(token).run(|session| self.work(line, session)).await
    }

    pub(crate) fn work<'s>(&self, line: u64, session: &'s mut ClientSession) -> TransactionWork<'s, ()> {
        let pair = self.clone();
        Box::pin(async move { pair.add(line, session).await })
    }

    /// Returns the lines, which must be the same in both.
    pub(crate) async fn logs(&self) -> Vec<i64> {
        let log = async |id: i32| {
            let found = self.documents.find_one(doc! { "_id": id }).await.unwrap().unwrap();
            found.get_array("log").unwrap().iter().map(|line| line.as_i64().unwrap()).collect::<Vec<_>>()
        };
        let (one, other) = (log(1).await, log(2).await);
        assert_eq!(one, other, "the documents have changed one without the other");
        one
    }
}
