//! Why a hold ends early.

use distlock_api::Loss;

use crate::refusal::Reason;

/// Why a hold ended before its request was served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    Lost(Loss),
    TooLong,
}

impl Ending {
    pub(crate) fn reason(self) -> Reason {
        match self {
            Self::Lost(_) => Reason::Lost,
            Self::TooLong => Reason::HeldTooLong,
        }
    }
}
