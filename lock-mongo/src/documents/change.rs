//! The change of a document by a commit or a save.

use distlock_api::{LockError, LockKey, Result};
use mongodb::bson::{Bson, Document};
use serde::Serialize;

use crate::bson::to_bson;
use crate::lease::{Edit, Form, Layout};

/// A change of one locked document: some fields, the whole document, or an update pipeline.
///
/// ```
/// use distlock_mongo::Change;
/// use distlock_mongo::mongodb::bson::doc;
///
/// let some = Change::new().set("state", "paid").set("address.city", "$Paris").unset("draft");
/// let same = Change::from(doc! { "state": "paid", "address.city": "$Paris" }); // without the `unset`
/// let expert = Change::pipeline([doc! { "$set": { "total": { "$sum": "$items.price" } } }]);
/// # let _ = (some, same, expert);
/// ```
///
/// Values are data: a string that begins with `$` is stored as that string, and a sub-document
/// replaces the previous value. Only in a pipeline values are expressions.
///
/// No change can touch the `_id` or the field of the lock. A commit or save refuses one that does
/// with [`InvalidOptions`](distlock_api::ErrorKind::InvalidOptions), before anything is sent.
#[derive(Clone, Debug)]
#[must_use = "a change does nothing until it is committed or saved"]
pub struct Change(Result<Form>);

impl Default for Change {
    fn default() -> Self {
        Self::new()
    }
}

impl Change {
    /// Makes an empty change, to which fields are added. A commit of it only releases.
    pub const fn new() -> Self {
        Self(Ok(Form::Fields(Vec::new())))
    }

    /// Replaces the whole document, except its `_id` and the lock.
    ///
    /// An `_id` in it must be the `_id` of the document, or be left out.
    pub fn replace<T: Serialize + ?Sized>(document: &T) -> Self {
        Self(match serialized(document) {
            Ok(Bson::Document(document)) => Ok(Form::Whole(document)),
            Ok(_) => refuse("the new value is no document: its type must serialize to a struct or a map".into()),
            Err(error) => Err(error),
        })
    }

    /// Changes the document by the stages of an update pipeline, for experts: `$set`, `$addFields`,
    /// `$unset`, `$project`, `$replaceWith`, `$replaceRoot`.
    ///
    /// They run before the stages that release, in the same atomic step. A string that begins with
    /// `$` is an expression there: put external data into `{ "$literal": … }`. Stages that replace
    /// the document keep its `_id` and the lock. A copy of `$$ROOT` contains the lock.
    pub fn pipeline(stages: impl IntoIterator<Item = Document>) -> Self {
        Self(Ok(Form::Stages(stages.into_iter().collect())))
    }

    /// Sets a field. Dots in the path lead into sub-documents; missing ones are made.
    ///
    /// Ambiguous paths are refused: with names that are empty or begin with `$`, and with numbers,
    /// which could mean positions in an array. If the path passes through an array, a string, null
    /// or another value that is no sub-document, the server
    /// [rejects](distlock_api::ErrorKind::Rejected) the change, and nothing is changed. For names
    /// with dots or dollars see [`set_at`](Self::set_at).
    pub fn set(self, path: &str, value: impl Into<Bson>) -> Self {
        self.edit(split(path), Edit::Set(value.into()))
    }

    /// Sets a field by the names on its path, each taken literally: dots, dollars and digits are
    /// parts of names.
    ///
    /// Names must not be empty or contain NUL. Names that begin with `$` or contain a dot are legal
    /// in MongoDB, but many tools cannot handle them.
    pub fn set_at<N: Into<String>>(self, path: impl IntoIterator<Item = N>, value: impl Into<Bson>) -> Self {
        self.edit(names(path), Edit::Set(value.into()))
    }

    /// Sets a field to a value that is serialized to BSON. The path is as in [`set`](Self::set).
    pub fn set_serialized<V: Serialize + ?Sized>(self, path: &str, value: &V) -> Self {
        match serialized(value) {
            Ok(value) => self.set(path, value),
            Err(error) => Self(self.0.and(Err(error))),
        }
    }

    /// Removes a field, if it exists. The path is as in [`set`](Self::set). If it passes through a
    /// value that is no sub-document, nothing is removed.
    pub fn unset(self, path: &str) -> Self {
        self.edit(split(path), Edit::Unset)
    }

    /// Removes a field, if it exists, by the names on its path, as in [`set_at`](Self::set_at).
    pub fn unset_at<N: Into<String>>(self, path: impl IntoIterator<Item = N>) -> Self {
        self.edit(names(path), Edit::Unset)
    }

    fn edit(self, path: Result<Vec<String>>, edit: Edit) -> Self {
        Self(self.0.and_then(|form| match form {
            Form::Fields(mut edits) => {
                edits.push((path?, edit));
                Ok(Form::Fields(edits))
            }
            Form::Whole(_) | Form::Stages(_) => {
                refuse("a change of the whole document, or by a pipeline, cannot also set single fields".into())
            }
        }))
    }

    /// Makes the stages for a key's document.
    pub(crate) fn stages(&self, layout: &Layout, key: &LockKey) -> Result<Vec<Document>> {
        layout.change(self.0.as_ref().map_err(LockError::clone)?, key)
    }
}

/// Sets each of the fields, as [`Change::set`] does. Not an update document: operators such as
/// `$inc` are refused.
impl From<Document> for Change {
    fn from(fields: Document) -> Self {
        fields.into_iter().fold(Self::new(), |change, (path, value)| change.set(&path, value))
    }
}

fn split(path: &str) -> Result<Vec<String>> {
    let names: Vec<String> = path.split('.').map(str::to_owned).collect();
    if names.iter().any(|name| name.starts_with('$')) {
        return refuse(format!(
            "{path:?} is no path: use `set_at` for names that begin with $, and `Change::pipeline` for operators"
        ));
    }
    if names.iter().skip(1).any(|name| !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_digit())) {
        return refuse(format!(
            "{path:?} could mean a position in an array: use `set_at` for a field with such a name"
        ));
    }
    check(names)
}

fn names<N: Into<String>>(path: impl IntoIterator<Item = N>) -> Result<Vec<String>> {
    check(path.into_iter().map(Into::into).collect())
}

fn check(names: Vec<String>) -> Result<Vec<String>> {
    if names.is_empty() || names.iter().any(|name| name.is_empty() || name.contains('\0')) {
        return refuse(format!("{names:?} is no path: it is empty, or a name in it is empty or contains NUL"));
    }
    Ok(names)
}

fn serialized<V: Serialize + ?Sized>(value: &V) -> Result<Bson> {
    to_bson(value).map_err(|error| LockError::invalid_options("a value cannot be stored as BSON").with_source(error))
}

fn refuse<T>(message: String) -> Result<T> {
    Err(LockError::invalid_options(message))
}

#[cfg(test)]
mod tests {
    use mongodb::bson::doc;

    use super::*;

    fn is_refused(change: Change) -> bool {
        change.0.is_err_and(|error| error.kind() == distlock_api::ErrorKind::InvalidOptions)
    }

    #[test]
    fn ambiguous_paths_are_refused() {
        for path in ["", "a..b", ".a", "a.", "$a", "a.$b", "a.0", "a.0.b", "a\0", "$inc"] {
            assert!(is_refused(Change::new().set(path, 1)), "{path:?}");
            assert!(is_refused(Change::new().unset(path)), "{path:?}");
        }
        for path in ["a", "0", "a.b", "a.b0", "é", "a b", "a$"] {
            assert!(!is_refused(Change::new().set(path, 1)), "{path:?}");
        }
        assert!(!is_refused(Change::new().set_at(["a", "0", "$b.c"], 1)));
        assert!(is_refused(Change::new().set_at(["a", ""], 1)) && is_refused(Change::new().set_at([""; 0], 1)));
        assert!(is_refused(doc! { "$inc": { "a": 1 } }.into()));
    }

    #[test]
    fn a_change_has_one_form() {
        assert!(is_refused(Change::replace(&doc! { "a": 1 }).set("b", 1)));
        assert!(is_refused(Change::pipeline([]).unset("b")));
        assert!(is_refused(Change::replace("text")));
        assert!(is_refused(Change::new().set_serialized("a", &u64::MAX)));
    }
}
