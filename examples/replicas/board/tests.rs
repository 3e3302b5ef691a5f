use super::*;

const ITEM: &str = "apples";

fn state() -> State {
    State::new(&["A", "B"], &[ITEM], true)
}

#[test]
fn one_after_the_other_loses_nothing() {
    let mut state = state();
    for (at, replica, token) in [(0.0, "A", 1), (1.0, "B", 2)] {
        let request = state.arrived(ITEM, at).unwrap();
        assert_eq!(state.items[0].queued(), 1);
        let sold = state.read(ITEM, (request, replica, token, false), at + 0.25).unwrap();
        assert_eq!(state.items[0].queued(), 0);
        state.write(ITEM, request, sold + 1, at + 0.5).unwrap();
        state.answered(request, false, OK, at + 0.75);
    }
    let item = &state.items[0];
    assert_eq!((item.sold, item.writes, state.lost(), item.most_at_once, item.tokens_back), (2, 2, 0, 1, 0));
    assert_eq!((state.ok, state.replicas[0].served, state.replicas[1].served), (2, 1, 1));
    assert_eq!((state.wait(1), state.wait(99)), (Some(250.0), Some(250.0)));
    assert_eq!(item.pause(9.0), 0.5, "without a waiter there is no pause");
    assert_eq!((state.spans_after(0).len(), state.spans_after(1).len(), state.newest_span()), (2, 1, 2));
}

#[test]
fn waits_are_of_the_nearest_rank() {
    let mut state = state();
    assert_eq!(state.wait(50), None);
    state.waits = [(10, 3), (9000, 1)].into();
    assert_eq!((state.wait(75), state.wait(76)), (Some(1.0), Some(900.0)));
}

#[test]
fn two_at_once_lose_an_update() {
    let mut state = state();
    let both = [state.arrived(ITEM, 0.0).unwrap(), state.arrived(ITEM, 0.0).unwrap()];
    let read = both.map(|request| state.read(ITEM, (request, "A", 0, false), 0.0).unwrap());
    both.into_iter().zip(read).for_each(|(request, sold)| state.write(ITEM, request, sold + 1, 0.0).unwrap());
    assert_eq!((state.lost(), state.items[0].most_at_once), (1, 2));
}

#[test]
fn a_killed_replica_holds_until_another_one_does() {
    let mut state = state();
    let (first, second) = (state.arrived(ITEM, 0.0).unwrap(), state.arrived(ITEM, 0.0).unwrap());
    state.read(ITEM, (first, "B", 7, false), 0.0).unwrap();
    assert!(state.has_begun("B", 0.5, 1.0) && !state.has_begun("A", 0.5, 1.0) && !state.has_begun("B", 1.0, 1.0));
    state.killed("B", 1.0);
    state.answered(first, false, "replica died", 1.0);
    assert!(state.items[0].holds[0].dead && state.items[0].queued() == 1);

    let sold = state.read(ITEM, (second, "A", 8, false), 2.0).unwrap();
    state.write(ITEM, second, sold + 1, 2.5).unwrap();
    let item = &state.items[0];
    assert_eq!((item.holds.len(), item.pause(2.5), item.most_at_once), (0, 2.5, 1));
    let dead: Vec<bool> = state.spans_after(0).iter().map(|span| span.hold.dead).collect();
    assert!(item.served_since_kill && dead == [true, false], "{dead:?}");
    assert_eq!(state.refused["replica died"], 1);
}

#[test]
fn tokens_that_do_not_grow_are_noticed() {
    let mut state = state();
    for token in [5, 6, 6, 4, 7] {
        state.read(ITEM, (1, "A", token, false), 0.0).unwrap();
    }
    assert_eq!(state.items[0].tokens_back, 2);
}

#[test]
fn readers_are_at_work_together_and_a_write_tears_their_view() {
    let mut state = state();
    let [first, second, writer] = [(); 3].map(|()| state.arrived(ITEM, 0.0).unwrap());
    // In the other order of their tokens.
    state.read(ITEM, (first, "A", 2, true), 0.0).unwrap();
    state.read(ITEM, (second, "B", 1, true), 0.0).unwrap();
    let item = &state.items[0];
    assert_eq!((item.most_readers, item.most_at_once, item.tokens_back, item.holds.len()), (2, 0, 0, 2));
    assert!(!state.has_begun("A", 0.0, 1.0), "it is no order");
    state.read(ITEM, (first, "A", 2, true), 1.0).unwrap();
    state.answered(first, true, OK, 1.0);
    assert_eq!((state.ok, state.reads, state.torn(), state.items[0].holds.len()), (0, 1, 0, 1));

    let sold = state.read(ITEM, (writer, "A", 2, false), 2.0).unwrap();
    state.write(ITEM, writer, sold + 1, 3.0).unwrap();
    state.read(ITEM, (second, "B", 1, true), 4.0).unwrap();
    let item = &state.items[0];
    assert_eq!((state.torn(), item.most_at_once, item.tokens_back), (1, 2, 1), "the writer was beside a reader");
}

#[test]
fn unknown_items_are_refused() {
    let mut state = state();
    assert_eq!(state.arrived("coal", 0.0), None);
    assert_eq!(state.read("coal", (1, "A", 1, false), 0.0), None);
    assert_eq!(state.write("coal", 1, 1, 0.0), None);
}

#[test]
fn the_page_gets_what_it_shows() {
    let mut state = state();
    let request = state.arrived(ITEM, 0.0).unwrap();
    state.read(ITEM, (request, "A", u64::MAX, false), 0.0).unwrap();
    let shown = serde_json::to_value(&state).unwrap();
    assert_eq!(shown["items"][0]["holds"][0]["token"], u64::MAX.to_string(), "no script can hold such a number");
    state.write(ITEM, request, 1, 1.0).unwrap();
    let span = serde_json::to_value(state.spans_after(0)[0]).unwrap();
    assert_eq!((&span["replica"], &span["from"], &span["to"]), (&"A".into(), &0.0.into(), &1.0.into()));
}
