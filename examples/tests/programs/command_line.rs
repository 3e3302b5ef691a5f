//! Options, good and bad.

use crate::run::{ALL, LEADER, NIGHTLY, PAYMENTS, QUICKSTART, REPLICAS, REPORTING, Run, SAGA, WORKITEMS};

#[test]
fn every_program_has_help() {
    for program in ALL {
        for help in ["--help", "-h"] {
            let run = Run::of(program, &[help]);
            let name = program.rsplit('/').next().unwrap();
            assert!(run.code == Some(0) && run.text.starts_with(&format!("usage: {name} ")), "{}", run.all());
            run.assert_narrow();
        }
    }
}

#[test]
fn an_unknown_option_is_an_error_that_shows_the_usage() {
    for program in ALL {
        for (arguments, problem) in [(["--no-such"], "there is no option --no-such"), (["word"], "\"word\"")] {
            let run = Run::of(program, &arguments);
            assert!(run.code == Some(1) && run.text.is_empty(), "{}", run.all());
            assert!(run.errors.contains(problem) && run.errors.contains("usage: "), "{}", run.all());
        }
    }
}

#[test]
fn a_value_out_of_range_is_an_error_that_names_the_range() {
    for (program, arguments, problem) in [
        (QUICKSTART, ["--workers", "1"], "--workers takes a number from 2 to 8, not \"1\""),
        (PAYMENTS, ["--payments", "1"], "--payments takes a number from 20 to 10000, not \"1\""),
        (REPLICAS, ["--seconds", "0"], "--seconds takes a number from 2 to 600, not \"0\""),
        (REPLICAS, ["--rate", "1"], "--rate takes a number from 2 to 500, not \"1\""),
        (REPORTING, ["--months", "1"], "--months takes a number from 2 to 12, not \"1\""),
        (WORKITEMS, ["--items", "1"], "--items takes a number from 12 to 99, not \"1\""),
        (LEADER, ["--writes", "2"], "--writes takes a number from 3 to 1000, not \"2\""),
        (LEADER, ["--lease", "0"], "--lease takes a number from 1 to 30, not \"0\""),
        (SAGA, ["--orders", "x"], "--orders takes a number from 12 to 1000, not \"x\""),
    ] {
        let run = Run::of(program, &arguments);
        assert!(run.code == Some(1) && run.text.is_empty() && run.errors.contains(problem), "{}", run.all());
    }
}

#[test]
fn a_connection_string_that_is_none_is_not_quoted() {
    // `nightly` needs no server.
    for program in ALL.into_iter().filter(|program| *program != NIGHTLY) {
        let run = Run::of(program, &["--mongodb", "mongo://me:secret@host"]);
        assert!(run.code == Some(1) && run.errors.contains("MongoDB"), "{}", run.all());
        assert!(!run.errors.contains("secret"), "{}", run.all());
    }
}
