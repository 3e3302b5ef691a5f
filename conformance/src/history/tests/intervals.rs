//! Violations that the interval checks find. The linearizability checker agrees where it can.

use super::*;

const BOTH: [&str; 2] = ["overlap", "not linearizable"];

#[test]
fn a_good_history_passes_in_any_order_of_recording() {
    let good = [
        held(2, 7, [3, 20, 30, 31]).queued(9),
        held(1, 3, [0, 1, 10, 11]),
        held(1, 1, [5, 6, 25, 26]).on("other"),
        busy(3, 4, 8),
        held(1, 5, [8, 11, 19, 21]),
        not_granted(3, 12, 15),
        wrote(1, 3, 2, 3),
        wrote(1, 5, 12, 13),
        wrote(2, 7, 21, 22),
        call(1, 40, 41, CallKind::Left { held: false, waiting: 0 }),
    ];
    assert!(kinds_with(&good, 4, 2).is_empty(), "{:?}", kinds_with(&good, 4, 2));
}

#[test]
fn an_overlap_is_found_even_behind_a_short_hold() {
    assert_eq!(kinds(&[held(1, 1, [0, 0, 10, 10]), held(2, 2, [0, 9, 12, 12])]), BOTH);
    let late = [held(1, 1, [0, 0, 50, 51]), held(2, 2, [1, 60, 70, 71]), held(3, 3, [2, 65, 80, 81])];
    assert_eq!(kinds(&late), BOTH);
    let behind = [held(1, 1, [0, 0, 100, 101]), held(2, 2, [0, 10, 20, 21]), held(3, 3, [0, 50, 60, 61])];
    assert_eq!(kinds(&behind), ["overlap", "overlap", "not linearizable"]);
}

#[test]
fn one_client_that_holds_twice_overlaps_too() {
    assert_eq!(kinds(&[held(1, 1, [0, 0, 10, 10]), held(1, 2, [0, 5, 15, 15])]), BOTH);
}

#[test]
fn a_hold_without_an_end_continues() {
    let open = held_until(1, 1, [0, 1, 30], End::Open);
    assert_eq!(kinds(&[open.clone(), held(2, 2, [0, 9, 12, 12])]), BOTH);
    // After the last certain moment only the linearizability checker objects: the lease did not
    // end.
    assert_eq!(kinds(&[open, held(2, 2, [0, 40, 50, 50])]), ["not linearizable"]);
    for end in [End::Lost, End::Unknown] {
        assert!(kinds(&[held_until(1, 1, [0, 1, 30], end), held(2, 2, [0, 40, 50, 50])]).is_empty());
    }
}

#[test]
fn a_token_that_goes_back_is_found_even_after_a_detour() {
    let back = [held(1, 5, [0, 0, 10, 10]), held(2, 4, [10, 10, 20, 20])];
    assert_eq!(kinds(&back)[0], "token back");
    let detour = [held(1, 5, [0, 1, 9, 9]), held(2, 2, [10, 11, 20, 20]), held(1, 3, [21, 22, 30, 30])];
    assert_eq!(kinds(&detour), ["token back", "token back", "not linearizable"]);
}

#[test]
fn a_token_used_twice_is_found() {
    let same = [held(1, 5, [0, 0, 10, 10]), held(2, 5, [11, 11, 20, 20])];
    assert_eq!(kinds(&same), ["same token", "not linearizable"]);
    let [first, second] = same;
    assert!(kinds(&[first, second.on("other")]).is_empty());
}

#[test]
fn a_register_that_goes_back_is_found() {
    let holds = [held(1, 5, [0, 1, 10, 11]), held(2, 6, [2, 12, 20, 21])];
    let with = |writes: &[Call]| kinds(&[&holds[..], writes].concat());
    assert!(with(&[wrote(1, 5, 2, 3), wrote(2, 6, 13, 14)]).is_empty());
    assert_eq!(with(&[wrote(1, 5, 15, 16), wrote(2, 6, 13, 14)]), ["register back"]);
    // The order of two overlapping writes is unknown.
    assert!(with(&[wrote(1, 5, 13, 16), wrote(2, 6, 13, 14)]).is_empty());
    assert_eq!(with(&[wrote(2, 6, 13, 14), wrote(2, 6, 14, 15), wrote(1, 5, 17, 18)]), ["register back"]);
}

#[test]
fn busy_needs_a_possible_holder() {
    let hold = held(1, 1, [10, 12, 20, 22]);
    for (asked, answered) in [(0, 10), (11, 11), (13, 19), (22, 30)] {
        assert!(kinds(&[hold.clone(), busy(2, asked, answered)]).is_empty(), "{asked}..{answered}");
    }
    for (asked, answered) in [(0, 9), (23, 30)] {
        let found = kinds(&[hold.clone(), busy(2, asked, answered)]);
        assert_eq!(found, ["busy without holder", "not linearizable"], "{asked}..{answered}");
    }
    assert_eq!(kinds(&[hold.on("other"), busy(2, 13, 19)]), ["busy without holder", "not linearizable"]);
}

#[test]
fn a_batched_attempt_may_give_way_to_a_pending_call_of_its_client_only() {
    let pending = busy(1, 12, 19);
    let holds = held(3, 1, [15, 16, 17, 18]);
    for (asked, answered) in [(11, 12), (13, 14), (19, 20)] {
        let of_client = |client| [pending.clone(), holds.clone(), call(client, asked, answered, CallKind::GaveWay)];
        assert!(kinds(&of_client(1)).is_empty(), "{asked}..{answered}");
        let found = kinds(&of_client(2));
        assert_eq!(found, ["busy without holder", "not linearizable"], "{asked}..{answered}");
    }
    let alone = [holds, wrote(1, 1, 20, 22), call(1, 20, 21, CallKind::GaveWay)];
    assert_eq!(kinds(&alone), ["busy without holder", "not linearizable"]);
}

#[test]
fn an_unknown_outcome_is_a_possible_holder() {
    assert!(kinds(&[not_granted(1, 5, 8), busy(2, 100, 110)]).is_empty());
    assert!(kinds(&[not_granted(1, 5, 8).unanswered(), busy(2, 100, 110)]).is_empty());
    assert_eq!(kinds(&[not_granted(1, 120, 130), busy(2, 100, 110)]), ["busy without holder", "not linearizable"]);
    for end in [End::Lost, End::Unknown, End::Open] {
        assert!(kinds(&[held_until(1, 1, [0, 1, 5], end), busy(2, 100, 110)]).is_empty());
    }
}

#[test]
fn a_later_waiter_is_not_served_first() {
    let holder = held(1, 1, [0, 1, 30, 31]);
    let in_order = [holder.clone(), held(2, 2, [2, 32, 40, 41]).queued(5), held(3, 3, [6, 42, 50, 51])];
    assert!(kinds(&in_order).is_empty());
    let swapped = [holder.clone(), held(2, 3, [2, 42, 50, 51]).queued(5), held(3, 2, [6, 32, 40, 41])];
    assert_eq!(kinds(&swapped), ["overtaken"]);
    // A request from before the other one had its ticket may have been first.
    let unclear = [holder.clone(), held(2, 3, [2, 42, 50, 51]).queued(7), held(3, 2, [6, 32, 40, 41])];
    assert!(kinds(&unclear).is_empty());
    let starved = not_granted(2, 2, 90).queued(5);
    let later = held(3, 2, [6, 32, 40, 41]);
    assert_eq!(kinds(&[holder.clone(), starved.clone(), later.clone()]), ["overtaken"]);
    assert_eq!(kinds(&[holder.clone(), starved.unanswered(), later.clone()]), ["overtaken"]);
    // A waiter that had left was not overtaken.
    assert!(kinds(&[holder, not_granted(2, 2, 20).queued(5), later]).is_empty());
}

#[test]
fn what_is_left_behind_is_found() {
    let left = |held, waiting| call(1, 50, 51, CallKind::Left { held, waiting });
    let over = [held(1, 1, [0, 1, 10, 11]), not_granted(2, 2, 5)];
    let with = |seen: Call| kinds(&[&over[..], &[seen]].concat());
    assert!(with(left(false, 0)).is_empty());
    assert_eq!(with(left(true, 0)), ["left behind"]);
    assert_eq!(with(left(false, 1)), ["left behind"]);
    // An acquisition that has not ended leaves nothing behind.
    assert!(kinds(&[held_until(1, 1, [0, 1, 40], End::Open), left(true, 0)]).is_empty());
    assert!(kinds(&[not_granted(2, 2, 5).unanswered(), left(false, 1)]).is_empty());
}

#[test]
fn an_empty_history_proves_nothing() {
    assert_eq!(kinds_with(&[], 1, 0), ["few grants"]);
    assert_eq!(kinds_with(&[held(1, 1, [0, 1, 10, 11])], 2, 0), ["few grants"]);
    // A grant that had ended when it arrived proves nothing.
    assert_eq!(kinds_with(&[held(1, 1, [0, 10, 10, 11])], 1, 0), ["few grants"]);
}

#[test]
fn without_contention_nothing_is_proved() {
    let apart = [held(1, 1, [0, 1, 10, 11]), held(2, 2, [12, 13, 20, 21])];
    assert_eq!(kinds_with(&apart, 2, 1), ["little contention"]);
    let waited = [held(1, 1, [0, 1, 10, 11]), held(2, 2, [5, 13, 20, 21]), busy(3, 6, 7)];
    assert!(kinds_with(&waited, 2, 2).is_empty());
    assert_eq!(kinds_with(&waited, 2, 3), ["little contention"]);
}

#[test]
fn the_calls_that_show_it_are_written_out() {
    let found = violations(&[held(1, 7, [0, 1, 10, 11]), held(2, 8, [2, 4, 9, 12])], Expected::default());
    let shown: Vec<String> = found[0].calls().iter().map(ToString::to_string).collect();
    let first = "client 1, \"k\": asked at 0ns, granted token 7 at 1ms, held until 10ms, released by 11ms";
    let second = "client 2, \"k\": asked at 2ms, granted token 8 at 4ms, held until 9ms, released by 12ms";
    assert_eq!(shown, [first, second]);
}
