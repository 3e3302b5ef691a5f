//! Whether a collection can keep locks: an ordinary one, which loses nothing that is not deleted.

use std::time::Duration;

use distlock_api::style::contained;
use distlock_api::{ErrorKind, LockError, Result};
use futures_util::TryStreamExt;
use futures_util::future::join;
use mongodb::bson::{Bson, Document, doc};
use mongodb::error::Error;
use mongodb::options::{Collation, CursorType};
use mongodb::{Database, IndexModel};

use crate::error::{Effect, NAMESPACE_NOT_FOUND, UNAUTHORIZED, command_code, translate};

/// Refuses a collection that cannot keep locks: its kind, its collation (C20), and TTL indexes of
/// others that can remove what is in use (R6). One round trip, by two commands, and another one if
/// the user may not list collections.
///
/// `in_use` decides of a field, and of the filter of its index, whether documents are in use beyond
/// the date there. What the user may not list is not checked.
///
/// # Errors
/// [`Unsupported`](ErrorKind::Unsupported), or an error of MongoDB.
pub(super) async fn check(
    database: &Database,
    collection: &str,
    in_use: impl Fn(&str, Option<&Document>) -> bool,
    limit: Duration,
) -> Result<()> {
    let namespace = format!("{}.{collection}", database.name());
    let (options, indexes) = join(options(database, collection, limit), indexes(database, collection, limit)).await;
    // A view has no indexes to list.
    let options = allowed(options, &namespace, "listCollections")?;
    if let Some(options) = &options {
        refuse_kind(&namespace, options)?;
    }
    let indexes = allowed(indexes, &namespace, "listIndexes")?;
    if options.is_none() && indexes.as_ref().is_some_and(|indexes| !indexes.is_empty()) {
        refuse_if_capped(database, collection, &namespace, limit).await?;
    }
    for index in indexes.unwrap_or_default() {
        refuse_index(&namespace, index, &in_use)?;
    }
    Ok(())
}

/// Refuses a collection that removes documents by itself, for one that a fence inserts.
///
/// # Errors
/// As [`check`].
pub(crate) async fn check_kept(database: &Database, collection: &str, limit: Duration) -> Result<()> {
    let namespace = format!("{}.{collection}", database.name());
    match allowed(options(database, collection, limit).await, &namespace, "listCollections")? {
        Some(options) => refuse_kind(&namespace, &options),
        None => match allowed(indexes(database, collection, limit).await, &namespace, "listIndexes")? {
            Some(indexes) if !indexes.is_empty() => refuse_if_capped(database, collection, &namespace, limit).await,
            _ => Ok(()),
        },
    }
}

/// Returns `None` for what the user may not list.
fn allowed<T>(listed: Result<T, Error>, namespace: &str, privilege: &str) -> Result<Option<T>> {
    match listed {
        Ok(listed) => Ok(Some(listed)),
        Err(error) if command_code(&error) == Some(UNAUTHORIZED) => {
            contained(|| {
                tracing::debug!(%error, collection = namespace, "the privilege {privilege} is missing: not all is checked");
            });
            Ok(None)
        }
        Err(error) => Err(translate(&error, Effect::None)),
    }
}

/// Returns the entry of the collection; an empty one if it does not exist.
async fn options(database: &Database, collection: &str, limit: Duration) -> Result<Document, Error> {
    let limit = i64::try_from(limit.as_millis()).unwrap_or(i64::MAX).max(1);
    let list = doc! { "listCollections": 1, "filter": { "name": collection }, "maxTimeMS": limit };
    let listed = database.run_command(list).await?;
    let batch = listed.get_document("cursor").ok().and_then(|cursor| cursor.get_array("firstBatch").ok());
    let entry = batch.and_then(|batch| batch.first()).and_then(Bson::as_document);
    Ok(entry.cloned().unwrap_or_default())
}

/// Returns the indexes; none if the collection does not exist.
async fn indexes(database: &Database, collection: &str, limit: Duration) -> Result<Vec<IndexModel>, Error> {
    let records = database.collection::<Document>(collection);
    let list = async { records.list_indexes().max_time(limit).await?.try_collect().await };
    match list.await {
        Err(error) if command_code(&error) == Some(NAMESPACE_NOT_FOUND) => Ok(Vec::new()),
        listed => listed,
    }
}

fn refuse_kind(namespace: &str, entry: &Document) -> Result<()> {
    let none = Document::new();
    let options = entry.get_document("options").unwrap_or(&none);
    let is_set = |name: &str| !matches!(options.get(name), None | Some(Bson::Null | Bson::Boolean(false)));
    let kind = entry.get_str("type").unwrap_or_default();
    if kind == "view" {
        return refuse(namespace, "is a view");
    }
    if kind == "timeseries" || is_set("timeseries") {
        return refuse(namespace, "is a time series, whose documents cannot be changed one by one");
    }
    if is_set("capped") {
        return refuse(namespace, CAPPED);
    }
    if is_set("clusteredIndex") && is_set("expireAfterSeconds") {
        return refuse(namespace, "is clustered and has an expiry, by which MongoDB removes documents in use");
    }
    if is_set("encryptedFields") {
        return refuse(namespace, "is encrypted (Queryable Encryption), and MongoDB changes its documents");
    }
    Ok(())
}

const CAPPED: &str =
    "is capped: when it is full, MongoDB removes the oldest documents, and two holders could have one lock";

fn refuse<T>(namespace: &str, what: &str) -> Result<T> {
    let message = format!("the collection {namespace} {what}. Use an ordinary collection");
    Err(LockError::new(ErrorKind::Unsupported, message))
}

/// Finds out without any privilege but `find`: only a capped collection has tailable cursors. The
/// collection exists.
async fn refuse_if_capped(database: &Database, collection: &str, namespace: &str, limit: Duration) -> Result<()> {
    let records = database.collection::<Document>(collection);
    let find = records.find(doc! { "_id": { "$in": [] } }).cursor_type(CursorType::Tailable).max_time(limit);
    match find.await {
        Ok(_) => refuse(namespace, CAPPED),
        // The error of the first lock says more than one of this query.
        Err(_) => Ok(()),
    }
}

fn refuse_index(namespace: &str, index: IndexModel, in_use: &impl Fn(&str, Option<&Document>) -> bool) -> Result<()> {
    let options = index.options.unwrap_or_default();
    let keys: Vec<&String> = index.keys.keys().collect();
    if keys == ["_id"]
        && let Some(collation) = options.collation.filter(|collation| collation.locale != "simple")
    {
        return Err(collated(namespace, &collation));
    }
    let [field] = *keys else { return Ok(()) };
    if options.expire_after.is_none() || !in_use(field, options.partial_filter_expression.as_ref()) {
        return Ok(());
    }
    let name = options.name.unwrap_or_default();
    let message = format!(
        "the TTL index {name:?} of the collection {namespace} removes documents by {field:?}, also those in use: two \
         holders could have one lock. Drop it, or use another collection"
    );
    Err(LockError::new(ErrorKind::Unsupported, message))
}

fn collated(namespace: &str, collation: &Collation) -> LockError {
    let strength = collation.strength.map_or_else(String::new, |strength| format!(", strength {strength:?}"));
    let message = format!(
        "the collection {namespace} has the default collation {:?}{strength}: keys that it considers equal would be \
         one lock (C20). Use a collection without a collation",
        collation.locale
    );
    LockError::new(ErrorKind::Unsupported, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ordinary_collections_are_allowed() {
        for entry in [
            doc! {},
            doc! { "type": "collection", "options": {} },
            doc! { "type": "collection", "options": { "capped": false, "validator": {} } },
            doc! { "type": "collection", "options": { "clusteredIndex": { "key": { "_id": 1 } } } },
        ] {
            refuse_kind("a.b", &entry).unwrap();
        }
        let refused = doc! { "type": "collection", "options": { "capped": true, "size": 4096 } };
        let error = refuse_kind("a.b", &refused).unwrap_err();
        assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Unsupported, false));
    }
}
