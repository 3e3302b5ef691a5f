//! Violations that the intervals of a history show.

use std::time::Duration;

use distlock_api::Mode;

use super::call::{Call, CallKind, End, by_key};
use super::modes::{Kind, kind, may_be_refused, numbers};
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
    let rules: [Rule; 8] = [overlaps, permits, tokens, tokens_together, register, overtaken, busy_without_holder, left];
    rules.iter().flat_map(|rule| keys.iter().flat_map(|calls| rule(calls))).collect()
}

/// A certain hold.
#[derive(Clone, Copy)]
struct Hold<'a> {
    call: &'a Call,
    token: u64,
    from: Duration,
    until: Duration,
}

/// Returns the certain holds, in the order of their beginnings.
fn holds<'a>(calls: &[&'a Call]) -> Vec<Hold<'a>> {
    let hold = |call: &&'a Call| call.hold().map(|(token, from, until)| Hold { call, token, from, until });
    let mut holds: Vec<_> = calls.iter().filter_map(hold).collect();
    holds.sort_by_key(|hold| hold.from);
    holds
}

fn overlaps(calls: &[&Call]) -> Vec<Violation> {
    let (mut found, mut present): (_, Vec<Hold<'_>>) = (Vec::new(), Vec::new());
    for hold in holds(calls) {
        present.retain(|other| hold.from < other.until);
        let excluded = present.iter().filter(|other| other.call.excludes(hold.call));
        if let Some(other) = excluded.max_by_key(|other| other.until) {
            found.push(Violation::Overlap(pair(other.call, hold.call)));
        }
        present.push(hold);
    }
    found
}

/// Permits have one token each, in the order of their grants. So of the permits that are held at
/// the same moment, each was granted while those with smaller tokens were held.
fn permits(calls: &[&Call]) -> Vec<Violation> {
    let (mut found, mut present): (_, Vec<Hold<'_>>) = (Vec::new(), Vec::new());
    for hold in holds(calls).into_iter().filter(|hold| kind(hold.call.mode) == Kind::Permits) {
        present.retain(|other| hold.from < other.until);
        present.push(hold);
        present.sort_by_key(|hold| hold.token);
        let mut taken = 0;
        for (place, last) in present.iter().enumerate() {
            let (take, of) = numbers(last.call.mode);
            taken += take;
            // Sums without this hold were compared before.
            if taken > of && last.token >= hold.token {
                let held = present[..=place].iter().map(|hold| hold.call.clone()).collect();
                found.push(Violation::TooManyPermits { held, taken });
                break;
            }
        }
    }
    found
}

/// Compares the tokens of holds that exclude each other. So the order of the certain holds is that
/// of the grants.
fn tokens(calls: &[&Call]) -> Vec<Violation> {
    let mut found = Vec::new();
    // By kinds.
    let mut highest: [Option<(&Call, u64)>; 3] = [None; 3];
    for Hold { call, token, .. } in holds(calls) {
        let before = highest.iter().flatten().filter(|(other, _)| other.excludes(call)).max_by_key(|(_, token)| *token);
        match before {
            Some((other, of_other)) if token == *of_other => found.push(Violation::SameToken(pair(other, call))),
            Some((other, of_other)) if token < *of_other => found.push(Violation::TokenWentBack(pair(other, call))),
            _ => {}
        }
        let of_kind = &mut highest[kind(call.mode) as usize];
        if of_kind.is_none_or(|(_, most)| token > most) {
            *of_kind = Some((call, token));
        }
    }
    found
}

/// Compares the tokens of holds of one kind that do not exclude each other.
fn tokens_together(calls: &[&Call]) -> Vec<Violation> {
    let mut holds = holds(calls);
    holds.retain(|hold| !hold.call.mode.is_exclusive());
    if holds.is_empty() {
        return Vec::new();
    }
    let mut found = Vec::new();
    let mut sorted = holds.clone();
    sorted.sort_by_key(|hold| hold.token);
    for same in sorted.windows(2).filter(|two| two[0].token == two[1].token && !two[0].call.excludes(two[1].call)) {
        found.push(Violation::SameToken(pair(same[0].call, same[1].call)));
    }
    for of_kind in [Kind::Shared, Kind::Permits] {
        let of_kind: Vec<Hold<'_>> = holds.iter().copied().filter(|hold| kind(hold.call.mode) == of_kind).collect();
        let mut asked = of_kind.clone();
        asked.sort_by_key(|hold| hold.call.asked);
        let mut granted = of_kind.into_iter().peekable();
        let mut highest: Option<Hold<'_>> = None;
        for hold in asked {
            while let Some(before) = granted.next_if(|before| before.from <= hold.call.asked) {
                if highest.is_none_or(|most| before.token > most.token) {
                    highest = Some(before);
                }
            }
            if let Some(most) = highest
                && hold.token < most.token
                && !may_have_joined(hold.call, calls)
            {
                found.push(Violation::TokenWentBack(pair(most.call, hold.call)));
            }
        }
    }
    found
}

/// Whether a shared guard may belong to a lease that its client had before the request, with a
/// token of that lease's block.
fn may_have_joined(call: &Call, calls: &[&Call]) -> bool {
    let may_hold = |other: &Call| {
        let hold = other.possible_hold();
        hold.is_some_and(|(from, until)| from <= call.asked && until.is_none_or(|until| call.asked <= until))
    };
    kind(call.mode) == Kind::Shared
        && calls.iter().any(|other| {
            !std::ptr::eq(*other, call)
                && other.client == call.client
                && kind(other.mode) == Kind::Shared
                && may_hold(other)
        })
}

/// Compares writes of which one had ended before the other began.
fn register(calls: &[&Call]) -> Vec<Violation> {
    let write = |call: &&Call| match (&call.what, call.answered) {
        (CallKind::Wrote { token }, Some(answered)) => Some((*token, answered)),
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
            let (CallKind::Granted { token, .. }, Some(granted)) = (&later.what, later.answered) else { continue };
            let is_overtaken = match &first.what {
                CallKind::Granted { token: of_first, .. } => token < of_first,
                CallKind::NotGranted => first.answered.is_none_or(|left| granted < left),
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
    let hold = |call: &&Call| call.possible_hold().map(|(from, until)| (call.mode, from, until));
    let possible: Vec<_> = calls.iter().filter_map(hold).collect();
    let explained = |mode: Mode, asked: Duration, answered: Duration| {
        let at_the_time =
            possible.iter().filter(|(_, from, until)| *from <= answered && until.is_none_or(|until| asked <= until));
        may_be_refused(mode, at_the_time.map(|(mode, ..)| *mode))
    };
    let lied = |call: &&&Call| {
        call.says_held(calls) && call.answered.is_some_and(|answered| !explained(call.mode, call.asked, answered))
    };
    calls.iter().filter(lied).map(|call| Violation::BusyWithoutHolder(Box::new((*call).clone()))).collect()
}

/// Only acquisitions that have not ended may have left something.
fn left(calls: &[&Call]) -> Vec<Violation> {
    let holds = calls.iter().any(|call| matches!(call.what, CallKind::Granted { end: End::Open, .. }));
    let waits = calls.iter().any(|call| call.what == CallKind::NotGranted && call.answered.is_none());
    let is_left = |call: &&&Call| match call.what {
        CallKind::Left { held, waiting } => (held && !holds) || (waiting > 0 && !waits),
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
    let busy = calls.iter().filter(|call| matches!(call.what, CallKind::Busy | CallKind::GaveWay)).count();
    let holds = holds(calls);
    let has_waited = |pair: &&[Hold<'_>]| pair[1].call.asked < pair[0].until && pair[0].call.excludes(pair[1].call);
    let waited = holds.windows(2).filter(has_waited).count();
    busy + waited
}
