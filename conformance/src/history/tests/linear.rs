//! Violations that only the linearizability checker finds.

use super::super::linear;
use super::*;

#[test]
fn the_order_of_answers_is_not_the_order_of_effects() {
    // The answer to the second grant arrives while the first release is still pending.
    assert!(kinds(&[held(1, 1, [0, 1, 10, 30]), held(2, 2, [5, 12, 20, 21])]).is_empty());
    // An attempt that was busy although the lock was granted only to a later request, which was
    // answered sooner.
    assert!(kinds(&[busy(1, 0, 20), held(2, 1, [10, 12, 30, 31])]).is_empty());
}

#[test]
fn tokens_can_exclude_a_possible_holder() {
    // By the tokens 3 was granted before 1, so the lock was free when 2 was answered "busy".
    let calls = [held(1, 2, [0, 30, 40, 41]), busy(2, 1, 2), held(3, 1, [3, 4, 5, 6])];
    assert_eq!(kinds(&calls), ["not linearizable"]);
}

/// Its release was carried out at once, and answered when others had had the lock.
#[test]
fn a_client_is_busy_until_its_own_release_is_answered() {
    let released = held(1, 1, [0, 1, 10, 60]);
    let meanwhile = held(2, 2, [5, 20, 29, 30]);
    assert!(kinds(&[released.clone(), meanwhile.clone(), busy(1, 40, 41)]).is_empty());
    let gave_way = call(1, 40, 41, CallKind::GaveWay);
    assert!(kinds(&[released.clone(), meanwhile.clone(), gave_way.clone()]).is_empty());
    // After the answer, or to another client, the lock was free.
    for late in [busy(1, 61, 62), call(1, 61, 62, CallKind::GaveWay), busy(3, 40, 41)] {
        assert!(kinds(&[released.clone(), meanwhile.clone(), late]).contains(&"not linearizable"));
    }
    // A release in the background is answered at the latest when the client has the lock again.
    let dropped = held_until(1, 1, [0, 1, 10], End::Unknown);
    assert!(kinds(&[dropped.clone(), meanwhile.clone(), busy(1, 40, 41), gave_way]).is_empty());
    let again = held(1, 3, [42, 43, 44, 45]);
    assert_eq!(kinds(&[dropped, meanwhile, again, busy(1, 50, 51)]), ["not linearizable"]);
}

/// It was handed the lock, has noticed that too late, and has got it again.
#[test]
fn a_long_wait_may_have_missed_its_claim() {
    let history =
        |asked| [held(1, 2, [asked, 1200, 1210, 1211]), busy(2, 900, 901), held(3, 1, [1100, 1101, 1102, 1103])];
    assert!(kinds(&history(100)).is_empty());
    assert_eq!(kinds(&history(300)), ["not linearizable"]);
}

#[test]
fn amid_faults_a_pending_call_may_have_held_the_lock_before() {
    let amid_faults = |calls: &[Call]| violations_amid_faults(calls, Expected::default());
    // Granted first under a claim that was withdrawn, and later under another one.
    let calls = [held(1, 2, [0, 30, 40, 41]), busy(2, 1, 2), held(3, 1, [3, 4, 5, 6])];
    assert_eq!(amid_faults(&calls), []);
    let calls = [not_granted(1, 0, 25), busy(2, 1, 2), held(3, 1, [10, 11, 12, 13]), busy(2, 20, 21)];
    assert_eq!(amid_faults(&calls), []);
    // No call was pending, or only one that fits beside the attempt.
    let late = held_until(1, 1, [0, 1, 5], End::Lost);
    let calls = [late.clone(), held(2, 2, [9, 10, 11, 12]), busy(2, 20, 21), held(3, 3, [22, 23, 24, 25])];
    assert!(!amid_faults(&calls).is_empty());
    let calls = [late, held(2, 2, [9, 10, 11, 12]), busy(2, 20, 21).shared(), held(3, 3, [19, 23, 24, 25]).shared()];
    assert!(!amid_faults(&calls).is_empty());
}

#[test]
fn a_possible_grant_explains_one_hold_and_no_more() {
    // It was busy, free, and busy again: an unconfirmed acquisition can have been granted once.
    let once = [not_granted(1, 0, 5), busy(2, 1, 2), held(3, 1, [10, 11, 12, 13])];
    assert!(kinds(&once).is_empty());
    let twice = [&once[..], &[busy(2, 20, 21)]].concat();
    assert_eq!(kinds(&twice), ["not linearizable"]);
    let two = [&twice[..], &[not_granted(4, 6, 9)]].concat();
    assert!(kinds(&two).is_empty());
}

#[test]
fn a_lost_lease_ends_once_and_for_all() {
    let lost = held_until(1, 1, [0, 1, 5], End::Lost);
    assert!(kinds(&[lost.clone(), busy(2, 6, 8), held(2, 2, [9, 10, 11, 12])]).is_empty());
    // Held again after other holders.
    assert_eq!(kinds(&[lost, held(2, 2, [9, 10, 11, 12]), busy(2, 20, 21)]), ["not linearizable"]);
}

#[test]
fn it_names_the_call_that_fits_nowhere_and_the_holder() {
    let calls = [held(1, 1, [0, 1, 20, 21]), held(2, 2, [2, 5, 9, 10])];
    let found = violations(&calls, Expected::default());
    let Some(Violation::NotLinearizable { stuck, explained, of }) = found.last() else { panic!("{found:?}") };
    assert_eq!((stuck.as_slice(), *explained, *of), (&[calls[1].clone(), calls[0].clone()][..], 1, 4));
}

#[test]
fn a_search_over_the_limit_is_undecided() {
    let calls: Vec<Call> = (0..50).map(|n| held(1, n + 1, [n * 10, n * 10 + 1, n * 10 + 2, n * 10 + 3])).collect();
    let calls: Vec<&Call> = calls.iter().collect();
    assert_eq!(linear::violation(&calls, linear::Answers::Known, linear::STEPS), None);
    let gave_up = linear::violation(&calls, linear::Answers::Known, 20);
    assert_eq!(gave_up, Some(Violation::Undecided { key: "k".into(), steps: 20 }));
}

/// All clients wait at once; some acquisitions are cancelled, some are lost.
#[test]
fn a_long_history_is_decided() {
    let mut calls = Vec::new();
    for n in 0..2_000_u64 {
        let at = n * 10;
        let (asked, client) = (at.saturating_sub(200), usize::try_from(n % 20).unwrap());
        calls.push(match n % 10 {
            3 => held_until(client, n + 1, [asked, at, at + 4], End::Lost),
            7 => held_until(client, n + 1, [asked, at, at + 4], End::Unknown),
            _ => held(client, n + 1, [asked, at, at + 5, at + 8]),
        });
        calls.push(busy(90, at + 1, at + 3));
        if n % 100 == 0 {
            calls.push(not_granted(91, asked, at));
        }
    }
    assert!(kinds_with(&calls, 2_000, 3_000).is_empty());
    // An answer without explanation at the end.
    let end = 2_000 * 10;
    calls.push(held(92, 5_000, [end, end + 1, end + 2, end + 3]));
    calls.push(held(93, 4_999, [end + 4, end + 5, end + 6, end + 7]));
    assert_eq!(kinds(&calls), ["token back", "not linearizable"]);
}
