use super::*;

const ITEM: &str = "apples";

fn state() -> (State, Instant) {
    let start = Instant::now();
    (State::new(&["A", "B"], &[ITEM], true, start), start)
}

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

#[test]
fn one_after_the_other_loses_nothing() {
    let (mut state, start) = state();
    for (step, replica) in [(0, "A"), (100, "B")] {
        let at = start + millis(step);
        let request = state.arrived(ITEM, at).unwrap();
        let sold = state.read(ITEM, request, replica, step + 1, at + millis(10)).unwrap();
        assert_eq!(state.queued(), 0);
        state.write(ITEM, request, sold + 1, at + millis(30)).unwrap();
        state.answered(request, false, OK, at + millis(31));
    }
    let item = &state.items[0];
    assert_eq!((item.sold, item.writes, state.lost(), item.most_at_once, item.tokens_back), (2, 2, 0, 1, 0));
    assert_eq!((state.total.ok, state.replicas[0].served, state.replicas[1].served), (2, 1, 1));
    assert_eq!(state.total.waits.percentile(99), Some(millis(10)));
    assert_eq!(item.longest_pause, millis(30), "without a waiter there is no pause");
    assert_eq!((state.spans.len(), state.spans[1].number), (2, 2));
}

#[test]
fn two_at_once_lose_an_update() {
    let (mut state, now) = state();
    let both = [state.arrived(ITEM, now).unwrap(), state.arrived(ITEM, now).unwrap()];
    assert_eq!(state.queued(), 2);
    let read = both.map(|request| state.read(ITEM, request, "A", 0, now).unwrap());
    both.into_iter().zip(read).for_each(|(request, sold)| state.write(ITEM, request, sold + 1, now).unwrap());
    assert_eq!((state.lost(), state.items[0].most_at_once), (1, 2));
}

#[test]
fn a_killed_replica_holds_until_another_one_does() {
    let (mut state, start) = state();
    let (first, second) = (state.arrived(ITEM, start).unwrap(), state.arrived(ITEM, start).unwrap());
    state.read(ITEM, first, "B", 7, start).unwrap();
    assert!(state.has_begun("B", start, millis(5)) && !state.has_begun("A", start, millis(5)));
    assert!(!state.has_begun("B", start + millis(5), millis(5)));
    state.killed("B", start + millis(5));
    state.answered(first, false, "502 replica died", start + millis(6));
    assert!(state.items[0].holds[0].dead);
    assert_eq!(state.queued(), 1);

    let sold = state.read(ITEM, second, "A", 8, start + millis(2000)).unwrap();
    state.write(ITEM, second, sold + 1, start + millis(2020)).unwrap();
    let item = &state.items[0];
    assert_eq!((item.holds.len(), item.longest_pause, item.most_at_once), (0, millis(2020), 1));
    assert!(item.served_since_kill && state.spans[0].dead && !state.spans[1].dead);
    assert_eq!(state.total.refused["502 replica died"], 1);
}

#[test]
fn tokens_that_do_not_grow_are_noticed() {
    let (mut state, now) = state();
    for token in [5, 6, 6, 4, 7] {
        state.read(ITEM, 1, "A", token, now).unwrap();
    }
    assert_eq!(state.items[0].tokens_back, 2);
}

#[test]
fn readers_are_at_work_together_and_a_write_tears_their_view() {
    let (mut state, start) = state();
    let [first, second, writer] = [(); 3].map(|()| state.arrived(ITEM, start).unwrap());
    // In the other order of their tokens.
    state.look(ITEM, first, "A", 2, start).unwrap();
    state.look(ITEM, second, "B", 1, start).unwrap();
    let item = &state.items[0];
    assert_eq!((item.most_readers, item.most_at_once, item.tokens_back, item.holds.len()), (2, 0, 0, 2));
    assert!(!state.has_begun("A", start, millis(5)), "it is no order");
    state.look(ITEM, first, "A", 2, start + millis(20)).unwrap();
    state.answered(first, true, OK, start + millis(21));
    assert_eq!((state.total.ok, state.total.reads, state.torn(), state.items[0].holds.len()), (0, 1, 0, 1));
    assert!(state.spans[0].reads);

    let sold = state.read(ITEM, writer, "A", 2, start + millis(30)).unwrap();
    state.write(ITEM, writer, sold + 1, start + millis(40)).unwrap();
    state.look(ITEM, second, "B", 1, start + millis(50)).unwrap();
    let item = &state.items[0];
    assert_eq!((state.torn(), item.most_at_once, item.tokens_back), (1, 2, 1), "the writer was beside a reader");
}

#[test]
fn unknown_items_are_refused() {
    let (mut state, now) = state();
    assert_eq!(state.arrived("coal", now), None);
    assert_eq!(state.read("coal", 1, "A", 1, now), None);
    assert_eq!(state.look("coal", 1, "A", 1, now), None);
    assert_eq!(state.write("coal", 1, 1, now), None);
}
