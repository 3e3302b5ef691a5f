//! The programs do what they promise: nothing is lost or done twice although processes are killed.
//! Without their protection something is, and the programs report it.

use crate::run::{
    HAND_OVER, LEADER, LEASE, NIGHTLY, PAYMENTS, QUICKSTART, REPLICAS, REPORTING, Run, SAGA, TRACES, WORKITEMS,
    together,
};

#[test]
fn nothing_is_lost_or_done_twice_although_processes_die() {
    together(&[
        ("leader", &|uri| {
            let run = Run::of(LEADER, &["--mongodb", uri, "--lease", LEASE]);
            run.assert_proved(&["is KILLED", "FALLS ASLEEP", "which is over: REFUSED", "is to RESIGN"]);
            assert_eq!((run.sum("overlaps"), run.sum("late writes")), (0, 1), "{}", run.text);
            assert!(run.sum("leaders") >= 4 && run.sum("observed") >= run.sum("leaders"), "{}", run.text);
            assert!(run.sum("writes") >= 40, "{}", run.text);
        }),
        ("reporting", &|uri| {
            let run = Run::of(REPORTING, &["--mongodb", uri, "--months", "4", "--lease", LEASE]);
            run.assert_proved(&["is KILLED", "broken off"]);
            assert_eq!((run.sum("API"), run.sum("overlaps"), run.sum("made twice")), (12, 0, 0), "{}", run.text);
            assert_eq!((run.sum("database"), run.sum("missing")), (12, 0), "{}", run.text);
        }),
        // Only the answers of the killed replica are lost. How long the other requests then wait is
        // not checked, because the machine may be slow.
        ("replicas", &|uri| {
            let run = Run::of(REPLICAS, &["--mongodb", uri, "--seconds", "6", "--rate", "20"]);
            assert_eq!(run.sum("lost updates"), 0, "{}", run.all());
            assert!(run.text.contains("is killed") && !run.text.contains("did not grow"), "{}", run.all());
            run.assert_narrow();
        }),
        ("saga", &|uri| {
            let run = Run::of(SAGA, &["--mongodb", uri, "--orders", "12", "--lease", LEASE]);
            run.assert_proved(&["C is KILLED", "D FALLS ASLEEP", "its lock is lost"]);
            let sums = (run.sum("done twice"), run.sum("lost steps"), run.sum("late commits"), run.sum("steps"));
            assert_eq!(sums, (0, 0, 1, 36), "{}", run.text);
        }),
        ("traces", &|uri| {
            let run = Run::of(TRACES, &["--mongodb", uri]);
            run.assert_proved(&["shop     distlock.acquire", "stock", "distlock.hold", "released"]);
            assert!(run.sum("traces") == 2 && !run.text.contains("orders/book"), "{}", run.text);
        }),
        ("traces with keys", &|uri| {
            let run = Run::of(TRACES, &["--mongodb", uri, "--keys"]);
            run.assert_proved(&["orders/book"]);
        }),
        ("nightly", &|_| {
            Run::of(NIGHTLY, &[]).assert_proved(&["anna begins, and DIES", "begins again what anna left"]);
        }),
        ("payments", &|uri| {
            let run = Run::of(PAYMENTS, &["--mongodb", uri, "--payments", "60"]);
            run.assert_proved(&["is KILLED", "180 answers"]);
            assert_eq!((run.sum("ledger"), run.sum("charged twice")), (60, 0), "{}", run.text);
            assert!(run.sum("looked up") > 0 && run.sum("replayed") >= 120, "{}", run.text);
        }),
        ("workitems", &|uri| {
            let run = Run::of(WORKITEMS, &["--mongodb", uri]);
            run.assert_proved(&["boris logs out", "carla is KILLED", "dmitri FALLS ASLEEP", "late: REFUSED"]);
            assert_eq!((run.sum("lost edits"), run.sum("twice"), run.sum("sessions")), (0, 0, 3), "{}", run.text);
            assert!(run.sum("late saves") > 0, "{}", run.text);
        }),
        ("quickstart", &|_| Run::of(QUICKSTART, &["--seconds", "4"]).assert_proved(&["writes late: REFUSED"])),
        ("a shop without a server", &|_| {
            let run = Run::of(REPLICAS, &["--seconds", "2", "--rate", "20"]);
            run.assert_proved(&[]);
            assert_eq!(run.sum("lost updates"), 0, "{}", run.all());
        }),
    ]);
}

#[test]
fn without_their_protection_something_is() {
    together(&[
        ("leader", &|uri| {
            let run = Run::of(LEADER, &["--mongodb", uri, "--no-fence", "--writes", "3", "--lease", LEASE]);
            run.assert_broken("a late write was accepted");
            assert!(run.sum("overlaps") > 0 && run.sum("late writes") == 0, "{}", run.text);
        }),
        ("saga", &|uri| {
            let run = Run::of(SAGA, &["--mongodb", uri, "--no-lock"]);
            run.assert_broken("steps were done twice");
            assert!(run.sum("done twice") > 0, "{}", run.text);
        }),
        ("reporting", &|uri| {
            let run = Run::of(REPORTING, &["--mongodb", uri, "--months", "4", "--no-lock"]);
            run.assert_broken("calls overlapped");
            assert!(run.sum("overlaps") > 0, "{}", run.text);
        }),
        ("payments", &|uri| {
            let run = Run::of(PAYMENTS, &["--mongodb", uri, "--payments", "50", "--no-keys"]);
            run.assert_broken("charges were made too often");
            assert!(run.sum("charged twice") >= 100, "{}", run.text);
        }),
        ("workitems without locks", &|uri| {
            let run = Run::of(WORKITEMS, &["--mongodb", uri, "--no-lock"]);
            run.assert_broken("edits were lost");
            assert!(run.sum("lost edits") > 0, "{}", run.text);
        }),
        ("workitems without a fence", &|uri| {
            let run = Run::of(WORKITEMS, &["--mongodb", uri, "--no-fence"]);
            run.assert_broken("edits were lost");
            assert!(run.sum("lost edits") > 0 && run.sum("late saves") == 0, "{}", run.text);
        }),
        ("replicas", &|_| {
            let run = Run::of(REPLICAS, &["--seconds", "2", "--no-lock"]);
            run.assert_broken("updates were lost");
            assert!(run.sum("lost updates") > 0, "{}", run.all());
        }),
    ]);
}

/// On a server that the program finds or starts itself.
#[test]
fn a_run_can_be_saved() {
    let folder = std::env::temp_dir().join(format!("distlock-picture-{:016x}", fastrand::u64(..)));
    std::fs::create_dir(&folder).unwrap();
    let run = Run::of(HAND_OVER, &["--lease", "3", "--save", &folder.join("new").display().to_string()]);
    let picture = std::fs::read_to_string(folder.join("new.svg"));
    std::fs::remove_dir_all(&folder).unwrap();
    run.assert_proved(&["A is KILLED"]);
    assert_eq!((run.sum("holds"), run.sum("overlaps")), (6, 0), "{}", run.all());
    assert!(picture.unwrap().ends_with("</svg>\n"));
}

/// The picture of the README is the one that the program draws of the recording beside it.
#[test]
fn the_picture_is_that_of_its_recording() {
    let folder = std::env::temp_dir().join(format!("distlock-picture-{:016x}", fastrand::u64(..)));
    std::fs::create_dir(&folder).unwrap();
    let file = folder.join("copy").display().to_string();
    std::fs::write(format!("{file}.json"), include_str!("../../pictures/hand-over.json")).unwrap();
    let run = Run::of(HAND_OVER, &["--draw", &file]);
    let drawn = std::fs::read_to_string(format!("{file}.svg"));
    std::fs::remove_dir_all(&folder).unwrap();
    run.assert_proved(&["is drawn"]);
    let is_same = drawn.unwrap() == include_str!("../../pictures/hand-over.svg");
    assert!(is_same, "draw it again: hand-over --draw examples/pictures/hand-over");
}
