//! The clauses of the contract that checks are named after.

use std::fmt;

/// A clause: C1 to C31 of [`distlock_api::contract`], or O1 to O11 and L1 to L8 of
/// [`distlock_recipes::contract`].
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
    C26,
    C27,
    C28,
    C29,
    C30,
    C31,
    O1,
    O2,
    O3,
    O4,
    O5,
    O6,
    O7,
    O8,
    O9,
    O10,
    O11,
    L1,
    L2,
    L3,
    L4,
    L5,
    L6,
    L7,
    L8,
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
            Self::C26 => "shared",
            Self::C27 => "permits",
            Self::C28 => "one_queue",
            Self::C29 => "expiry_of_each",
            Self::C30 => "refused",
            Self::C31 => "no_upgrade",
            Self::O1 => "one_run",
            Self::O2 => "remembered",
            Self::O3 => "fenced_completion",
            Self::O4 => "two_times",
            Self::O5 => "interrupted",
            Self::O6 => "discarded",
            Self::O7 => "fingerprint",
            Self::O8 => "truthful_completion",
            Self::O9 => "bounded_wait",
            Self::O10 => "forgotten",
            Self::O11 => "cancel_safety",
            Self::L1 => "one_leader",
            Self::L2 => "terms",
            Self::L3 => "loss",
            Self::L4 => "resignation",
            Self::L5 => "errors",
            Self::L6 => "health",
            Self::L7 => "cancel_safety",
            Self::L8 => "observation",
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
            Self::C3 => "conservative deadline – a guard is valid until monotonic time taken before the request was sent + the remaining time by the store's clock − margin. Assumed: steps of the store's clock, and skew between replica-set members that succeed each other, stay below the margin. A grant whose reply arrives after that is not returned; it is cleaned up. The same holds for what needs further requests under the grant, such as a run that is begun or several keys: no call returns a guard whose deadline has passed.",
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
            Self::C18 => "bounded calls – acquire with timeout t returns by t + ε even when the backend hangs; try_acquire is one round trip; nothing leaks. A call that is answered without I/O lets other tasks run, so that callers that repeat it at once stop neither timers nor renewals.",
            Self::C19 => "a killed holder's key becomes free at its expiry, not earlier, and soon after.",
            Self::C20 => "independent keys – case, Unicode, NUL, ./$, long keys, hash collisions: different keys never interfere. Invalid keys (empty, too long) are refused before any I/O.",
            Self::C21 => "multi-key – acquire_all sorts, removes duplicates, is all-or-nothing; callers in opposite order never deadlock.",
            Self::C22 => "force-release – bumps the token, is recorded (who, why), and the victim's lost() fires.",
            Self::C23 => "accounting – acquired = released + lost + abandoned + held, at all times.",
            Self::C24 => "shutdown – draining a provider releases every lease, each independent of the others' failures, in bounded time.",
            Self::C25 => "minimum hold – with hold_at_least(d) a quick release keeps the key closed until d has passed (scheduled jobs on skewed fleets).",
            Self::C26 => "shared – shared guards hold a key together. While one of them does, no guard of another mode holds it. Their tokens differ, and are above those of all guards of other modes before them and below those of all after them (C5). Among shared guards, and among guards with permits, the order of the tokens is not promised.",
            Self::C27 => "permits – guards with permits hold a key together, and none of another mode beside them. No permits are granted if more than of would be held, by the request's own of.",
            Self::C28 => "one queue – all modes of a key wait in one queue (C15). A request that would fit beside the holders waits behind all that wait ahead of it. The release that makes room grants the key, in one step, to all at the head that fit together. So no mode starves another. A waiter that dies at the head while others hold the key costs those behind it the rest of its ticket's ttl, because no release grants it the key and shows that it is dead.",
            Self::C29 => "expiry of each – each of several holders has a lease of its own: one that died delays others until its own expiry, no longer, and its end affects no other holder.",
            Self::C30 => "refused – a mode that the provider does not have, permits of none, and more permits than there are, are refused with a typed error before any I/O.",
            Self::C31 => "no upgrade – a holder that requests its key again, in any mode, is another caller (C7): nothing is converted, and it waits as others do.",
            Self::O1 => "one run at a time – of all callers of a key exactly one begins; the others are busy, or get its outcome.",
            Self::O2 => "remembered – once complete was answered, every caller gets the same bytes until keep has passed by the store's clock, and nothing is written for that.",
            Self::O3 => "one fenced write – complete remembers the outcome and ends the lease in one step, which only the holder of the lease can make. A late holder's is refused and changes nothing.",
            Self::O4 => "two times – a run whose holder vanished is open again at the end of its lease, not earlier, and soon after, however long keep is.",
            Self::O5 => "interrupted – a run that was begun, and neither completed nor discarded, is reported to the next one, with its token and owner. With at_most_once it is never begun again while it is remembered.",
            Self::O6 => "discarded – a discarded run leaves what was known before it, and the key open at once, whatever its minimum hold.",
            Self::O7 => "fingerprint – another fingerprint under the same key is a mismatch, while work is under way, done or interrupted; nothing is begun or changed.",
            Self::O8 => "truthful completion – completed, lost, rejected, or an error of kind outcome unknown. Repeated after an unknown outcome, complete says what has become of the first call: what was written is never reported as lost, while the store remembers the write, and the reverse.",
            Self::O9 => "bounded wait – a wait ends with its timeout. Until then a waiter gets the outcome soon after it was remembered.",
            Self::O10 => "forgotten – an outcome no longer counts when keep has passed. Work under way is never removed, however short keep is.",
            Self::O11 => "cancel safety – dropping the call at any await leaves neither a lease nor a run behind, after a bounded clean-up. If the process dies or the lease ends at that moment, the key may be left interrupted.",
            Self::L1 => "one leader – at most one candidate of a key runs its task at a time. A process that was paused beyond its lease may run for longer: until it looks, only the term keeps it out.",
            Self::L2 => "terms – the task gets the fencing token of its grant. It is constant for a term, and greater than that of every earlier leader of the key.",
            Self::L3 => "loss – when the leadership is lost, the task is dropped before the lease ends at the store, and is never polled again. The candidate then campaigns again, under a new term.",
            Self::L4 => "resignation – when the task ends or fails, and at shutdown, the task is dropped first, and then the lock is released. The release is awaited. The next candidate leads at once, not after a ttl.",
            Self::L5 => "errors – an error of the store or of the task does not end the candidacy. The candidate campaigns again after a pause, which grows with each failure in a row up to a limit and is jittered. Only a mistake of the caller, a missing capability or a closed provider end it.",
            Self::L6 => "health – the health shows Leading while the task runs, Failing from the first failure until the candidate leads or finds another leader, Following while it campaigns otherwise, and Idle before and after.",
            Self::L7 => "cancel safety – dropping the candidate at any await drops the task first, and leaves neither a lock nor a waiter behind.",
            Self::L8 => "observation – an observer reports the present leader, then each change, in their order. After missed events it reports the leader of the moment. A leader that it has reported is never followed by an earlier one.",
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
        let contract = |package: &str| {
            let path = format!("{}/../{package}/CONTRACT.md", env!("CARGO_MANIFEST_DIR"));
            std::fs::read_to_string(path).unwrap().replace(['*', '`'], "").replace("\n  ", " ")
        };
        let (locks, recipes) = (contract("lock-api"), contract("lock-recipes"));
        let mut clauses: Vec<_> = checks::all().iter().map(|check| check.clause()).collect();
        clauses.dedup();
        clauses.retain(|clause| *clause != super::Clause::Admin);
        assert_eq!(clauses.len(), 31 + 11 + 8);
        for clause in clauses {
            let anchor = format!("{clause:?}").to_lowercase();
            let line = format!("\n- <a id=\"{anchor}\"></a>{clause:?} {}\n", clause.text());
            assert!(locks.contains(&line) || recipes.contains(&line), "{line}");
        }
    }
}
