//! The clauses of the contract that checks are named after.

use std::fmt;

/// A clause of the contract, as [`distlock_api::contract`] lists it.
///
/// ```
/// assert_eq!(distlock_conformance::Clause::C5.to_string(), "C5_fencing");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the words are in `word`, the texts in `text`")]
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
    /// Administration beyond C22: what it shows and takes away, as `LockAdmin` in `distlock-api`
    /// says.
    Admin,
}

impl Clause {
    /// Returns the name of the clause, such as `store_clock`.
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

    /// Returns the text of the clause in the contract.
    #[must_use]
    #[rustfmt::skip]
    pub const fn text(self) -> &'static str {
        match self {
            Self::C1 => "exclusion – in the store's commit order the intervals [grant, release | expiry | force-release] of one key never overlap.",
            Self::C2 => "store's clock – only the store's clock decides expiry. A client clock wrong by ±1 h changes nothing.",
            Self::C3 => "conservative deadline – a guard is valid until monotonic time taken before the request was sent + the remaining time by the store's clock − margin. Assumed: steps of the store's clock, and skew between replica-set members that succeed each other, stay below the margin. A grant whose reply arrives after that is not returned; it is cleaned up.",
            Self::C4 => "prompt loss – lost() completes no later than that deadline even if the renewal call hangs for ever, and at once when a renewal or a pushed event says the lease is gone. Loss is final: no later renewal revives the guard.",
            Self::C5 => "fencing – tokens strictly increase per key: across release, expiry, take-over, force-release, TTL purge of the record, fail-over, restart (in the store's commit order; a record deleted by hand within the purge grace is outside, and so is a store that is restored from a backup or whose clock goes back: a replica set that becomes a standalone after its cluster time had run ahead of the wall clock).",
            Self::C6 => "constant token – a guard's token never changes and is never re-read from the store.",
            Self::C7 => "owner per acquisition – every acquisition has its own id; same process, task, host or lock object never shares it. Not re-entrant.",
            Self::C8 => "stale calls are harmless – release/renew by a past holder changes nothing for the present one and says so.",
            Self::C9 => "truthful release – Released, AlreadyLost, or an error of kind outcome unknown; never a silent success.",
            Self::C10 => "lost replies – acquire/renew/release that was applied but whose reply was lost, then retried, gives the same outcome: one token, no self-deadlock, no false loss.",
            Self::C11 => "cancel safety – dropping the acquire future at any await leaves neither lease nor queue ticket behind after a bounded clean-up; dropping a guard releases in the background; without a runtime the ttl is the backstop.",
            Self::C12 => "no renewal after release; a renewal never resurrects a lease that was granted to someone else.",
            Self::C13 => "one transient renewal error neither stops renewal nor signals loss; one transient error while waiting does not end the wait.",
            Self::C14 => "a slow or failing key (or batch) does not delay the renewal of other keys past their deadline.",
            Self::C15 => "fair – grants follow queue order among live waiters; a dead waiter costs its successors one short claim or hand-over window, not a ttl.",
            Self::C16 => "no lost wake-up – with every push channel cut, each waiter still acquires within the holder's expiry or one safety-poll interval.",
            Self::C17 => "no herd – one release with N waiters costs O(1) writes, whatever N.",
            Self::C18 => "bounded calls – acquire with timeout t returns by t + ε even when the backend hangs; try_acquire is one round trip; nothing leaks.",
            Self::C19 => "a killed holder's key becomes free at its expiry, not earlier, and soon after.",
            Self::C20 => "independent keys – case, Unicode, NUL, ./$, long keys, hash collisions: different keys never interfere. Invalid keys (empty, too long) are refused before any I/O.",
            Self::C21 => "multi-key – acquire_all sorts, removes duplicates, is all-or-nothing; callers in opposite order never deadlock.",
            Self::C22 => "force-release – bumps the token, is recorded (who, why), and the victim's lost() fires.",
            Self::C23 => "accounting – acquired = released + lost + abandoned + held, at all times.",
            Self::C24 => "shutdown – draining a provider releases every lease, each independent of the others' failures, in bounded time.",
            Self::C25 => "minimum hold – with hold_at_least(d) a quick release keeps the key closed until d has passed (scheduled jobs on skewed fleets).",
            Self::Admin => "Administration shows and takes away what LockAdmin says.",
        }
    }
}

impl fmt::Display for Clause {
    /// Writes `C5_fencing`; a group without a number is its name alone.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::Admin {
            return f.write_str(self.word());
        }
        write!(f, "{self:?}_{}", self.word())
    }
}

#[cfg(test)]
mod tests {
    use crate::checks;

    /// They are written twice, so that a report can show them.
    #[test]
    fn the_texts_are_those_of_the_contract() {
        let contract = concat!(env!("CARGO_MANIFEST_DIR"), "/../lock-api/CONTRACT.md");
        let contract = std::fs::read_to_string(contract).unwrap().replace(['*', '`'], "").replace("\n  ", " ");
        let mut clauses: Vec<_> = checks::all().iter().map(|check| check.clause()).collect();
        clauses.dedup();
        clauses.retain(|clause| *clause != super::Clause::Admin);
        assert_eq!(clauses.len(), 25);
        for clause in clauses {
            let anchor = format!("{clause:?}").to_lowercase();
            let line = format!("\n- <a id=\"{anchor}\"></a>{clause:?} {}\n", clause.text());
            assert!(contract.contains(&line), "{line}");
        }
    }
}
