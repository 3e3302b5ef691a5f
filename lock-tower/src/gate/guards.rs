//! The guards of one request, and the grants that they stand for.

use std::slice;

use distlock_api::{AllGuard, FencingToken, LockGuard, LockKey, Loss, LostSignal};

/// One guard or several.
#[derive(Debug)]
pub(super) enum Guards {
    One(LockGuard),
    All(AllGuard),
}

impl Guards {
    fn as_slice(&self) -> &[LockGuard] {
        match self {
            Self::One(guard) => slice::from_ref(guard),
            Self::All(all) => all.guards(),
        }
    }

    /// Releases them, in the background where that takes time.
    pub(super) fn release(self) {
        match self {
            // So the provider can use its memory for the next guard.
            Self::One(guard) => drop(guard.release()),
            Self::All(all) => drop(all),
        }
    }

    pub(super) fn loss(&self) -> Option<Loss> {
        self.as_slice().iter().find_map(LockGuard::loss)
    }

    pub(super) fn lost(&self) -> LostSignal {
        match self {
            Self::One(guard) => guard.lost(),
            Self::All(all) => all.lost(),
        }
    }
}

/// The keys and fencing tokens of a grant. Unlike the guards they outlive the hold.
#[derive(Clone, Debug)]
pub(super) enum Grants {
    One((LockKey, FencingToken)),
    Several(Vec<(LockKey, FencingToken)>),
}

impl Grants {
    pub(super) fn as_slice(&self) -> &[(LockKey, FencingToken)] {
        match self {
            Self::One(grant) => slice::from_ref(grant),
            Self::Several(grants) => grants,
        }
    }

    pub(super) fn of(guards: &Guards) -> Self {
        let grant = |guard: &LockGuard| (guard.key().clone(), guard.fencing_token());
        match guards {
            Guards::One(guard) => Self::One(grant(guard)),
            Guards::All(all) => Self::Several(all.guards().iter().map(grant).collect()),
        }
    }
}
