//! A fence: its condition and its stamp, as documents, and the updates that it refuses.

use distlock_api::{ErrorKind, FencingToken, HasFencingToken, LockError, Result};
use mongodb::bson::{Bson, Document, doc};
use mongodb::options::UpdateModifications;

use crate::lease::absent;

/// The fencing token of a guard, as a condition and a stamp on documents of the application's own
/// collections.
///
/// A lease cannot stop a holder that was paused beyond it, but the documents that it writes to can.
/// A fenced write applies only to a document whose field `_fence` is missing or not greater than
/// the token. It sets the field to the token, in one atomic step at the server. As soon as a later
/// holder has written, each earlier one gets [`Fenced::FencedOff`](super::Fenced::FencedOff), and
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
///     // … the work, in which the process may be paused for any time …
///     let (invoice, paid) = (doc! { "_id": 7 }, doc! { "$set": { "paid": true } });
///     match Fence::of(&guard)?.update_one(invoices, invoice, paid).await? {
///         Fenced::Accepted(()) => {}
///         Fenced::FencedOff { newest } => println!("the lock was lost to token {newest}"),
///         Fenced::NoDocument => println!("there is no such invoice"),
///     }
///     guard.release().await?;
///     Ok(())
/// }
/// ```
///
/// # Conditions
/// * **One lock per document.** Tokens of different keys must not be compared, so all writers of a
///   document must hold the same key.
/// * **All writers use a fence.** A plain update that does not touch the field is not stopped. One
///   that removes or lowers the field lets late holders write again.
/// * **A fence begins with the first write.** A later holder that has only read does not stop an
///   earlier one. If it decides by what it reads, let it begin with [`claim`](Self::claim).
/// * **Documents that stay.** The stamp is lost with its document, and an insertion then begins
///   again. An insertion into a capped collection, or another one that
///   [loses documents](crate#what-it-needs), is refused.
/// * **Majority writes**, regardless of the write concern of the collection: a stamp that is rolled
///   back would stop no late holder.
///
/// # Updates
/// * **Operators** (`{ "$set": … }`): values are data; a string that begins with `$` is stored as
///   that string.
/// * **Pipelines**, for experts: a string that begins with `$` is an expression. Put external data
///   into `{ "$literal": … }`. The stamp is the last stage.
/// * Replacement documents, and updates that touch the field of the fence, are refused before
///   anything is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct Fence {
    pub(super) field: String,
    pub(super) token: i64,
}

impl Fence {
    /// The default field: `_fence`.
    pub const DEFAULT_FIELD: &str = "_fence";

    /// Makes the fence of a guard's token: of a [`LockGuard`](distlock_api::LockGuard), one of the
    /// [guards of several locks](distlock_api::AllGuard::guards), or a
    /// [`DocumentGuard`](crate::DocumentGuard). It is made even if the guard is lost, because it is
    /// for late holders.
    ///
    /// ```no_run
    /// use distlock_api::{LockError, LockProvider, LockProviderExt};
    /// use distlock_mongo::mongodb::{Collection, bson::{Document, doc}};
    /// use distlock_mongo::Fence;
    ///
    /// async fn book(locks: &dyn LockProvider, accounts: &Collection<Document>) -> Result<(), LockError> {
    ///     let both = locks.acquire_all([("accounts", 1), ("accounts", 2)]).await?;
    ///     for (id, guard) in (1..).zip(both.guards()) {
    ///         let booked = doc! { "$set": { "booked": true } };
    ///         let _ = Fence::of(guard)?.update_one(accounts, doc! { "_id": id }, booked).await?;
    ///     }
    ///     both.release().await?;
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn of(guard: &(impl HasFencingToken + ?Sized)) -> Result<Self> {
        Self::new(guard.fencing_token()).map_err(|error| error.with_key(guard.key().clone()))
    }

    /// Makes the fence of a token.
    ///
    /// # Errors
    /// [`InvalidOptions`](ErrorKind::InvalidOptions) for a token above `i64::MAX`, which BSON
    /// cannot represent. No backend of this project makes one.
    pub fn new(token: FencingToken) -> Result<Self> {
        match i64::try_from(token.get()) {
            Ok(token) => Ok(Self { field: Self::DEFAULT_FIELD.to_owned(), token }),
            Err(_) => refuse(format!("the token {token} is too large for MongoDB: the largest is {}", i64::MAX)),
        }
    }

    /// Sets the field of the token, at the top of the document. Defaults to
    /// [`DEFAULT_FIELD`](Self::DEFAULT_FIELD).
    ///
    /// # Errors
    /// [`InvalidOptions`](ErrorKind::InvalidOptions) for a name that is empty, begins with `$`,
    /// contains `.` or NUL, or is `_id`.
    pub fn field(mut self, name: impl Into<String>) -> Result<Self> {
        let name = name.into();
        if name.is_empty() || name.starts_with('$') || name.contains(['.', '\0']) || name == "_id" {
            return refuse(format!(
                "{name:?} cannot be the field of a fence: a name is not empty and not `_id`, does not begin with $, and \
                 has neither . nor NUL"
            ));
        }
        self.field = name;
        Ok(self)
    }

    /// Adds the condition that no later holder has written to a filter, for operations of the
    /// driver. A document that it does not match is missing or fenced off;
    /// [`update_one`](Self::update_one) distinguishes the two.
    #[must_use]
    pub fn filter(&self, filter: Document) -> Document {
        let field = &self.field;
        // MongoDB would compare the elements of an array.
        let number = doc! { field: { "$lte": self.token, "$not": { "$type": "array" } } };
        let nothing = doc! { field: absent() };
        let open = doc! { "$or": [number, nothing] };
        doc! { "$and": [filter, open] }
    }

    /// Adds the stamp to an update, for operations of the driver, which also need the
    /// [filter](Self::filter).
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
            _ => refuse("this kind of update is not supported: use operators or a pipeline".into()),
        }
    }

    fn stamped_operators(&self, mut operators: Document) -> Result<Document> {
        for (operator, changes) in &operators {
            if !operator.starts_with('$') {
                return refuse("a replacement document would remove the fence: use `$set`, or a pipeline".into());
            }
            let Bson::Document(changes) = changes else {
                return refuse(format!("the argument of {operator} must be a document"));
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

    /// Refuses a stage that sets or removes the field by name. A stage that replaces the whole
    /// document is allowed: the stamp comes after it.
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
        refuse(format!("the update touches {:?}, the field of the fence: leave it out", self.field))
    }
}

/// The state of a document's fence, for one writer.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum FenceState {
    /// A later holder has written.
    Newer(FencingToken),
    /// No holder has written, or only earlier ones and this one.
    Open,
}

/// Reads the fence of a document, for a writer with this token.
pub(super) fn read(field: Option<&Bson>, token: i64) -> Result<FenceState> {
    let found = match field {
        None | Some(Bson::Null) => return Ok(FenceState::Open),
        Some(Bson::Int64(found)) => Some(*found),
        Some(Bson::Int32(found)) => Some(i64::from(*found)),
        // A shell writes whole numbers as doubles.
        #[expect(clippy::cast_possible_truncation, reason = "whole, and in the range of the type")]
        Some(Bson::Double(found)) if found.fract() == 0.0 && found.abs() < 9.0e18 => Some(*found as i64),
        Some(_) => None,
    };
    match found.and_then(|found| Some((found, u64::try_from(found.max(0)).ok()?))) {
        Some((found, newest)) if found > token => Ok(FenceState::Newer(FencingToken::new(newest))),
        Some(_) => Ok(FenceState::Open),
        None => {
            let message = "the field of the fence contains no token: another program uses it. Name another field \
                           (`Fence::field`)";
            Err(LockError::new(ErrorKind::Corrupt, message).with_disposition(distlock_api::Disposition::Permanent))
        }
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
    fn the_stamp_is_added_to_the_update() {
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
    fn a_fence_can_have_any_numeric_type() {
        let newer = FenceState::Newer(FencingToken::new(8));
        for value in [Bson::Int64(8), Bson::Int32(8), Bson::Double(8.0)] {
            assert_eq!(read(Some(&value), 7).unwrap(), newer);
            assert_eq!(read(Some(&value), 8).unwrap(), FenceState::Open);
        }
        assert_eq!(read(None, 7).unwrap(), FenceState::Open);
        assert_eq!(read(Some(&Bson::Int64(-1)), 7).unwrap(), FenceState::Open);
        for value in [Bson::String("8".into()), Bson::Array(vec![]), Bson::Double(f64::NAN), Bson::Boolean(true)] {
            assert_eq!(read(Some(&value), 7).unwrap_err().kind(), ErrorKind::Corrupt);
        }
    }
}
