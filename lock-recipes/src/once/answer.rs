//! The answer of a call, and how it follows from what is known of the key.

use super::{OnceGuard, OnceOptions, OnceRecord, OnceRun, OnceState, Outcome};

/// The answer of [`once`](super::OnceProviderExt::once).
#[derive(Debug)]
#[must_use]
#[non_exhaustive]
pub enum Once {
    /// The caller is to do the work, and to [complete](OnceGuard::complete) it.
    Begun(OnceGuard),
    /// Another caller works, and did not end within the wait. `None` if its beginning was not yet
    /// recorded.
    Busy(Option<OnceRun>),
    /// The work is done, and this is its outcome.
    Done(Outcome),
    /// An earlier run was interrupted, and [`at_most_once`](super::BeginOnce::at_most_once) forbids
    /// another one.
    Interrupted(OnceRun),
    /// The key belongs to a request with another fingerprint.
    Mismatch(OnceRecord),
}

impl Once {
    /// Returns the guard, if the work was begun.
    #[must_use]
    pub fn begun(self) -> Option<OnceGuard> {
        match self {
            Self::Begun(guard) => Some(guard),
            _ => None,
        }
    }

    /// Returns the outcome, if the work is done.
    #[must_use]
    pub fn done(self) -> Option<Outcome> {
        match self {
            Self::Done(outcome) => Some(outcome),
            _ => None,
        }
    }

    /// Whether another caller works.
    #[must_use]
    pub const fn is_busy(&self) -> bool {
        matches!(self, Self::Busy(_))
    }
}

impl OnceRecord {
    /// Whether the record belongs to another request: both have a fingerprint, and they differ.
    /// Work that was never begun belongs to none.
    #[must_use]
    pub fn is_mismatch(&self, options: &OnceOptions) -> bool {
        self.state != OnceState::New
            && matches!((&self.fingerprint, options.fingerprint()), (Some(known), Some(given)) if known != given)
    }

    /// Returns the answer of `once` to this record, or `None` if the work is to be begun. For
    /// backends: the decision is the same over each.
    ///
    /// Work that is under way is [`Once::Busy`]. A call that waits does so instead.
    #[must_use]
    pub fn answer(&self, options: &OnceOptions) -> Option<Once> {
        if self.is_mismatch(options) {
            return Some(Once::Mismatch(self.clone()));
        }
        match &self.state {
            OnceState::New => None,
            OnceState::UnderWay(run) => Some(Once::Busy(Some(run.clone()))),
            OnceState::Done(outcome) => Some(Once::Done(outcome.clone())),
            OnceState::Interrupted(run) => options.is_at_most_once().then(|| Once::Interrupted(run.clone())),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::SystemTime;

    use distlock_api::FencingToken;

    use super::*;
    use crate::once::Fingerprint;

    fn run() -> OnceRun {
        OnceRun::new(FencingToken::new(7), Some("web-1".into()), SystemTime::UNIX_EPOCH)
    }

    fn record(state: OnceState, fingerprint: Option<&str>) -> OnceRecord {
        OnceRecord::new(state, fingerprint.map(Fingerprint::new))
    }

    fn all() -> [OnceState; 4] {
        let outcome = Outcome::new(Arc::from(*b"ok"), run(), SystemTime::UNIX_EPOCH);
        [OnceState::New, OnceState::UnderWay(run()), OnceState::Done(outcome), OnceState::Interrupted(run())]
    }

    fn name(answer: Option<&Once>) -> &'static str {
        match answer {
            None => "begin",
            Some(Once::Busy(Some(_))) => "busy",
            Some(Once::Done(_)) => "done",
            Some(Once::Interrupted(_)) => "interrupted",
            Some(Once::Mismatch(_)) => "mismatch",
            Some(other) => panic!("no answer to a record: {other:?}"),
        }
    }

    #[test]
    fn each_state_has_its_answer() {
        let answers = |options: &OnceOptions| all().map(|state| name(record(state, None).answer(options).as_ref()));
        assert_eq!(answers(&OnceOptions::new()), ["begin", "busy", "done", "begin"]);
        assert_eq!(answers(&OnceOptions::new().at_most_once()), ["begin", "busy", "done", "interrupted"]);
    }

    #[test]
    fn another_fingerprint_is_a_mismatch_unless_nothing_was_begun() {
        let options = OnceOptions::new().with_fingerprint(Fingerprint::new("a"));
        let answers = |print| all().map(|state| name(record(state, print).answer(&options).as_ref()));
        assert_eq!(answers(Some("b")), ["begin", "mismatch", "mismatch", "mismatch"]);
        assert_eq!(answers(Some("a")), ["begin", "busy", "done", "begin"]);
        assert_eq!(answers(None), ["begin", "busy", "done", "begin"]);
        let without = OnceOptions::new();
        assert_eq!(name(record(all()[1].clone(), Some("b")).answer(&without).as_ref()), "busy");
    }
}
