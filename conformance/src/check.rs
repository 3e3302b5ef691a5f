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

/// One check of the suite: a name, what it holds a backend to, and what it needs.
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
        Self { clause, word, promise, needs, level: Level::Standard, run }
    }

    /// A check of other levels than `standard` and those above it.
    pub(crate) const fn at_level(mut self, level: Level) -> Self {
        self.level = level;
        self
    }

    /// The clause that the check is about.
    #[must_use]
    pub fn clause(&self) -> Clause {
        self.clause
    }

    /// The name without the fixture: `C5_fencing::across_release`.
    #[must_use]
    pub fn name(&self) -> String {
        format!("{}::{}", self.clause, self.word)
    }

    /// What is promised, in a sentence.
    #[must_use]
    pub fn promise(&self) -> &'static str {
        self.promise
    }

    /// What it needs.
    #[must_use]
    pub fn needs(&self) -> &'static [Need] {
        self.needs
    }

    /// The lowest level at which it runs.
    #[must_use]
    pub fn level(&self) -> Level {
        self.level
    }

    /// Why it is refused by design of a backend with this profile, if it is.
    pub(crate) fn refusal(&self, profile: &Profile) -> Option<String> {
        if let Some(reason) = profile.reason_to_refuse(&self.name()) {
            return Some(reason.to_owned());
        }
        self.needs.iter().find(|need| !profile.has(**need)).map(|need| need.missing().to_owned())
    }

    /// Whether it concerns a backend with this profile at all: one that asserts the refusal of a
    /// capability concerns only backends without it, and one that damages a deployment those that have
    /// one.
    pub(crate) fn concerns(&self, profile: &Profile) -> bool {
        self.needs.iter().all(|need| !need.is_optional() || profile.has(*need))
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

/// A list of checks out of `clause function [needs] "promise"` lines; the function's name is the check's. A level behind the function's name is the lowest one
/// at which the check runs; `Standard` is left out.
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
