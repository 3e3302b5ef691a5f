//! Switches for the simulator of the engine, per thread: ids that come from its seed, and defects.
//!
//! Without the feature `simulation` all of this is constant.

/// A deliberate defect, to test that the simulator finds it. Each breaks one rule: a clause of the
/// contract, or a rule of distlock-mongo's PROTOCOL.
#[cfg(feature = "simulation")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Defect {
    /// R1: deadlines count from the reply instead of from before the request.
    DeadlineFromReply,
    /// R4: deadlines without the margin.
    NoMargin,
    /// R10: a grant is returned although its deadline has passed.
    LateGrantReturned,
    /// C4: the deadline is ignored: a lease is lost only when the store reports it.
    NoDeadline,
    /// C4: an answer to a renewal revives a lost lease.
    Revived,
    /// R11: an id that was given up is used again while its withdrawal is under way.
    IdReused,
    /// R11: an attempt whose caller has left is not withdrawn.
    NotWithdrawn,
    /// R18: the deadline of a pushed grant counts from its arrival.
    PushFromArrival,
    /// R21: the next guard gets the same token.
    SameToken,
    /// R21: a lease is handed on although its release has been sent.
    HandedOnAfterRelease,
    /// R21: a lease that does not meet the next caller's requirements is not released before that
    /// caller makes its attempt.
    NotReleasedBeforeHandOn,
    /// R21: a lease is handed on regardless of the next caller's terms and owner.
    TermsIgnored,
    /// C11: a turn that is dropped is lost.
    TurnLost,
    /// C26: a shared lease is released with the first of its guards instead of the last.
    ReleasedWithFirst,
    /// C9: a commit of unknown outcome counts as not made.
    UnknownCommitNotMade,
}

#[cfg(feature = "simulation")]
impl Defect {
    /// All defects.
    pub const ALL: [Self; 15] = [
        Self::DeadlineFromReply,
        Self::NoMargin,
        Self::LateGrantReturned,
        Self::NoDeadline,
        Self::Revived,
        Self::IdReused,
        Self::NotWithdrawn,
        Self::PushFromArrival,
        Self::SameToken,
        Self::HandedOnAfterRelease,
        Self::NotReleasedBeforeHandOn,
        Self::TermsIgnored,
        Self::TurnLost,
        Self::ReleasedWithFirst,
        Self::UnknownCommitNotMade,
    ];
}

#[cfg(feature = "simulation")]
mod thread {
    use std::cell::Cell;

    use super::Defect;

    thread_local! {
        static ON: Cell<bool> = const { Cell::new(false) };
        static DEFECT: Cell<Option<Defect>> = const { Cell::new(None) };
    }

    /// Gives the engines of this thread a defect from now on. They take their random parts, ids
    /// included, from [`fastrand`], which the caller has seeded.
    pub fn simulate(defect: Option<Defect>) {
        ON.set(true);
        DEFECT.set(defect);
    }

    pub(crate) fn is_on() -> bool {
        ON.get()
    }

    pub(crate) fn has(defect: Defect) -> bool {
        DEFECT.get() == Some(defect)
    }
}

#[cfg(feature = "simulation")]
pub(crate) use thread::has;
#[cfg(feature = "simulation")]
pub use thread::simulate;

/// Returns whether the engine has one of these defects.
macro_rules! defect {
    ($($defect:ident)|+) => {{
        #[cfg(feature = "simulation")]
        let has = $($crate::simulation::has($crate::simulation::Defect::$defect))||+;
        #[cfg(not(feature = "simulation"))]
        let has = false;
        has
    }};
}

pub(crate) use defect;

/// Returns whether this thread simulates.
pub(crate) fn is_simulated() -> bool {
    #[cfg(feature = "simulation")]
    let on = thread::is_on();
    #[cfg(not(feature = "simulation"))]
    let on = false;
    on
}

/// Returns 128 random bits for an id.
pub(crate) fn random_bits() -> u128 {
    if is_simulated() {
        return fastrand::u128(..);
    }
    uuid::Uuid::new_v4().as_u128()
}
