//! Whether all was as promised.

use std::time::{Duration, Instant};

use distlock_examples::Checks;

use crate::board::State;

/// How much later than its lease ends a dead replica's lock must have been used again.
const GRACE: Duration = Duration::from_millis(2500);

/// Of so many reads, two must have been served together.
const MANY: u64 = 20;

/// Checks the promises. A run without the layer is measured by the same ones.
pub(crate) fn check(state: &State, lease: Duration, now: Instant, is_complete: bool) -> Checks {
    let mut checks = Checks::new(is_complete);
    checks.at_the_end(state.total.ok > 0, "no order was served");
    checks.always(state.lost() == 0, format!("{} updates were lost", state.lost()));
    checks.always(state.torn() == 0, format!("{} reads saw a write in between", state.torn()));
    let is_shared = !state.locked || state.total.reads < MANY || state.most_readers() > 1;
    checks.at_the_end(is_shared, "no two reads were served together");
    for item in &state.items {
        let (name, back) = (&item.name, item.tokens_back);
        checks.always(back == 0, format!("{back} fencing tokens of {name} did not grow"));
        let is_served = !state.has_killed() || item.served_since_kill;
        checks.at_the_end(is_served, format!("{name} were no longer served after a replica was killed"));
        let pause = item.longest_pause.max(item.pause(now));
        checks.always(pause <= lease + GRACE, format!("{name} were not served for {:.1} s", pause.as_secs_f64()));
    }
    checks
}

/// What a complete run has proved.
pub(crate) fn proved(state: &State) -> &'static str {
    match (state.locked, state.has_killed()) {
        (true, true) => {
            "no update lost, reads together, tokens only grew, the killed replica's locks were free again in time"
        }
        (true, false) => "no update lost, reads together, tokens only grew, no queue was stuck",
        (false, _) => "no update lost, by chance: there was no lock",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tally::OK;

    const LEASE: Duration = Duration::from_secs(2);

    fn complaints(state: &State, now: Instant) -> Vec<String> {
        check(state, LEASE, now, true).complaints().to_vec()
    }

    /// One order, served within `time`.
    fn served_in(time: Duration) -> (State, Instant) {
        let start = Instant::now();
        let mut state = State::new(&["A"], &["apples"], true, start);
        let request = state.arrived("apples", start).unwrap();
        state.read("apples", request, "A", 1, start).unwrap();
        state.write("apples", request, 1, start + time).unwrap();
        state.answered(request, false, OK, start + time);
        (state, start + time)
    }

    #[test]
    fn all_is_well() {
        let (state, now) = served_in(Duration::from_millis(20));
        assert_eq!(complaints(&state, now), [""; 0]);
    }

    #[test]
    fn each_fault_is_a_complaint() {
        let complained = |state: &State, now| complaints(state, now).join("; ");

        let (mut state, now) = served_in(Duration::from_millis(20));
        state.read("apples", 2, "A", 1, now);
        state.write("apples", 2, 1, now);
        state.killed("A", now);
        let text = complained(&state, now);
        assert!(text.contains("1 updates were lost") && text.contains("did not grow"), "{text}");
        assert!(text.contains("no longer served"), "{text}");

        let (mut state, now) = served_in(Duration::from_millis(20));
        for request in 2..2 + MANY {
            state.look("apples", request, "A", 0, now);
            state.look("apples", request, "A", 0, now);
            state.answered(request, true, OK, now);
        }
        assert_eq!(complained(&state, now), "", "requests that the proxy does not know are not counted");
        for _ in 0..MANY {
            let request = state.arrived("apples", now).unwrap();
            state.look("apples", request, "A", 0, now);
            state.look("apples", request, "A", 0, now);
            state.answered(request, true, OK, now);
        }
        assert_eq!(complained(&state, now), "no two reads were served together");

        let (state, now) = served_in(Duration::from_secs(9));
        assert!(complained(&state, now).contains("not served for 9.0 s"));

        let state = State::new(&["A"], &["apples"], true, now);
        assert_eq!(complained(&state, now), "no order was served");
    }

    #[test]
    fn requests_that_still_wait_count() {
        let (mut state, now) = served_in(Duration::from_millis(20));
        state.arrived("apples", now);
        assert_eq!(complaints(&state, now + Duration::from_secs(7)).len(), 1);
    }
}
