//! Whether all was as promised.

use std::time::{Duration, Instant};

use crate::board::State;

/// What goes on beyond the lease until a dead replica's lock has a new holder: the others find out,
/// and do their work.
const GRACE: Duration = Duration::from_millis(2500);

/// What was not as promised; nothing is the good news. Without the layer it is measured by the
/// same.
pub(crate) fn complaints(state: &State, lease: Duration, now: Instant) -> Vec<String> {
    let mut complaints = Vec::new();
    if state.total.ok == 0 {
        complaints.push("no order was served".to_owned());
    }
    if state.lost() > 0 {
        complaints.push(format!("{} updates were lost", state.lost()));
    }
    let killed = state.replicas.iter().any(|replica| replica.killed.is_some());
    for item in &state.items {
        if item.tokens_back > 0 {
            complaints.push(format!("{} fencing tokens of {} did not grow", item.tokens_back, item.name));
        }
        if killed && !item.served_since_kill {
            complaints.push(format!("{} were not served any more after a replica was killed", item.name));
        }
        let pause = item.longest_pause.max(item.pause(now));
        if pause > lease + GRACE {
            complaints.push(format!("{} were not served for {:.1} s", item.name, pause.as_secs_f64()));
        }
    }
    complaints
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tally::OK;

    const LEASE: Duration = Duration::from_secs(2);

    /// One order, served in so much time.
    fn served_in(time: Duration) -> (State, Instant) {
        let start = Instant::now();
        let mut state = State::new(&["A"], &["apples"], true, start);
        let request = state.arrived("apples", start).unwrap();
        state.read("apples", request, "A", 1, start).unwrap();
        state.write("apples", request, 1, start + time).unwrap();
        state.answered(request, OK, start + time);
        (state, start + time)
    }

    #[test]
    fn all_is_well() {
        let (state, now) = served_in(Duration::from_millis(20));
        assert_eq!(complaints(&state, LEASE, now), [""; 0]);
    }

    #[test]
    fn each_fault_is_told() {
        let told = |state: &State, now| complaints(state, LEASE, now).join("; ");

        let (mut state, now) = served_in(Duration::from_millis(20));
        state.read("apples", 2, "A", 1, now);
        state.write("apples", 2, 1, now);
        state.killed("A", now);
        let said = told(&state, now);
        assert!(said.contains("1 updates were lost") && said.contains("did not grow"), "{said}");
        assert!(said.contains("not served any more"), "{said}");

        let (state, now) = served_in(Duration::from_secs(9));
        assert!(told(&state, now).contains("not served for 9.0 s"));

        let state = State::new(&["A"], &["apples"], true, now);
        assert_eq!(told(&state, now), "no order was served");
    }

    #[test]
    fn who_still_waits_counts() {
        let (mut state, now) = served_in(Duration::from_millis(20));
        state.arrived("apples", now);
        assert_eq!(complaints(&state, LEASE, now + Duration::from_secs(7)).len(), 1);
    }
}
