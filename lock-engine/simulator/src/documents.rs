//! The documents that commits write: which commits were applied, and what their callers were told.

use std::collections::{HashMap, HashSet};
use std::sync::Mutex;

use distlock_api::LockKey;

/// What commits have written, as the store has it.
#[derive(Default)]
pub(crate) struct Documents(Mutex<Contents>);

#[derive(Default)]
struct Contents {
    commits: u64,
    applied: HashSet<u64>,
    last_tokens: HashMap<LockKey, u64>,
    stale: Vec<String>,
    answers: Vec<(u64, bool)>,
}

impl Documents {
    fn change<T>(&self, change: impl FnOnce(&mut Contents) -> T) -> T {
        change(&mut self.0.lock().expect("one thread"))
    }

    /// Returns the number of a new commit.
    pub(crate) fn next_commit(&self) -> u64 {
        self.change(|contents| {
            contents.commits += 1;
            contents.commits
        })
    }

    /// Returns whether a commit has been applied.
    pub(crate) fn has(&self, commit: u64) -> bool {
        self.change(|contents| contents.applied.contains(&commit))
    }

    /// Applies a commit.
    pub(crate) fn apply(&self, commit: u64, key: &LockKey, token: u64) {
        self.change(|contents| contents.apply(commit, key, token));
    }

    /// Records the answer that the caller of a commit got.
    pub(crate) fn answered(&self, commit: u64, applied: bool) {
        self.change(|contents| contents.answers.push((commit, applied)));
    }

    /// Returns what is wrong: a write with a token that is not greater than the one before, or a
    /// commit whose caller was told something else.
    pub(crate) fn complaints(&self) -> Vec<String> {
        self.change(|contents| {
            let untrue = contents.answers.iter().filter(|(id, told)| contents.applied.contains(id) != *told);
            let untrue =
                untrue.map(|(id, told)| format!("commit {id} was reported as applied: {told}, which is untrue"));
            contents.stale.iter().cloned().chain(untrue).collect()
        })
    }
}

impl Contents {
    fn apply(&mut self, id: u64, key: &LockKey, token: u64) {
        self.applied.insert(id);
        let last = self.last_tokens.insert(key.clone(), token).unwrap_or_default();
        if token <= last {
            self.stale.push(format!("commit {id} wrote {key} with token {token} after {last}"));
        }
    }
}
