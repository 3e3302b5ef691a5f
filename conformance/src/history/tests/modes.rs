//! Histories of shared locks and permits. A legal overlap passes, and each illegal one is reported.

use super::*;

const BOTH: [&str; 2] = ["overlap", "not linearizable"];

/// Held without a wait from `from` on, and released at `until`.
fn at(client: usize, token: u64, from: u64, until: u64) -> Call {
    held(client, token, [from, from, until, until])
}

#[test]
fn readers_hold_together() {
    let readers = [at(1, 1, 0, 30).shared(), at(2, 2, 5, 20).shared(), at(3, 3, 10, 40).shared()];
    assert!(kinds_with(&readers, 3, 0).is_empty(), "{:?}", kinds_with(&readers, 3, 0));
    // That is no contention.
    assert_eq!(kinds_with(&readers, 3, 1), ["little contention"]);
    let writer = held(4, 4, [12, 41, 50, 50]);
    assert!(kinds_with(&[&readers[..], &[writer]].concat(), 4, 1).is_empty());
}

#[test]
fn a_writer_beside_a_reader_is_found_either_way() {
    assert_eq!(kinds(&[at(1, 1, 0, 30).shared(), at(2, 2, 20, 40)]), BOTH);
    assert_eq!(kinds(&[at(1, 1, 0, 30), at(2, 2, 20, 40).shared()]), BOTH);
    // Behind a reader that ended before.
    let behind = [at(1, 1, 0, 60).shared(), at(2, 2, 5, 10).shared(), at(3, 3, 50, 70)];
    assert_eq!(kinds(&behind), BOTH);
    assert_eq!(kinds(&[at(1, 1, 0, 30).shared(), at(2, 2, 20, 40).permits(1, 9)]), BOTH);
    assert_eq!(kinds(&[at(1, 1, 0, 30), at(2, 2, 20, 40).permits(1, 9)]), BOTH);
}

#[test]
fn permits_are_counted() {
    let three = [at(1, 1, 0, 30).permits(1, 3), at(2, 2, 5, 40).permits(2, 3), at(3, 3, 31, 50).permits(1, 3)];
    assert!(kinds(&three).is_empty(), "{:?}", kinds(&three));
    let four = [at(1, 1, 0, 30).permits(1, 3), at(2, 2, 5, 40).permits(2, 3), at(3, 3, 29, 50).permits(1, 3)];
    assert_eq!(kinds(&four), ["too many permits", "not linearizable"]);
    let found = violations(&four, Expected::default());
    assert_eq!(found[0].to_string(), "4 permits were held at the same time, and the last was granted 1 of 3 permits");
    assert_eq!(found[0].calls(), four);
}

#[test]
fn each_request_counts_by_its_own_number() {
    let fewer_last = [at(1, 1, 0, 30).permits(2, 10), at(2, 2, 5, 40).permits(1, 2)];
    assert_eq!(kinds(&fewer_last), ["too many permits", "not linearizable"]);
    let fewer_first = [at(1, 1, 0, 30).permits(1, 2), at(2, 2, 5, 40).permits(5, 10)];
    assert!(kinds(&fewer_first).is_empty());
    // The tokens show the order of two grants whose answers came the other way round.
    let answers_swapped = [held(1, 1, [0, 9, 30, 30]).permits(1, 2), held(2, 2, [0, 5, 40, 40]).permits(5, 10)];
    assert!(kinds(&answers_swapped).is_empty());
}

#[test]
fn a_grant_in_flight_is_no_certain_hold() {
    // The first release may have come before the second grant.
    assert!(kinds(&[held(1, 1, [0, 1, 10, 30]).shared(), held(2, 2, [5, 12, 20, 21])]).is_empty());
    assert!(kinds(&[held(1, 1, [0, 1, 10, 30]).permits(2, 2), held(2, 2, [5, 12, 20, 21]).permits(1, 2)]).is_empty());
}

#[test]
fn tokens_of_modes_that_exclude_each_other_increase() {
    for (first, later) in [
        (at(1, 5, 0, 10).shared(), at(2, 4, 11, 20)),
        (at(1, 5, 0, 10), at(2, 4, 11, 20).shared()),
        (at(1, 5, 0, 10).permits(1, 2), at(2, 4, 11, 20).shared()),
        (at(1, 5, 0, 10), at(2, 4, 11, 20).permits(1, 2)),
    ] {
        assert_eq!(kinds(&[first.clone(), later.clone()]), ["token back", "not linearizable"], "{first}; {later}");
    }
    // A writer's token is above those of all readers before it, not only above the last one's.
    let behind = [at(1, 5, 0, 10).shared(), at(2, 3, 1, 12).shared(), at(3, 4, 20, 30)];
    assert_eq!(kinds(&behind)[0], "token back");
}

#[test]
fn tokens_of_a_mode_increase_from_grant_to_request() {
    let readers = |later| [at(1, 5, 0, 40).shared(), at(2, later, 10, 20).shared()];
    assert!(kinds(&readers(6)).is_empty());
    assert_eq!(kinds(&readers(4)), ["token back"]);
    let permits = |later| [at(1, 5, 0, 40).permits(1, 2), at(2, later, 10, 20).permits(1, 2)];
    assert!(kinds(&permits(6)).is_empty());
    assert_eq!(kinds(&permits(4)), ["token back", "not linearizable"]);
    // The order of two requests at the same time is unknown.
    assert!(kinds(&[held(1, 5, [0, 10, 40, 40]).shared(), held(2, 4, [9, 12, 20, 20]).shared()]).is_empty());
    assert!(kinds(&[held(1, 5, [0, 10, 40, 40]).permits(1, 2), held(2, 4, [9, 12, 20, 20]).permits(1, 2)]).is_empty());
}

/// Guards of one client may share a lease, and its block of tokens.
#[test]
fn a_client_may_have_reserved_tokens_for_its_readers() {
    let block = at(1, 1, 0, 50).shared();
    let other = at(2, 9, 10, 20).shared();
    let joined = at(1, 2, 30, 60).shared();
    assert!(kinds(&[block.clone(), other.clone(), joined.clone()]).is_empty());
    // A new lease has tokens above all before it.
    let block = at(1, 1, 0, 25).shared();
    assert_eq!(kinds(&[block, other, joined]), ["token back"]);
}

#[test]
fn two_readers_with_one_token_are_found() {
    let same = [at(1, 5, 0, 30).shared(), at(2, 5, 0, 40).shared()];
    assert_eq!(kinds(&same), ["same token", "not linearizable"]);
    let same = [at(1, 5, 0, 30).permits(1, 2), at(2, 5, 0, 40).permits(1, 2)];
    assert_eq!(kinds(&same), ["same token", "not linearizable"]);
}

#[test]
fn busy_needs_a_holder_of_another_mode_or_a_waiter() {
    let lied = ["busy without holder", "not linearizable"];
    let reader = at(1, 1, 0, 50).shared();
    assert!(kinds(&[reader.clone(), busy(2, 10, 11)]).is_empty());
    assert!(kinds(&[reader.clone(), busy(2, 10, 11).permits(1, 2)]).is_empty());
    assert_eq!(kinds(&[reader.clone(), busy(2, 10, 11).shared()]), lied);
    // A writer waits ahead, or has waited and left.
    let writer = held(3, 2, [5, 51, 60, 60]);
    assert!(kinds(&[reader.clone(), writer, busy(2, 10, 11).shared()]).is_empty());
    assert!(kinds(&[reader.clone(), not_granted(3, 5, 7), busy(2, 10, 11).shared()]).is_empty());
    assert_eq!(kinds(&[reader.clone(), not_granted(3, 5, 7).shared(), busy(2, 10, 11).shared()]), lied);
    assert_eq!(kinds(&[reader, not_granted(3, 12, 13), busy(2, 10, 11).shared()]), lied);
}

#[test]
fn busy_permits_need_a_sum_or_a_waiter() {
    let lied = ["busy without holder", "not linearizable"];
    let holder = at(1, 1, 0, 50).permits(2, 5);
    assert_eq!(kinds(&[holder.clone(), busy(2, 10, 11).permits(3, 5)]), lied);
    assert!(kinds(&[holder.clone(), busy(2, 10, 11).permits(4, 5)]).is_empty());
    assert!(kinds(&[holder.clone(), busy(2, 10, 11).permits(1, 2)]).is_empty());
    let large = held(3, 2, [5, 51, 60, 60]).permits(4, 5);
    assert!(kinds(&[holder.clone(), large, busy(2, 10, 11).permits(1, 5)]).is_empty());
    // By its own number it waits until all is free.
    let alone = held(3, 2, [5, 51, 60, 60]).permits(1, 1);
    assert!(kinds(&[holder, alone, busy(2, 10, 11).permits(1, 5)]).is_empty());
}

#[test]
fn a_writer_is_not_overtaken_by_a_reader() {
    let reader = at(1, 1, 0, 30).shared();
    let writer = held(2, 3, [2, 32, 40, 41]).queued(5);
    let beside = held(3, 2, [6, 7, 20, 21]).shared();
    assert_eq!(kinds(&[reader.clone(), writer.clone(), beside]), ["overtaken"]);
    let behind = held(3, 4, [6, 42, 50, 51]).shared();
    assert!(kinds(&[reader, writer, behind]).is_empty());
}

/// Readers come and go for a long time, with a writer now and then; some are lost.
#[test]
fn a_long_history_of_readers_is_decided() {
    let (mut calls, mut token) = (Vec::new(), 0);
    for round in 0..200_u64 {
        let begin = round * 100;
        for n in 0..10 {
            token += 1;
            let client = usize::try_from(n).unwrap();
            // The answers come in another order than the tokens.
            let from = begin + (n * 7) % 10;
            let reader = match n {
                3 => held_until(client, token, [begin, from, from + 30], End::Lost),
                7 => held_until(client, token, [begin, from, from + 30], End::Unknown),
                _ => held(client, token, [begin, from, from + 30, from + 40]),
            };
            calls.push(reader.shared());
        }
        token += 1;
        calls.push(held(20, token, [begin + 15, begin + 60, begin + 80, begin + 85]));
        calls.push(busy(21, begin + 20, begin + 30).shared());
        calls.push(busy(22, begin + 62, begin + 70).shared());
        calls.push(not_granted(23, begin + 5, begin + 9).shared());
    }
    assert!(kinds_with(&calls, 2_200, 400).is_empty(), "{:?}", kinds_with(&calls, 2_200, 400).first());
}

/// As above, with permits whose sums leave several orders of the ends.
#[test]
fn a_long_history_of_permits_is_decided() {
    let mut calls = Vec::new();
    for n in 0..1_000_u64 {
        let (at, client) = (n * 10, usize::try_from(n % 4).unwrap());
        let take = if n % 5 == 0 { 2 } else { 1 };
        let end = match n % 10 {
            4 => End::Lost,
            _ => End::Released { asked: ms(at + 25), answered: ms(at + 29) },
        };
        calls.push(held_until(client, n + 1, [at.saturating_sub(30), at, at + 25], end).permits(take, 6));
        calls.push(busy(9, at + 2, at + 3).permits(6, 6));
    }
    assert!(kinds_with(&calls, 1_000, 900).is_empty(), "{:?}", kinds_with(&calls, 1_000, 900).first());
}
