//! Recorded histories, and what they must not contain.
//!
//! A client records the time during which it *certainly* held a key: from the moment the grant had returned until the moment
//! before it called release, by one monotonic clock. Such intervals lie inside those at the store, so two that overlap prove a
//! broken exclusion (C1), and their order is the store's order of the grants, in which tokens must increase (C5).

use std::fmt;
use std::sync::{Arc, Mutex};

use distlock_api::LockKey;
use tokio::time::Instant;

use crate::failure::{Failure, Verdict};

/// One certain hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hold {
    /// Who, for the report.
    pub client: usize,
    /// Which lock.
    pub key: LockKey,
    /// The token of the grant.
    pub token: u64,
    /// When the grant had returned.
    pub from: Instant,
    /// Right before the release was called, or when the guard was last seen not lost.
    pub until: Instant,
}

/// What is wrong with a history.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Violation {
    /// Two held the same key at the same time.
    Overlap(Box<[Hold; 2]>),
    /// A later grant has a smaller token.
    TokenWentBack(Box<[Hold; 2]>),
    /// Two grants of a key have the same token.
    SameToken(Box<[Hold; 2]>),
    /// The history proves nothing: it has fewer grants than it must have.
    TooFewGrants {
        /// How many there are.
        seen: usize,
        /// How many there must be at the least.
        expected: usize,
    },
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (what, [first, second]) = match self {
            Self::Overlap(pair) => ("two clients held one key at the same time", &**pair),
            Self::TokenWentBack(pair) => ("a later grant has a smaller token", &**pair),
            Self::SameToken(pair) => ("two grants have the same token", &**pair),
            Self::TooFewGrants { seen, expected } => {
                return write!(f, "only {seen} grants instead of {expected}");
            }
        };
        let held = second.from.saturating_duration_since(first.from);
        let ended = first.until.saturating_duration_since(first.from);
        write!(
            f,
            "{what}: {:?}, client {} with token {} for {ended:?}, client {} with token {} from {held:?} on",
            first.key, first.client, first.token, second.client, second.token
        )
    }
}

/// Everything that is wrong with a history, the worst first. A history of fewer grants than expected is wrong as well.
///
/// It is a pure function: holds in any order in, violations out.
#[must_use]
pub fn violations(holds: &[Hold], at_least: usize) -> Vec<Violation> {
    let mut holds: Vec<&Hold> = holds.iter().filter(|hold| hold.from < hold.until).collect();
    holds.sort_by(|a, b| (&a.key, a.from).cmp(&(&b.key, b.from)));
    let pair = |a: &Hold, b: &Hold| Box::new([a.clone(), b.clone()]);

    let mut found = Vec::new();
    let mut tokens = Vec::new();
    for of_key in holds.chunk_by(|a, b| a.key == b.key) {
        let (mut longest, mut highest) = (of_key[0], of_key[0]);
        for hold in &of_key[1..] {
            if hold.from < longest.until {
                found.push(Violation::Overlap(pair(longest, hold)));
            }
            if hold.token == highest.token {
                tokens.push(Violation::SameToken(pair(highest, hold)));
            } else if hold.token < highest.token {
                tokens.push(Violation::TokenWentBack(pair(highest, hold)));
            }
            if hold.until > longest.until {
                longest = hold;
            }
            if hold.token > highest.token {
                highest = hold;
            }
        }
    }
    found.append(&mut tokens);
    if holds.len() < at_least {
        found.push(Violation::TooFewGrants { seen: holds.len(), expected: at_least });
    }
    found
}

/// Where several tasks record their holds.
#[derive(Clone, Debug, Default)]
pub(crate) struct History(Arc<Mutex<Vec<Hold>>>);

impl History {
    pub(crate) fn record(&self, hold: Hold) {
        self.0.lock().expect("not poisoned").push(hold);
    }

    pub(crate) fn verdict(&self, at_least: usize) -> Verdict {
        let found = violations(&self.0.lock().expect("not poisoned"), at_least);
        match found.first() {
            None => Ok(()),
            Some(first) => Err(Failure::new(format!("{first} (and {} more violations)", found.len() - 1))),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Holds as `(key, client, token, from, until)`, in milliseconds.
    fn history(holds: &[(&str, usize, u64, u64, u64)]) -> Vec<Hold> {
        let origin = Instant::now();
        let at = |ms| origin + Duration::from_millis(ms);
        let hold = |&(key, client, token, from, until): &(&str, usize, u64, u64, u64)| Hold {
            client,
            key: LockKey::new(key).unwrap(),
            token,
            from: at(from),
            until: at(until),
        };
        holds.iter().map(hold).collect()
    }

    fn kinds(holds: &[(&str, usize, u64, u64, u64)], at_least: usize) -> Vec<&'static str> {
        let kind = |violation: &Violation| match violation {
            Violation::Overlap(_) => "overlap",
            Violation::TokenWentBack(_) => "back",
            Violation::SameToken(_) => "same",
            Violation::TooFewGrants { .. } => "few",
        };
        violations(&history(holds), at_least).iter().map(kind).collect()
    }

    #[test]
    fn a_good_history_passes_in_any_order_of_recording() {
        let good = [("a", 2, 7, 20, 30), ("a", 1, 3, 0, 10), ("b", 1, 1, 5, 25), ("a", 1, 5, 10, 20)];
        assert!(kinds(&good, 4).is_empty());
    }

    #[test]
    fn an_overlap_is_found_even_behind_a_short_hold() {
        assert_eq!(kinds(&[("a", 1, 1, 0, 10), ("a", 2, 2, 9, 12)], 0), ["overlap"]);
        assert_eq!(kinds(&[("a", 1, 1, 0, 50), ("a", 2, 2, 60, 70), ("a", 3, 3, 65, 80)], 0), ["overlap"]);
        let behind = [("a", 1, 1, 0, 100), ("a", 2, 2, 10, 20), ("a", 3, 3, 50, 60)];
        assert_eq!(kinds(&behind, 0), ["overlap", "overlap"]);
    }

    #[test]
    fn one_client_that_holds_twice_overlaps_too() {
        assert_eq!(kinds(&[("a", 1, 1, 0, 10), ("a", 1, 2, 5, 15)], 0), ["overlap"]);
    }

    #[test]
    fn a_token_that_goes_back_is_found_even_after_a_detour() {
        assert_eq!(kinds(&[("a", 1, 5, 0, 10), ("a", 2, 4, 10, 20)], 0), ["back"]);
        assert_eq!(kinds(&[("a", 1, 5, 0, 10), ("a", 2, 2, 10, 20), ("a", 1, 3, 20, 30)], 0), ["back", "back"]);
    }

    #[test]
    fn a_token_used_twice_is_found() {
        assert_eq!(kinds(&[("a", 1, 5, 0, 10), ("a", 2, 5, 10, 20)], 0), ["same"]);
        assert!(kinds(&[("a", 1, 5, 0, 10), ("b", 2, 5, 10, 20)], 0).is_empty());
    }

    #[test]
    fn silence_is_not_success() {
        assert_eq!(kinds(&[], 1), ["few"]);
        assert_eq!(kinds(&[("a", 1, 1, 0, 10)], 2), ["few"]);
        // A grant that was over when it arrived proves nothing.
        assert_eq!(kinds(&[("a", 1, 1, 10, 10)], 1), ["few"]);
    }

    #[test]
    fn the_report_names_the_clients_and_their_tokens() {
        let report = violations(&history(&[("a", 1, 7, 0, 10), ("a", 2, 8, 4, 9)]), 0)[0].to_string();
        assert!(report.contains("client 1 with token 7 for 10ms"), "{report}");
        assert!(report.contains("client 2 with token 8 from 4ms on"), "{report}");
    }
}
