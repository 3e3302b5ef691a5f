//! One check.

use std::fmt;

use futures_util::future::LocalBoxFuture;

use crate::clause::Clause;
use crate::context::Context;
use crate::failure::Verdict;
use crate::level::Level;
use crate::need::Need;
use crate::profile::Profile;

type Run = fn(Context) -> LocalBoxFuture<'static, Verdict>;

/// One check of the suite: a name, the promise that it tests, and what it needs.
#[derive(Clone, Copy)]
pub struct Check {
    clause: Clause,
    word: &'static str,
    promise: &'static str,
    needs: &'static [Need],
    level: Level,
    run: Run,
}

impl Check {
    pub(crate) const fn new(
        clause: Clause,
        word: &'static str,
        promise: &'static str,
        needs: &'static [Need],
        run: Run,
    ) -> Self {
        Self { clause, word, promise, needs, level: Level::Quick, run }
    }

    /// Sets the lowest level at which the check runs. The default is `quick`.
    pub(crate) const fn at_level(mut self, level: Level) -> Self {
        self.level = level;
        self
    }

    /// Returns the clause that the check tests.
    #[must_use]
    pub fn clause(&self) -> Clause {
        self.clause
    }

    /// Returns the name without the fixture, such as `C5_fencing::across_release`.
    #[must_use]
    pub fn name(&self) -> String {
        format!("{}::{}", self.clause, self.word)
    }

    /// Returns the promise, and what a failure means.
    #[must_use]
    pub fn promise(&self) -> &'static str {
        self.promise
    }

    /// Returns what the check needs of a backend and its fixture.
    #[must_use]
    pub fn needs(&self) -> &'static [Need] {
        self.needs
    }

    /// Returns the lowest level at which the check runs.
    #[must_use]
    pub fn level(&self) -> Level {
        self.level
    }

    /// Returns why the check is refused by design for a backend with this profile, if it is.
    pub(crate) fn refusal(&self, profile: &Profile) -> Option<String> {
        if let Some(reason) = profile.reason_to_refuse(&self.name()) {
            return Some(reason.to_owned());
        }
        self.needs.iter().find(|need| !profile.has(**need)).map(|need| need.missing().to_owned())
    }

    /// Whether the check applies to a backend with this profile at all. A check for the refusal of
    /// a capability applies only to backends without it. All others apply to every backend, which
    /// either runs them or [refuses](Self::refusal) them.
    pub(crate) fn concerns(&self, profile: &Profile) -> bool {
        self.needs.iter().all(|need| !need.is_refusal() || profile.has(*need))
    }

    pub(crate) fn start(&self, context: Context) -> LocalBoxFuture<'static, Verdict> {
        (self.run)(context)
    }
}

impl fmt::Debug for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Check").field("name", &self.name()).field("needs", &self.needs).finish_non_exhaustive()
    }
}

/// Makes a list of checks from lines `clause function [needs] "promise"`. The function's name is
/// that of the check. A level after the function's name is the lowest one at which the check runs;
/// `Quick` is omitted.
macro_rules! checks {
    ($($clause:ident $function:ident $($level:ident)? [$($need:ident),*] $promise:literal;)+) => {
        pub(in crate::checks) const CHECKS: &[$crate::check::Check] = &[$(
            $crate::check::Check::new(
                $crate::clause::Clause::$clause,
                stringify!($function),
                $promise,
                &[$($crate::need::Need::$need),*],
                |context| Box::pin($function(context)),
            )$(.at_level($crate::level::Level::$level))?,
        )+];
    };
}
pub(crate) use checks;
