//! Ctrl-C: every program prints its summary, stops its children, and leaves nothing behind.

use crate::run::{
    HAND_OVER, LEADER, LEASE, NIGHTLY, PAYMENTS, QUICKSTART, REPLICAS, REPORTING, Run, SAGA, WORKITEMS, together,
};

#[test]
fn programs_end_early() {
    let on = |program: &str, uri: &str, sign: &str| Run::interrupted(program, &["--mongodb", uri], sign);
    let lasting = |program: &str, uri: &str| {
        let arguments = ["--mongodb", uri, "--lease", LEASE];
        // While a child is frozen.
        Run::interrupted(program, &arguments, "FALLS ASLEEP")
    };
    together(&[
        ("leader", &|uri| lasting(LEADER, uri).assert_interrupted("overlaps")),
        ("quickstart", &|uri| on(QUICKSTART, uri, "waited").assert_interrupted("overlaps")),
        ("replicas", &|uri| on(REPLICAS, uri, "1 s ").assert_interrupted("lost updates")),
        ("reporting", &|uri| on(REPORTING, uri, "called by").assert_interrupted("overlaps")),
        // While a request of a replica that was killed is not yet repeated.
        ("payments", &|uri| on(PAYMENTS, uri, "is KILLED").assert_interrupted("charged twice")),
        ("workitems", &|uri| on(WORKITEMS, uri, "saves").assert_interrupted("lost edits")),
        ("saga", &|uri| lasting(SAGA, uri).assert_interrupted("lost steps")),
        ("hand-over", &|uri| on(HAND_OVER, uri, "holds").assert_interrupted("overlaps")),
        ("quickstart without a server", &|_| {
            Run::interrupted(QUICKSTART, &[], "waited").assert_interrupted("overlaps");
        }),
        ("a shop without a server", &|_| {
            Run::interrupted(REPLICAS, &[], "1 s ").assert_interrupted("lost updates");
        }),
        ("nightly", &|_| Run::interrupted(NIGHTLY, &[], "night 1").assert_interrupted("made twice")),
        ("a shop that serves until Ctrl-C is complete", &|_| {
            Run::interrupted(REPLICAS, &["--serve"], "1 s ").assert_proved(&["lost updates    0"]);
        }),
        ("a page that stays until Ctrl-C", &|_| {
            let sign = "the page stays until Ctrl-C: http://";
            let run = Run::interrupted(REPLICAS, &["--seconds", "2", "--stay"], sign);
            run.assert_proved(&["lost updates    0"]);
        }),
    ]);
}
