use super::*;
use crate::board::OK;

fn complaints(state: &State, now: f64) -> String {
    check(state, now, true).complaints().join("; ")
}

/// One order, served within this time.
fn served_in(time: f64) -> State {
    let mut state = State::new(&["A"], &["apples"], true);
    let request = state.arrived("apples", 0.0).unwrap();
    state.read("apples", (request, "A", 1, false), 0.0).unwrap();
    state.write("apples", request, 1, time).unwrap();
    state.answered(request, false, OK, time);
    state
}

fn read(state: &mut State, request: u64) {
    state.read("apples", (request, "A", 0, true), 1.0);
    state.read("apples", (request, "A", 0, true), 1.0);
    state.answered(request, true, OK, 1.0);
}

#[test]
fn all_is_well() {
    assert_eq!(complaints(&served_in(0.02), 1.0), "");
}

#[test]
fn each_fault_is_a_complaint() {
    let mut state = served_in(0.02);
    state.read("apples", (2, "A", 1, false), 1.0);
    state.write("apples", 2, 1, 1.0);
    state.killed("A", 1.0);
    let text = complaints(&state, 1.0);
    for fault in ["1 updates were lost", "did not grow", "no longer served"] {
        assert!(text.contains(fault), "{text}");
    }

    let mut state = served_in(0.02);
    (2..2 + MANY).for_each(|request| read(&mut state, request));
    assert_eq!(complaints(&state, 1.0), "", "requests of no customer are not counted");
    for _ in 0..MANY {
        let request = state.arrived("apples", 1.0).unwrap();
        read(&mut state, request);
    }
    assert_eq!(complaints(&state, 1.0), "no two reads were served together");

    assert!(complaints(&served_in(9.0), 9.0).contains("not served for 9.0 s"));
    assert_eq!(complaints(&State::new(&["A"], &["apples"], true), 1.0), "no order was served");
}

#[test]
fn requests_that_still_wait_count() {
    let mut state = served_in(0.02);
    state.arrived("apples", 1.0);
    assert!(complaints(&state, 8.0).contains("not served for 7.0 s"));
}
