//! One step: a transaction with the file's write lock, and one reading of the clock.

use std::time::Duration;

use distlock_api::LockKey;
use distlock_engine::record::{Record, Request};
use rusqlite::types::Type;
use rusqlite::{OptionalExtension, Result, Transaction, params};

use crate::clock::nanos;

pub(crate) struct Step<'a> {
    pub(crate) sql: Transaction<'a>,
    /// Read after the write lock was taken. A reading from before the wait could revive a lease
    /// that has expired meanwhile.
    pub(crate) now: Duration,
}

impl Step<'_> {
    /// Loads the key's record, lets it answer the request, and saves it.
    pub(crate) fn answer<R: Request>(&self, request: &R) -> Result<R::Answer> {
        let mut record = self.load(request.key())?;
        let answer = record.step(request, self.now);
        let row = params![bytes(request.key()), nanos(self.now), record.token().cast_signed(), to_text(&record)?];
        self.sql.execute("REPLACE INTO lock (key, written, token, record) VALUES (?1, ?2, ?3, ?4)", row)?;
        Ok(answer)
    }

    pub(crate) fn load(&self, key: &LockKey) -> Result<Record> {
        let row = "SELECT token, record FROM lock WHERE key = ?1";
        let row = self.sql.query_row(row, [bytes(key)], |row| Ok((row.get(0)?, row.get(1)?))).optional()?;
        match row {
            None => Ok(Record::default()),
            Some((token, None)) => {
                let out_of_range = |_| rusqlite::Error::IntegralValueOutOfRange(0, token);
                Ok(Record::above(u64::try_from(token).map_err(out_of_range)?))
            }
            Some((_, Some(text))) => from_text(text),
        }
    }

    pub(crate) fn waiters(&self, key: &LockKey) -> Result<u32> {
        Ok(self.load(key)?.waiting(self.now).count().try_into().unwrap_or(u32::MAX))
    }
}

/// The key as a blob, which SQLite compares byte by byte. It does not always do so with text.
fn bytes(key: &LockKey) -> &[u8] {
    key.as_str().as_bytes()
}

fn to_text(record: &Record) -> Result<String> {
    serde_json::to_string(record).map_err(|error| rusqlite::Error::ToSqlConversionFailure(error.into()))
}

fn from_text(text: String) -> Result<Record> {
    serde_json::from_str(&text).map_err(|error| rusqlite::Error::FromSqlConversionFailure(1, Type::Text, error.into()))
}
