//! Handmade histories: good ones, and bad ones, each with its own defect. Times are in
//! milliseconds.

mod intervals;
mod linear;
mod modes;
mod search;

use std::time::Duration;

use distlock_api::Mode;

use super::{Call, CallKind, End, Expected, Violation, violations, violations_amid_faults};

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn call(client: usize, asked: u64, answered: u64, what: CallKind) -> Call {
    Call {
        client,
        key: "k".into(),
        asked: ms(asked),
        answered: Some(ms(answered)),
        queued: None,
        mode: Mode::Exclusive,
        what,
    }
}

/// Requested, granted, held until a release, released.
fn held(client: usize, token: u64, times: [u64; 4]) -> Call {
    let [asked, answered, until, released] = times;
    let end = End::Released { asked: ms(until), answered: ms(released) };
    call(client, asked, answered, CallKind::Granted { token, until: ms(until), end })
}

/// Requested, granted, held for certain until then, and ended without a release.
fn held_until(client: usize, token: u64, times: [u64; 3], end: End) -> Call {
    let [asked, answered, until] = times;
    call(client, asked, answered, CallKind::Granted { token, until: ms(until), end })
}

fn busy(client: usize, asked: u64, answered: u64) -> Call {
    call(client, asked, answered, CallKind::Busy)
}

fn not_granted(client: usize, asked: u64, answered: u64) -> Call {
    call(client, asked, answered, CallKind::NotGranted)
}

fn wrote(client: usize, token: u64, asked: u64, answered: u64) -> Call {
    call(client, asked, answered, CallKind::Wrote { token })
}

trait Edit {
    fn on(self, key: &str) -> Self;
    fn queued(self, at: u64) -> Self;
    fn unanswered(self) -> Self;
    fn shared(self) -> Self;
    fn permits(self, take: u32, of: u32) -> Self;
}

impl Edit for Call {
    fn on(mut self, key: &str) -> Self {
        self.key = key.into();
        self
    }

    fn queued(mut self, at: u64) -> Self {
        self.queued = Some(ms(at));
        self
    }

    fn unanswered(mut self) -> Self {
        self.answered = None;
        self
    }

    fn shared(mut self) -> Self {
        self.mode = Mode::Shared;
        self
    }

    fn permits(mut self, take: u32, of: u32) -> Self {
        self.mode = Mode::Permits { take, of };
        self
    }
}

fn kind(violation: &Violation) -> &'static str {
    match violation {
        Violation::Overlap(_) => "overlap",
        Violation::TooManyPermits { .. } => "too many permits",
        Violation::TokenWentBack(_) => "token back",
        Violation::SameToken(_) => "same token",
        Violation::RegisterWentBack(_) => "register back",
        Violation::BusyWithoutHolder(_) => "busy without holder",
        Violation::Overtaken(_) => "overtaken",
        Violation::LeftBehind(_) => "left behind",
        Violation::NotLinearizable { .. } => "not linearizable",
        Violation::Undecided { .. } => "undecided",
        Violation::Truncated { .. } => "truncated",
        Violation::TooFewGrants { .. } => "few grants",
        Violation::TooLittleContention { .. } => "little contention",
    }
}

fn kinds_with(calls: &[Call], grants: usize, contended: usize) -> Vec<&'static str> {
    violations(calls, Expected { grants, contended }).iter().map(kind).collect()
}

fn kinds(calls: &[Call]) -> Vec<&'static str> {
    kinds_with(calls, 0, 0)
}
