//! The checks, with a module for one or two clauses.

mod accounting;
mod admin;
mod bounds;
mod cancel;
mod clock;
mod crash;
mod deadline;
mod events;
mod exclusion;
mod fairness;
mod force;
mod hold;
mod isolation;
mod keys;
mod lead;
mod loss;
mod lost_replies;
mod modes;
mod multi;
mod once;
mod owner;
mod pairs;
mod renewal;
mod shutdown;
mod stale;
mod store;
mod tokens;
mod torture;
mod wake_ups;

use crate::check::Check;

/// All checks, in the order of their clauses.
#[must_use]
pub fn all() -> Vec<Check> {
    let mut all = [
        exclusion::CHECKS,
        torture::CHECKS,
        clock::CHECKS,
        deadline::CHECKS,
        loss::CHECKS,
        tokens::CHECKS,
        owner::CHECKS,
        stale::CHECKS,
        lost_replies::CHECKS,
        cancel::CHECKS,
        renewal::CHECKS,
        isolation::CHECKS,
        fairness::CHECKS,
        wake_ups::CHECKS,
        bounds::CHECKS,
        crash::CHECKS,
        keys::CHECKS,
        multi::CHECKS,
        force::CHECKS,
        accounting::CHECKS,
        shutdown::CHECKS,
        hold::CHECKS,
        modes::shared::CHECKS,
        modes::permits::CHECKS,
        modes::queue::CHECKS,
        modes::ends::CHECKS,
        modes::faults::CHECKS,
        modes::refusals::CHECKS,
        modes::admin::CHECKS,
        admin::CHECKS,
        events::CHECKS,
        pairs::hold::CHECKS,
        pairs::queue::CHECKS,
        pairs::batch::CHECKS,
        pairs::failing::CHECKS,
        pairs::holders::CHECKS,
        pairs::events::CHECKS,
        pairs::purge::CHECKS,
        pairs::lost_replies::CHECKS,
        store::lease::CHECKS,
        store::numbers::CHECKS,
        store::keys::CHECKS,
        store::batch::CHECKS,
        store::races::CHECKS,
        store::queue::CHECKS,
        store::push::CHECKS,
        store::admin::CHECKS,
        store::hooks::CHECKS,
        store::blocked::CHECKS,
        store::lag::CHECKS,
        store::modes::CHECKS,
        store::holders::CHECKS,
        store::record::CHECKS,
        once::CHECKS,
        once::lost_replies::CHECKS,
        lead::CHECKS,
    ]
    .concat();
    all.sort_by_key(Check::clause);
    all
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::level::Level;

    #[test]
    fn every_check_has_a_unique_name_and_a_promise() {
        let checks = all();
        let names: HashSet<String> = checks.iter().map(Check::name).collect();
        assert_eq!(names.len(), checks.len());
        for check in checks {
            assert!(check.promise().contains(". A failure means that "), "{check:?}");
        }
    }

    /// Only clauses that need to wait for a ttl, or to count, may be missing.
    #[test]
    fn the_smoke_checks_cover_nearly_all_clauses() {
        let clauses = |checks: &[Check]| checks.iter().map(Check::clause).collect::<HashSet<_>>();
        let checks = all();
        let smoke: Vec<Check> = checks.iter().filter(|check| check.level() == Level::Smoke).copied().collect();
        assert!(
            smoke.len() < checks.len() / 2,
            "{} of {} checks are too many for the level smoke",
            smoke.len(),
            checks.len()
        );
        let missing: Vec<_> = clauses(&checks).difference(&clauses(&smoke)).map(ToString::to_string).collect();
        assert!(missing.len() <= 9, "{missing:?}");
    }
}
