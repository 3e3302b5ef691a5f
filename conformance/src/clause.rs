//! The clauses of the contract that checks are named after.

use std::fmt;

/// A clause of the project's contract. Its text is in the project's `DESIGN.md`.
///
/// ```
/// assert_eq!(distlock_conformance::Clause::C5.to_string(), "C5_fencing");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the words are in `word`, the texts in DESIGN.md")]
pub enum Clause {
    C1,
    C2,
    C3,
    C4,
    C5,
    C6,
    C7,
    C8,
    C9,
    C10,
    C11,
    C12,
    C13,
    C14,
    C15,
    C16,
    C17,
    C18,
    C19,
    C20,
    C21,
    C22,
    C23,
    C24,
    C25,
    /// Administration beyond C22: what it shows and takes away, as `LockAdmin` in `distlock-api` says.
    Admin,
}

impl Clause {
    /// What the clause is about, in a word or two.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::C1 => "exclusion",
            Self::C2 => "store_clock",
            Self::C3 => "deadline",
            Self::C4 => "loss",
            Self::C5 => "fencing",
            Self::C6 => "constant_token",
            Self::C7 => "owner",
            Self::C8 => "stale_calls",
            Self::C9 => "release",
            Self::C10 => "lost_replies",
            Self::C11 => "cancel_safety",
            Self::C12 => "no_renewal",
            Self::C13 => "transient_errors",
            Self::C14 => "isolation",
            Self::C15 => "fairness",
            Self::C16 => "wake_ups",
            Self::C17 => "no_herd",
            Self::C18 => "bounded_calls",
            Self::C19 => "crash",
            Self::C20 => "independent_keys",
            Self::C21 => "multi_key",
            Self::C22 => "force_release",
            Self::C23 => "accounting",
            Self::C24 => "shutdown",
            Self::C25 => "minimum_hold",
            Self::Admin => "admin",
        }
    }
}

impl fmt::Display for Clause {
    /// `C5_fencing`; a group without a clause is its word alone.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::Admin {
            return f.write_str(self.word());
        }
        write!(f, "{self:?}_{}", self.word())
    }
}
