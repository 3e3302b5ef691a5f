//! A process for each check, as `cargo nextest` runs them.

use serde_json::Value;

use super::program::{Directory, command};

pub(crate) const TESTS: &[(&str, fn())] = &[("processes_of_a_run_add_to_one_report", processes_add_to_one_report)];

fn processes_add_to_one_report() {
    let directory = Directory::new();
    let checks = ["C5_fencing::across_release", "C6_constant_token::of_its_own_grant", "C7_owner::not_re_entrant"];
    let report = |run: &str, checks: &[&str]| {
        let processes = checks.iter().map(|check| {
            let mut command = command("sound");
            command.args(["--exact", &format!("sound::{check}"), "--report", directory.argument()]);
            command.env("NEXTEST_RUN_ID", run).stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
            command.spawn().expect("it starts")
        });
        for mut process in processes.collect::<Vec<_>>() {
            assert!(process.wait().expect("it ends").success());
        }
        let sound: Value = serde_json::from_str(&directory.read("sound.json")).expect("JSON");
        let checks = sound["checks"].as_array().expect("a list").iter();
        checks.map(|check| check["name"].as_str().expect("a name").to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(report("first", &checks), checks);
    // Another run starts a new report.
    assert_eq!(report("second", &checks[1..]), checks[1..]);
    let runs = std::fs::read_dir(directory.path().join("parts/sound")).expect("the parts").count();
    assert_eq!(runs, 1, "the parts of a run that is over are still there");
    assert!(
        directory.read("index.html").contains("not_re_entrant") || directory.read("index.html").contains("not_<wbr/>")
    );
}
