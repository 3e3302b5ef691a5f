//! Violations that the intervals of a history show.

use std::time::Duration;

use super::call::{Call, End, What, by_key};
use super::violation::Violation;

/// What a history must contain to prove anything. The default is nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Expected {
    /// The minimum of grants.
    pub grants: usize,
    /// The minimum of calls that met another holder: attempts that were busy, and grants after a
    /// wait.
    pub contended: usize,
}

fn pair(a: &Call, b: &Call) -> Box<[Call; 2]> {
    Box::new([a.clone(), b.clone()])
}

/// Finds violations in the calls of one key.
type Rule = fn(&[&Call]) -> Vec<Violation>;

/// Returns all violations, the worst first.
pub(super) fn violations(calls: &[Call]) -> Vec<Violation> {
    let keys = by_key(calls);
    let rules: [Rule; 6] = [overlaps, tokens, register, overtaken, busy_without_holder, left];
    rules.iter().flat_map(|rule| keys.iter().flat_map(|calls| rule(calls))).collect()
}

/// Returns the calls that held the key for certain, in the order of their holds.
fn holds<'a>(calls: &[&'a Call]) -> Vec<(&'a Call, u64, Duration, Duration)> {
    let hold = |call: &&'a Call| call.hold().map(|(token, from, until)| (*call, token, from, until));
    let mut holds: Vec<_> = calls.iter().filter_map(hold).collect();
    holds.sort_by_key(|(_, _, from, _)| *from);
    holds
}

fn overlaps(calls: &[&Call]) -> Vec<Violation> {
    let mut found = Vec::new();
    let mut longest: Option<(&Call, Duration)> = None;
    for (call, _, from, until) in holds(calls) {
        if let Some((other, end)) = longest
            && from < end
        {
            found.push(Violation::Overlap(pair(other, call)));
        }
        if longest.is_none_or(|(_, end)| until > end) {
            longest = Some((call, until));
        }
    }
    found
}

fn tokens(calls: &[&Call]) -> Vec<Violation> {
    let mut found = Vec::new();
    let mut highest: Option<(&Call, u64)> = None;
    for (call, token, ..) in holds(calls) {
        match highest {
            Some((other, of_other)) if token == of_other => found.push(Violation::SameToken(pair(other, call))),
            Some((other, of_other)) if token < of_other => found.push(Violation::TokenWentBack(pair(other, call))),
            _ => highest = Some((call, token)),
        }
    }
    found
}

/// Compares writes of which one had ended before the other began.
fn register(calls: &[&Call]) -> Vec<Violation> {
    let write = |call: &&Call| match (&call.what, call.answered) {
        (What::Wrote { token }, Some(answered)) => Some((*token, answered)),
        _ => None,
    };
    let writes: Vec<(&Call, u64, Duration)> =
        calls.iter().filter_map(|call| write(call).map(|(token, answered)| (*call, token, answered))).collect();
    let mut ended: Vec<_> = writes.clone();
    ended.sort_by_key(|(_, _, answered)| *answered);

    let (mut found, mut ended) = (Vec::new(), ended.into_iter().peekable());
    let mut highest: Option<(&Call, u64)> = None;
    for (call, token, _) in writes {
        while let Some((before, of_before, _)) = ended.next_if(|(_, _, answered)| *answered <= call.asked) {
            if highest.is_none_or(|(_, most)| of_before > most) {
                highest = Some((before, of_before));
            }
        }
        if let Some((before, most)) = highest
            && token < most
        {
            found.push(Violation::RegisterWentBack(pair(before, call)));
        }
    }
    found
}

/// A waiter that had a ticket before another one's request must be granted first.
fn overtaken(calls: &[&Call]) -> Vec<Violation> {
    let mut found = Vec::new();
    for first in calls {
        let Some(queued) = first.queued else { continue };
        for later in calls.iter().filter(|later| later.asked > queued) {
            let (What::Granted { token, .. }, Some(granted)) = (&later.what, later.answered) else { continue };
            let is_overtaken = match &first.what {
                What::Granted { token: of_first, .. } => token < of_first,
                What::NotGranted => first.answered.is_none_or(|left| granted < left),
                _ => false,
            };
            if is_overtaken {
                found.push(Violation::Overtaken(pair(first, later)));
            }
        }
    }
    found
}

fn busy_without_holder(calls: &[&Call]) -> Vec<Violation> {
    let possible: Vec<_> = calls.iter().filter_map(|call| call.possible_hold()).collect();
    let explained = |asked: Duration, answered: Duration| {
        possible.iter().any(|(from, until)| *from <= answered && until.is_none_or(|until| asked <= until))
    };
    let lied =
        |call: &&&Call| call.says_held(calls) && call.answered.is_some_and(|answered| !explained(call.asked, answered));
    calls.iter().filter(lied).map(|call| Violation::BusyWithoutHolder(Box::new((*call).clone()))).collect()
}

/// Only acquisitions that have not ended may have left something.
fn left(calls: &[&Call]) -> Vec<Violation> {
    let holds = calls.iter().any(|call| matches!(call.what, What::Granted { end: End::Open, .. }));
    let waits = calls.iter().any(|call| call.what == What::NotGranted && call.answered.is_none());
    let is_left = |call: &&&Call| match call.what {
        What::Left { held, waiting } => (held && !holds) || (waiting > 0 && !waits),
        _ => false,
    };
    calls.iter().filter(is_left).map(|call| Violation::LeftBehind(Box::new((*call).clone()))).collect()
}

/// Returns what a history lacks to prove anything.
pub(super) fn too_little(calls: &[Call], expected: Expected) -> Vec<Violation> {
    let grants = calls.iter().filter(|call| call.hold().is_some()).count();
    let mut found = Vec::new();
    if grants < expected.grants {
        found.push(Violation::TooFewGrants { seen: grants, expected: expected.grants });
    }
    let contended = by_key(calls).iter().map(|calls| contended(calls)).sum();
    if contended < expected.contended {
        found.push(Violation::TooLittleContention { seen: contended, expected: expected.contended });
    }
    found
}

/// Counts attempts that were answered busy, and grants that waited for the end of another certain
/// hold.
fn contended(calls: &[&Call]) -> usize {
    let busy = calls.iter().filter(|call| matches!(call.what, What::Busy | What::GaveWay)).count();
    let holds = holds(calls);
    let waited = holds.windows(2).filter(|pair| pair[1].0.asked < pair[0].3).count();
    busy + waited
}
