//! The violations of a history, and their texts.

use std::fmt;

use super::call::{Call, CallKind, End};

/// A violation in a history.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Violation {
    /// Two clients held the same key at the same time, in modes that exclude each other.
    Overlap(Box<[Call; 2]>),
    /// More permits were held at the same time than the last of these calls allows.
    TooManyPermits {
        /// The calls that held them, in the order of their grants.
        held: Vec<Call>,
        /// How many permits they held.
        taken: u64,
    },
    /// A later grant has a smaller token.
    TokenWentBack(Box<[Call; 2]>),
    /// Two grants of a key have the same token.
    SameToken(Box<[Call; 2]>),
    /// The resource accepted a write under a smaller token after one under a greater.
    RegisterWentBack(Box<[Call; 2]>),
    /// An attempt was answered "busy" while no client may have held the lock.
    BusyWithoutHolder(Box<Call>),
    /// A later waiter overtook an earlier one.
    Overtaken(Box<[Call; 2]>),
    /// The store had a lease or ticket left at the end.
    LeftBehind(Box<Call>),
    /// No order of the calls explains the answers of the lock.
    NotLinearizable {
        /// The call that does not fit into the longest order that was found, and the holder at that
        /// point.
        stuck: Vec<Call>,
        /// How many answers that order explains.
        explained: usize,
        /// How many there are.
        of: usize,
    },
    /// The linearizability checker gave up.
    Undecided {
        /// The lock.
        key: String,
        /// The limit of steps.
        steps: usize,
    },
    /// The history has more calls than were recorded.
    Truncated {
        /// How many were recorded.
        recorded: usize,
    },
    /// The history proves nothing: it has fewer grants than it must have.
    TooFewGrants {
        /// How many there are.
        seen: usize,
        /// The minimum.
        expected: usize,
    },
    /// The history proves nothing: too few calls met another holder.
    TooLittleContention {
        /// How many there are.
        seen: usize,
        /// The minimum.
        expected: usize,
    },
}

impl Violation {
    /// Returns the calls that show the violation.
    #[must_use]
    pub fn calls(&self) -> &[Call] {
        match self {
            Self::Overlap(pair)
            | Self::TokenWentBack(pair)
            | Self::SameToken(pair)
            | Self::RegisterWentBack(pair)
            | Self::Overtaken(pair) => &**pair,
            Self::BusyWithoutHolder(call) | Self::LeftBehind(call) => std::slice::from_ref(call),
            Self::TooManyPermits { held: calls, .. } | Self::NotLinearizable { stuck: calls, .. } => calls,
            _ => &[],
        }
    }
}

impl fmt::Display for Violation {
    /// Writes one line, without the calls that show the violation.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Overlap(_) => f.write_str("two clients held one key at the same time"),
            Self::TooManyPermits { held, taken } => {
                let last =
                    held.last().map_or_else(String::new, |last| format!(", and the last was granted {}", last.mode));
                write!(f, "{taken} permits were held at the same time{last}")
            }
            Self::TokenWentBack(_) => f.write_str("a later grant has a smaller token"),
            Self::SameToken(_) => f.write_str("two grants have the same token"),
            Self::RegisterWentBack(_) => {
                f.write_str("the resource accepted a write under a smaller token after one under a greater")
            }
            Self::BusyWithoutHolder(_) => {
                f.write_str("an attempt was answered \"busy\" while no client may have held the lock")
            }
            Self::Overtaken(_) => f.write_str("a later waiter overtook an earlier one"),
            Self::LeftBehind(_) => f.write_str("the store had a lease or ticket left at the end"),
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
    /// Writes the call in one line: `client 2, "key": asked at 1.2 ms, granted token 7 at 3.4 ms,
    /// held until 9 ms, released by 9.6 ms`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "client {}, {:?}", self.client, self.key)?;
        if !self.mode.is_exclusive() {
            write!(f, ", {}", self.mode)?;
        }
        write!(f, ": asked at {:?}", self.asked)?;
        let answered = match self.answered {
            Some(at) => format!("at {at:?}"),
            None => "and the history ended".to_owned(),
        };
        match &self.what {
            CallKind::Granted { token, until, end } => {
                write!(f, ", granted token {token} {answered}, held until {until:?}, ")?;
                match end {
                    End::Open => f.write_str("not ended"),
                    End::Released { answered, .. } => write!(f, "released by {answered:?}"),
                    End::Unknown => f.write_str("given back at an unknown time"),
                    End::Lost => f.write_str("lost"),
                }
            }
            CallKind::Busy => write!(f, ", busy {answered}"),
            CallKind::GaveWay => write!(f, ", busy or behind another caller {answered}"),
            CallKind::NotGranted => write!(f, ", not granted {answered}"),
            CallKind::Wrote { token } => write!(f, ", written under token {token} {answered}"),
            CallKind::Sent { request, answer: Some(answer) } => write!(f, ", {request}: {answer} {answered}"),
            CallKind::Sent { request, answer: None } => write!(f, ", {request}: no answer"),
            CallKind::Left { held, waiting } => write!(f, ", held: {held}, waiting: {waiting} {answered}"),
        }
    }
}
