//! What is wrong with a history, in words.

use std::fmt;

use super::call::{Call, End, What};

/// What is wrong with a history.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Violation {
    /// Two held the same key at the same time.
    Overlap(Box<[Call; 2]>),
    /// A later grant has a smaller token.
    TokenWentBack(Box<[Call; 2]>),
    /// Two grants of a key have the same token.
    SameToken(Box<[Call; 2]>),
    /// The resource accepted a write under a smaller token after one under a greater.
    RegisterWentBack(Box<[Call; 2]>),
    /// An attempt was told that the lock is busy while nobody may have held it.
    BusyForNobody(Box<Call>),
    /// A waiter was overtaken by one that came after it.
    Overtaken(Box<[Call; 2]>),
    /// All was over, and yet the store had something left.
    LeftBehind(Box<Call>),
    /// A lock cannot have answered so, in whatever order the calls took effect.
    NotLinearizable {
        /// The call that fits nowhere, in the longest order that was found, and the holder at that point.
        stuck: Vec<Call>,
        /// How many answers the order explains.
        explained: usize,
        /// How many there are.
        of: usize,
    },
    /// The linearizability checker gave up.
    Undecided {
        /// The lock.
        key: String,
        /// After so many steps.
        steps: usize,
    },
    /// More calls than were recorded.
    Truncated {
        /// How many were.
        recorded: usize,
    },
    /// The history proves nothing: it has fewer grants than it must have.
    TooFewGrants {
        /// How many there are.
        seen: usize,
        /// How many there must be at the least.
        expected: usize,
    },
    /// The history proves nothing: too few calls met another holder.
    TooLittleContention {
        /// How many did.
        seen: usize,
        /// How many must at the least.
        expected: usize,
    },
}

impl Violation {
    /// The calls that show it.
    #[must_use]
    pub fn calls(&self) -> &[Call] {
        match self {
            Self::Overlap(pair)
            | Self::TokenWentBack(pair)
            | Self::SameToken(pair)
            | Self::RegisterWentBack(pair)
            | Self::Overtaken(pair) => &**pair,
            Self::BusyForNobody(call) | Self::LeftBehind(call) => std::slice::from_ref(call),
            Self::NotLinearizable { stuck, .. } => stuck,
            _ => &[],
        }
    }
}

impl fmt::Display for Violation {
    /// One line; the calls that show it are not part of it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Overlap(_) => f.write_str("two clients held one key at the same time"),
            Self::TokenWentBack(_) => f.write_str("a later grant has a smaller token"),
            Self::SameToken(_) => f.write_str("two grants have the same token"),
            Self::RegisterWentBack(_) => {
                f.write_str("the resource accepted a write under a smaller token after one under a greater")
            }
            Self::BusyForNobody(_) => f.write_str("an attempt was told \"busy\" while nobody may have held the lock"),
            Self::Overtaken(_) => f.write_str("a waiter was overtaken by one that came after it"),
            Self::LeftBehind(_) => f.write_str("all was over, and yet the store had something left"),
            Self::NotLinearizable { explained, of, .. } => {
                write!(f, "no order of the calls explains their answers: the best one explains {explained} of {of}")
            }
            Self::Undecided { key, steps } => {
                write!(f, "could not decide within {steps} steps whether the history of {key:?} is linearizable")
            }
            Self::Truncated { recorded } => {
                write!(f, "could not decide: the history has more than the {recorded} calls that were recorded")
            }
            Self::TooFewGrants { seen, expected } => write!(f, "only {seen} grants instead of {expected}"),
            Self::TooLittleContention { seen, expected } => {
                write!(f, "only {seen} calls met another holder, instead of {expected}")
            }
        }
    }
}

impl fmt::Display for Call {
    /// Who held what when, in one line: `client 2, "key": asked at 1.2 ms, granted token 7 at 3.4 ms, held until 9 ms, released by 9.6 ms`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "client {}, {:?}: asked at {:?}", self.client, self.key, self.asked)?;
        let answered = match self.answered {
            Some(at) => format!("at {at:?}"),
            None => "and the history ended".to_owned(),
        };
        match &self.what {
            What::Granted { token, until, end } => {
                write!(f, ", granted token {token} {answered}, held until {until:?}, ")?;
                match end {
                    End::Open => f.write_str("not ended"),
                    End::Released { answered, .. } => write!(f, "released by {answered:?}"),
                    End::Unknown => f.write_str("given back at an unknown time"),
                    End::Lost => f.write_str("lost"),
                }
            }
            What::Busy => write!(f, ", busy {answered}"),
            What::NotGranted => write!(f, ", not granted {answered}"),
            What::Wrote { token } => write!(f, ", written under token {token} {answered}"),
            What::Sent { request, answer: Some(answer) } => write!(f, ", {request}: {answer} {answered}"),
            What::Sent { request, answer: None } => write!(f, ", {request}: no answer"),
            What::Left { held, waiting } => write!(f, ", held: {held}, waiting: {waiting} {answered}"),
        }
    }
}
