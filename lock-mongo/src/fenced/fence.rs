//! A fence: its condition and its stamp, as documents, and what is refused.

use distlock_api::{ErrorKind, FencingToken, LockError, LockGuard, Result};
use mongodb::bson::{Bson, Document, doc};
use mongodb::options::UpdateModifications;

/// The fencing token of a guard, as a condition and a stamp on documents of the application's own
/// collections.
///
/// A lease cannot stop a holder that was paused beyond it; the documents that it writes to can.
/// Each write goes only to a document whose field `_fence` is missing or not greater than the
/// token, and sets the field to the token, in one atomic step at the server. As soon as a later
/// holder has written, every earlier one hears [`Fenced::FencedOff`](super::Fenced::FencedOff), and
/// the document is untouched.
///
/// ```no_run
/// use distlock_api::{LockError, LockProvider, LockProviderExt};
/// use distlock_mongo::mongodb::Collection;
/// use distlock_mongo::mongodb::bson::{Document, doc};
/// use distlock_mongo::{Fence, Fenced};
///
/// async fn pay(locks: &dyn LockProvider, invoices: &Collection<Document>) -> Result<(), LockError> {
///     let guard = locks.acquire("invoices/7").await?;
///     // … the work, however long the process is paused in it …
///     let paid = Fence::of(&guard)?.update_one(invoices, doc! { "_id": 7 }, doc! { "$set": { "paid": true } }).await?;
///     match paid {
///         Fenced::Accepted(()) => {}
///         Fenced::FencedOff { newest } => println!("token {newest} has been here: the lock was lost"),
///         Fenced::NoDocument => println!("there is no such invoice"),
///     }
///     guard.release().await?;
///     Ok(())
/// }
/// ```
///
/// # What it rests on
/// * **One lock for a document.** Tokens of different keys must not be compared, so all who write
///   to a document hold the same key.
/// * **Every writer does it.** A plain update that leaves the field alone is not stopped; one that
///   removes or lowers it opens the door again.
/// * **Nothing is fenced before the first write.** A later holder that has only read so far does
///   not stop an earlier one. Let it begin with a write – [`claim`](Self::claim) – if it decides by
///   what it reads.
/// * **Majority writes.** Whatever the collection's own write concern is, since a stamp that is
///   rolled back stops nobody.
///
/// # Updates
/// * **Operators** (`{ "$set": … }`): values are data; a string that begins with `$` is stored as
///   that string.
/// * **Pipelines**, for experts: there a string that begins with `$` is an expression. Put what
///   comes from elsewhere into `{ "$literal": … }`. The stamp is the last stage.
/// * Replacement documents, and updates that touch the fence's field themselves, are refused before
///   anything is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct Fence {
    pub(super) field: String,
    pub(super) token: i64,
}

impl Fence {
    /// The field when nobody says: `_fence`.
    pub const DEFAULT_FIELD: &str = "_fence";

    /// The fence of a guard's token. Whether the guard is lost plays no part: that is what the
    /// fence is for.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn of(guard: &LockGuard) -> Result<Self> {
        Self::new(guard.fencing_token()).map_err(|error| error.with_key(guard.key().clone()))
    }

    /// The fence of a token.
    ///
    /// # Errors
    /// [`InvalidOptions`](ErrorKind::InvalidOptions) for a token above `i64::MAX`, which BSON
    /// cannot hold. No backend of this project makes one.
    pub fn new(token: FencingToken) -> Result<Self> {
        match i64::try_from(token.get()) {
            Ok(token) => Ok(Self { field: Self::DEFAULT_FIELD.to_owned(), token }),
            Err(_) => refuse(format!("token {token} does not fit into a number of MongoDB")),
        }
    }

    /// Keeps the token in another field, at the top of the document. Defaults to
    /// [`DEFAULT_FIELD`](Self::DEFAULT_FIELD).
    ///
    /// # Errors
    /// [`InvalidOptions`](ErrorKind::InvalidOptions) for a name that is empty, begins with `$`,
    /// contains `.` or NUL, or is `_id`.
    pub fn field(mut self, name: impl Into<String>) -> Result<Self> {
        let name = name.into();
        if name.is_empty() || name.starts_with('$') || name.contains(['.', '\0']) || name == "_id" {
            return refuse(format!("{name:?} cannot be the field of a fence"));
        }
        self.field = name;
        Ok(self)
    }

    /// The given filter, and that no later holder has been there: for operations of the driver's
    /// own. What it does not find is either missing or fenced off; [`update_one`](Self::update_one)
    /// tells which.
    #[must_use]
    pub fn filter(&self, filter: Document) -> Document {
        let field = &self.field;
        // An array would be compared element by element.
        let number = doc! { field: { "$lte": self.token, "$not": { "$type": "array" } } };
        let nothing = doc! { field: { "$eq": null, "$not": { "$type": "array" } } };
        let open = doc! { "$or": [number, nothing] };
        doc! { "$and": [filter, open] }
    }

    /// The given update, and the stamp: for operations of the driver's own, which must also have
    /// the [filter](Self::filter).
    ///
    /// # Errors
    /// [`InvalidOptions`](ErrorKind::InvalidOptions) for a replacement document, and for an update
    /// that touches the fence's field.
    pub fn stamped(&self, update: impl Into<UpdateModifications>) -> Result<UpdateModifications> {
        match update.into() {
            UpdateModifications::Document(operators) => Ok(self.stamped_operators(operators)?.into()),
            UpdateModifications::Pipeline(mut stages) => {
                for stage in &stages {
                    self.check_stage(stage)?;
                }
                stages.push(doc! { "$set": { &self.field: { "$literal": self.token } } });
                Ok(stages.into())
            }
            _ => refuse("a kind of update that is not known here".into()),
        }
    }

    fn stamped_operators(&self, mut operators: Document) -> Result<Document> {
        for (operator, changes) in &operators {
            if !operator.starts_with('$') {
                return refuse("a replacement document would remove the fence: use `$set`, or a pipeline".into());
            }
            let Bson::Document(changes) = changes else {
                return refuse(format!("{operator} needs a document"));
            };
            for (path, value) in changes {
                let target = (operator == "$rename").then(|| value.as_str()).flatten();
                if self.is_touched_by(path) || target.is_some_and(|target| self.is_touched_by(target)) {
                    return self.touched();
                }
            }
        }
        let set = operators.entry("$set".to_owned()).or_insert_with(|| Bson::Document(doc! {}));
        if let Bson::Document(set) = set {
            set.insert(&self.field, self.token);
        }
        Ok(operators)
    }

    /// What a stage sets or removes by name. A stage that replaces the document as a whole cannot
    /// be looked into; the stamp comes after it.
    fn check_stage(&self, stage: &Document) -> Result<()> {
        for (name, argument) in stage {
            let touched = match (name.as_str(), argument) {
                ("$set" | "$addFields" | "$project", Bson::Document(fields)) => {
                    fields.keys().any(|path| self.is_touched_by(path))
                }
                ("$unset", Bson::String(path)) => self.is_touched_by(path),
                ("$unset", Bson::Array(paths)) => {
                    paths.iter().filter_map(Bson::as_str).any(|path| self.is_touched_by(path))
                }
                _ => false,
            };
            if touched {
                return self.touched();
            }
        }
        Ok(())
    }

    fn is_touched_by(&self, path: &str) -> bool {
        path.split('.').next() == Some(&self.field)
    }

    fn touched<T>(&self) -> Result<T> {
        refuse(format!("the update itself touches {:?}, the field of the fence", self.field))
    }
}

/// A fence, as a writer finds it.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Seen {
    /// A later holder has been here.
    Newer(FencingToken),
    /// Nobody, or an earlier one, or this one.
    Open,
}

/// What a field of a document means to a writer with this token.
pub(super) fn seen(field: Option<&Bson>, token: i64) -> Result<Seen> {
    let found = match field {
        None | Some(Bson::Null) => return Ok(Seen::Open),
        Some(Bson::Int64(found)) => Some(*found),
        Some(Bson::Int32(found)) => Some(i64::from(*found)),
        // A shell writes whole numbers as doubles.
        #[expect(clippy::cast_possible_truncation, reason = "whole, and in the range of the type")]
        Some(Bson::Double(found)) if found.fract() == 0.0 && found.abs() < 9.0e18 => Some(*found as i64),
        Some(_) => None,
    };
    match found.and_then(|found| Some((found, u64::try_from(found.max(0)).ok()?))) {
        Some((found, newest)) if found > token => Ok(Seen::Newer(FencingToken::new(newest))),
        Some(_) => Ok(Seen::Open),
        None => Err(LockError::new(ErrorKind::Corrupt, "the fence in the document is something else than a token")
            .with_disposition(distlock_api::Disposition::Permanent)),
    }
}

fn refuse<T>(message: String) -> Result<T> {
    Err(LockError::invalid_options(message))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fence() -> Fence {
        Fence::new(FencingToken::new(7)).unwrap()
    }

    fn refused(update: impl Into<UpdateModifications>) -> bool {
        match fence().stamped(update) {
            Ok(_) => false,
            Err(error) => error.kind() == ErrorKind::InvalidOptions,
        }
    }

    #[test]
    fn an_update_that_touches_the_fence_is_refused() {
        assert!(refused(doc! { "paid": true }));
        assert!(refused(doc! { "$set": { "_fence": 1 } }));
        assert!(refused(doc! { "$max": { "_fence": 1_i64 } }));
        assert!(refused(doc! { "$unset": { "_fence.a": "" } }));
        assert!(refused(doc! { "$rename": { "a": "_fence" } }));
        assert!(refused(doc! { "$rename": { "_fence": "a" } }));
        assert!(refused(doc! { "$set": "oops" }));
        assert!(refused(vec![doc! { "$unset": "_fence" }]));
        assert!(refused(vec![doc! { "$unset": ["a", "_fence"] }]));
        assert!(refused(vec![doc! { "$project": { "_fence": 0 } }]));
        assert!(!refused(doc! { "$set": { "_fences": 1, "a._fence": 2 } }));
        assert!(!refused(vec![doc! { "$set": { "a": "$_fence" } }]));
    }

    #[test]
    fn the_stamp_is_added_to_what_is_there() {
        let Ok(UpdateModifications::Document(update)) = fence().stamped(doc! { "$inc": { "n": 1 } }) else { panic!() };
        assert_eq!(update, doc! { "$inc": { "n": 1 }, "$set": { "_fence": 7_i64 } });
        let Ok(UpdateModifications::Document(update)) = fence().stamped(doc! { "$set": { "a": "$b" } }) else {
            panic!()
        };
        assert_eq!(update, doc! { "$set": { "a": "$b", "_fence": 7_i64 } });
        let Ok(UpdateModifications::Pipeline(stages)) = fence().stamped(vec![doc! { "$set": { "a": 1 } }]) else {
            panic!()
        };
        assert_eq!(stages[1], doc! { "$set": { "_fence": { "$literal": 7_i64 } } });
    }

    #[test]
    fn tokens_and_names_that_bson_cannot_hold_are_refused() {
        assert!(Fence::new(FencingToken::new(i64::MAX as u64)).is_ok());
        assert!(Fence::new(FencingToken::new(1 << 63)).is_err());
        for name in ["", "$fence", "a.b", "a\0", "_id"] {
            assert_eq!(fence().field(name).unwrap_err().kind(), ErrorKind::InvalidOptions, "{name:?}");
        }
        assert!(fence().field("lock token").is_ok());
    }

    #[test]
    fn a_fence_is_read_as_what_it_is() {
        let newer = Seen::Newer(FencingToken::new(8));
        for value in [Bson::Int64(8), Bson::Int32(8), Bson::Double(8.0)] {
            assert_eq!(seen(Some(&value), 7).unwrap(), newer);
            assert_eq!(seen(Some(&value), 8).unwrap(), Seen::Open);
        }
        assert_eq!(seen(None, 7).unwrap(), Seen::Open);
        assert_eq!(seen(Some(&Bson::Int64(-1)), 7).unwrap(), Seen::Open);
        for value in [Bson::String("8".into()), Bson::Array(vec![]), Bson::Double(f64::NAN), Bson::Boolean(true)] {
            assert_eq!(seen(Some(&value), 7).unwrap_err().kind(), ErrorKind::Corrupt);
        }
    }
}
