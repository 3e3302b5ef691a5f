//! The changes that an application makes in a document that contains a lease, as stages of a
//! pipeline that leave the lease and the `_id` alone.

use distlock_api::{LockError, LockKey, Result};
use mongodb::bson::{Bson, Document, doc};

use super::document::without_field;
use super::{ID, Layout, literal};

/// The text of the server's error when a path passes through a value that is no sub-document.
pub(crate) const NO_SUB_DOCUMENT: &str = "distlock: no sub-document but ";

/// The form of a change, independent of the document.
#[derive(Clone, Debug)]
pub(crate) enum Form {
    /// Fields, one after the other, each by the names on its path.
    Fields(Vec<(Vec<String>, Edit)>),
    /// The whole document, except the lease and the `_id`.
    Whole(Document),
    /// The stages of an application's own pipeline.
    Stages(Vec<Document>),
}

#[derive(Clone, Debug)]
pub(crate) enum Edit {
    Set(Bson),
    Unset,
}

impl Layout {
    /// Makes the stages of a change of a key's document.
    pub(crate) fn change(&self, form: &Form, key: &LockKey) -> Result<Vec<Document>> {
        let Some(field) = self.sub_document() else {
            return refuse("the records of a lock collection cannot be changed by an application");
        };
        match form {
            Form::Fields(edits) => {
                let mut stages = Vec::new();
                for (path, edit) in edits {
                    check_name(path.first().map_or("", |name| name), field)?;
                    append(&mut stages, path, edit);
                }
                Ok(stages)
            }
            Form::Whole(document) => {
                if document.contains_key(field) {
                    return refuse(format!(
                        "the new document has a field {field:?}, which is that of the lock: leave it out, or keep the \
                         lock in another field (`DocumentLocksBuilder::field`)"
                    ));
                }
                if document.get(ID).is_some_and(|id| self.key(id).as_ref() != Some(key)) {
                    return refuse("the new document has another `_id` than the locked one: leave it out");
                }
                // The `_id` comes first, and as it was: 7 stays 7 and does not become 7.0.
                let id = format!("${ID}");
                let kept = doc! { ID: &id, field: format!("${field}") };
                let merged = doc! { "$mergeObjects": [{ ID: id }, literal(document.clone()), kept] };
                Ok(vec![doc! { "$replaceWith": merged }])
            }
            Form::Stages(stages) => stages.iter().map(|stage| self.kept_in(stage, field)).collect(),
        }
    }

    /// Rewrites a stage of an application's own pipeline so that it keeps the lease and the `_id`.
    fn kept_in(&self, stage: &Document, field: &str) -> Result<Document> {
        let mut parts = stage.iter();
        let (Some((name, argument)), None) = (parts.next(), parts.next()) else {
            return refuse(format!("a stage of a pipeline has exactly one operator, and this one has {}", stage.len()));
        };
        match (name.as_str(), argument) {
            ("$set" | "$addFields", Bson::Document(fields)) => {
                fields.keys().try_for_each(|path| check_path(path, field))?;
                Ok(stage.clone())
            }
            ("$unset", Bson::String(path)) => {
                check_path(path, field)?;
                Ok(stage.clone())
            }
            ("$unset", Bson::Array(paths)) => {
                paths.iter().filter_map(Bson::as_str).try_for_each(|path| check_path(path, field))?;
                Ok(stage.clone())
            }
            ("$project", Bson::Document(fields)) => {
                fields
                    .keys()
                    .filter(|path| *path != ID || !is_kept(&fields[ID]))
                    .try_for_each(|path| check_path(path, field))?;
                let mut fields = fields.clone();
                // A projection that names the fields to keep would drop the lease.
                if fields.iter().any(|(path, value)| path != ID && names_kept_fields(value)) {
                    fields.insert(field, 1);
                }
                Ok(doc! { "$project": fields })
            }
            ("$replaceWith", new) => Ok(replaced_by(new, field)),
            ("$replaceRoot", Bson::Document(root)) if root.len() == 1 && root.contains_key("newRoot") => {
                Ok(replaced_by(&root["newRoot"], field))
            }
            _ => refuse(format!(
                "{name} is no stage of a change, or has a wrong argument: use $set, $addFields, $unset, $project, \
                 $replaceWith or $replaceRoot"
            )),
        }
    }
}

/// Replaces the document, except the lease and the `_id`. A value that is no document is left as it
/// is, so that the server refuses it.
fn replaced_by(new: &Bson, field: &str) -> Document {
    let kept = doc! { ID: format!("${ID}"), field: format!("${field}") };
    doc! { "$replaceWith": { "$let": {
        "vars": { "new": new.clone() },
        "in": { "$cond": [
            { "$eq": [{ "$type": "$$new" }, "object"] },
            { "$mergeObjects": ["$$new", kept] },
            "$$new",
        ] },
    } } }
}

/// Returns whether a part of a projection names fields to keep, not fields to drop.
fn names_kept_fields(value: &Bson) -> bool {
    match value {
        Bson::Document(nested) => {
            nested.is_empty() || nested.iter().any(|(name, value)| name.starts_with('$') || names_kept_fields(value))
        }
        value => is_kept(value),
    }
}

/// Returns whether the value of a field in a projection keeps the field, or computes it.
fn is_kept(value: &Bson) -> bool {
    match value {
        Bson::Boolean(kept) => *kept,
        Bson::Int32(number) => *number != 0,
        Bson::Int64(number) => *number != 0,
        Bson::Double(number) => *number != 0.0,
        _ => true,
    }
}

fn check_path(path: &str, field: &str) -> Result<()> {
    check_name(path.split('.').next().unwrap_or_default(), field)
}

fn check_name(name: &str, field: &str) -> Result<()> {
    if name == field {
        return refuse(format!("the change touches the field {field:?}, which is that of the lock: leave it out"));
    }
    if name == ID {
        return refuse("the change touches `_id`, which never changes: leave it out");
    }
    Ok(())
}

fn refuse<T>(message: impl Into<String>) -> Result<T> {
    Err(LockError::invalid_options(message))
}

/// Adds an edit, to the last stage if both set plain fields.
fn append(stages: &mut Vec<Document>, path: &[String], edit: &Edit) {
    if let ([name], Edit::Set(value)) = (path, edit)
        && !name.contains('.')
        && !name.starts_with('$')
    {
        let value = literal(value.clone());
        match stages.last_mut().and_then(|stage| stage.get_document_mut("$set").ok()) {
            Some(fields) => _ = fields.insert(name, value),
            None => stages.push(doc! { "$set": { name: value } }),
        }
        return;
    }
    let edited = match edit {
        Edit::Set(value) => set_in("$$ROOT", path, &literal(value.clone()), 0),
        Edit::Unset => unset_in("$$ROOT", path, 0),
    };
    stages.push(doc! { "$replaceWith": edited });
}

/// The document of an expression, with a field set. Missing sub-documents on the path are made. Any
/// other value on the path is an error: it would be overwritten, or, in an array, each element
/// would get the field.
fn set_in(input: &str, path: &[String], value: &Bson, depth: usize) -> Bson {
    let [name, rest @ ..] = path else { return value.clone() };
    if rest.is_empty() {
        return doc! { "$setField": { "field": literal(name), "input": input, "value": value.clone() } }.into();
    }
    let (found, inner) = (format!("found{depth}"), format!("inner{depth}"));
    let kind = doc! { "$type": format!("$${found}") };
    let sub_document = doc! { "$switch": {
        "branches": [
            { "case": { "$eq": [&kind, "object"] }, "then": format!("$${found}") },
            { "case": { "$eq": [&kind, "missing"] }, "then": literal(doc! {}) },
        ],
        "default": { "$toLong": { "$concat": [NO_SUB_DOCUMENT, &kind] } },
    } };
    let new = doc! { "$let": {
        "vars": { &found: { "$getField": { "field": literal(name), "input": input } } },
        "in": { "$let": {
            "vars": { &inner: sub_document },
            "in": set_in(&format!("$${inner}"), rest, value, depth + 1),
        } },
    } };
    doc! { "$setField": { "field": literal(name), "input": input, "value": new } }.into()
}

/// The document of an expression, without a field.
fn unset_in(input: &str, path: &[String], depth: usize) -> Bson {
    let [name, rest @ ..] = path else { return input.into() };
    if rest.is_empty() {
        return without_field(name, input);
    }
    let found = format!("found{depth}");
    let here = format!("$${found}");
    let without =
        doc! { "$setField": { "field": literal(name), "input": input, "value": unset_in(&here, rest, depth + 1) } };
    doc! { "$let": {
        "vars": { found: { "$getField": { "field": literal(name), "input": input } } },
        "in": { "$cond": [{ "$eq": [{ "$type": here }, "object"] }, without, input] },
    } }
    .into()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use distlock_api::ErrorKind;

    use super::*;
    use crate::ids::IntegerIds;

    fn change(form: Form) -> Result<Vec<Document>> {
        Layout::within("lock", Arc::new(IntegerIds)).change(&form, &LockKey::new("7").unwrap())
    }

    fn stages(stages: Vec<Document>) -> Result<Vec<Document>> {
        change(Form::Stages(stages))
    }

    fn is_refused(result: Result<Vec<Document>>) -> bool {
        result.is_err_and(|error| error.kind() == ErrorKind::InvalidOptions)
    }

    #[test]
    fn plain_fields_are_set_together() {
        let set = |name: &str, value: i32| (vec![name.to_owned()], Edit::Set(value.into()));
        let stages = change(Form::Fields(vec![set("a", 1), set("b", 2), set("$c", 3), set("d", 4)])).unwrap();
        assert_eq!(stages.len(), 3);
        assert_eq!(stages[0], doc! { "$set": { "a": { "$literal": 1 }, "b": { "$literal": 2 } } });
    }

    #[test]
    fn the_lease_and_the_identity_are_out_of_reach() {
        for path in [&["lock"][..], &["_id"], &["lock", "lockId"], &["_id", "a"]] {
            let path: Vec<String> = path.iter().map(ToString::to_string).collect();
            assert!(is_refused(change(Form::Fields(vec![(path.clone(), Edit::Set(1.into()))]))), "{path:?}");
            assert!(is_refused(change(Form::Fields(vec![(path, Edit::Unset)]))));
        }
        assert!(is_refused(change(Form::Whole(doc! { "lock": 1 }))));
        assert!(is_refused(change(Form::Whole(doc! { "_id": 8 }))));
        assert!(is_refused(change(Form::Whole(doc! { "_id": "7" }))));
        assert!(change(Form::Whole(doc! { "_id": 7, "locks": 1 })).is_ok());
        for stage in [
            doc! { "$set": { "lock": 1 } },
            doc! { "$set": { "lock.lockId": 1 } },
            doc! { "$addFields": { "_id": 1 } },
            doc! { "$unset": "lock" },
            doc! { "$unset": ["a", "lock.expiresAt"] },
            doc! { "$project": { "lock": 0 } },
            doc! { "$project": { "_id": 0 } },
            doc! { "$project": { "a": 1, "lock.lockId": 1 } },
            doc! { "$match": {} },
            doc! { "$set": { "a": 1 }, "$unset": "b" },
            doc! {},
        ] {
            assert!(is_refused(stages(vec![stage.clone()])), "{stage}");
        }
    }

    #[test]
    fn a_projection_that_names_the_fields_to_keep_keeps_the_lease() {
        let project = |fields: Document| stages(vec![doc! { "$project": fields }]).unwrap().remove(0);
        for named in
            [doc! { "a": 1 }, doc! { "a": "$b" }, doc! { "a": { "b": true } }, doc! { "a": { "$add": [1, 2] } }]
        {
            assert!(project(named).get_document("$project").unwrap().contains_key("lock"));
        }
        for left_out in [doc! { "a": 0 }, doc! { "a": { "b": false } }] {
            assert!(!project(left_out).get_document("$project").unwrap().contains_key("lock"));
        }
    }
}
