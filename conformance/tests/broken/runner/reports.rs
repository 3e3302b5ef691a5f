//! The files of a report.

use std::collections::HashMap;

use roxmltree::{Document, Node, ParsingOptions};
use serde_json::Value;

use super::program::{Directory, Memory, NASTY, command, finished, ran};

pub(crate) const TESTS: &[(&str, fn())] = &[
    ("json_has_everything", json_has_everything),
    ("junit_is_as_build_servers_read_it", junit_is_as_build_servers_read_it),
    ("the_page_shows_it", the_page_shows_it),
    ("binaries_share_a_directory", binaries_share_a_directory),
    ("a_report_that_cannot_be_written_is_a_failure", unwritable_is_a_failure),
    ("programs_save_reports_too", programs_save_reports_too),
];

/// [`NASTY`] as the name of a file.
const FILE: &str = "a.3cb.3e.26.27.22.fc";
const CHECKS: &str = "C1_exclusion";

fn reported() -> Directory {
    let directory = Directory::new();
    let run = ran("broken", &["--report", directory.argument(), "--seed", "0x5", CHECKS]);
    assert!(!run.succeeded, "{run:?}");
    let names = ["sound.json", "sound.xml", "index.html"].map(str::to_owned);
    let mut expected = [names.to_vec(), vec![format!("{FILE}.json"), format!("{FILE}.xml")]].concat();
    expected.sort();
    assert_eq!(directory.files(), expected);
    directory
}

fn checks(backend: &Value) -> HashMap<&str, &Value> {
    let checks = backend["checks"].as_array().expect("a list");
    checks.iter().map(|check| (check["name"].as_str().expect("a name"), check)).collect()
}

fn json_has_everything() {
    let directory = reported();
    let broken: Value = serde_json::from_str(&directory.read(&format!("{FILE}.json"))).expect("JSON");
    assert_eq!(broken["name"], NASTY);
    assert_eq!((&broken["level"], &broken["seed"]), (&"quick".into(), &"0x0000000000000005".into()));
    assert!(broken["took_ms"].as_f64() > Some(0.0) && broken["started_unix_ms"].as_u64() > Some(1_700_000_000_000));
    let of = checks(&broken);

    let refused = of["C1_exclusion::across_processes"];
    assert_eq!(refused["result"]["refused"], "the state of this backend lives in one process");
    let counter = of["C1_exclusion::counter_under_contention"];
    assert_eq!(counter["clause"], "C1_exclusion");
    assert!(counter["text"].as_str().is_some_and(|text| text.starts_with("exclusion – in the store's commit order")));
    let failed = &counter["result"]["failed"];
    assert!(failed["message"].as_str().is_some_and(|message| message.starts_with("a later grant has a smaller token")));
    assert!(failed["command"].as_str().is_some_and(|command| command.contains("--seed 0x0000000000000005")));
    let shown = failed["shown_by"].as_array().expect("a list");
    let token = |call: &Value| call["what"]["granted"]["token"].as_u64();
    assert!(shown.len() == 2 && token(&shown[0]) > token(&shown[1]), "{shown:?}");
    let history = failed["history"].as_array().expect("a list");
    assert!(shown.iter().all(|call| history.contains(call)), "the history lacks what shows the failure");

    let sound: Value = serde_json::from_str(&directory.read("sound.json")).expect("JSON");
    let counter = checks(&sound)["C1_exclusion::counter_under_contention"];
    assert_eq!(counter["result"], "passed");
    let hand_overs = counter["measures"]["hand_over_us"].as_array().expect("a list");
    assert!(hand_overs.len() > 5 && hand_overs.iter().all(|time| time.as_f64() > Some(0.0)), "{hand_overs:?}");
}

fn children<'a>(node: Node<'a, 'a>, tag: &'a str) -> Vec<Node<'a, 'a>> {
    node.children().filter(|child| child.has_tag_name(tag)).collect()
}

fn junit_is_as_build_servers_read_it() {
    let directory = reported();
    let text = directory.read(&format!("{FILE}.xml"));
    let document = Document::parse(&text).expect("well-formed XML");
    let root = document.root_element();
    assert_eq!(root.tag_name().name(), "testsuites");
    let [suite] = children(root, "testsuite")[..] else { panic!("one suite: {text}") };
    assert_eq!(suite.attribute("name"), Some(NASTY));
    let cases = children(suite, "testcase");
    let count = |tag| cases.iter().filter(|case| !children(**case, tag).is_empty()).count();
    for node in [root, suite] {
        let counts =
            ["tests", "failures", "skipped"].map(|name| node.attribute(name).and_then(|count| count.parse().ok()));
        assert_eq!(counts, [Some(cases.len()), Some(count("failure")), Some(count("skipped"))]);
    }
    assert!(count("failure") >= 1 && count("skipped") >= 1 && cases.len() >= 4, "{text}");
    let counter = cases.iter().find(|case| case.attribute("name") == Some("counter_under_contention"));
    let counter = *counter.expect("the check");
    assert_eq!(counter.attribute("classname"), Some(format!("{NASTY}.C1_exclusion").as_str()));
    assert!(counter.attribute("time").and_then(|time| time.parse::<f64>().ok()).is_some());
    let [failure] = children(counter, "failure")[..] else { panic!("one failure: {text}") };
    assert_eq!(failure.attribute("type"), Some("C1_exclusion"));
    assert!(failure.attribute("message").is_some_and(|message| message.contains("a smaller token")));
    assert!(failure.text().is_some_and(|text| text.contains("again:   ") && text.contains("granted token")));
}

fn page(text: &str) -> Document<'_> {
    let options = ParsingOptions { allow_dtd: true, ..ParsingOptions::default() };
    Document::parse_with_options(text, options).unwrap_or_else(|error| panic!("not well-formed: {error}"))
}

fn all_text(node: Node<'_, '_>) -> String {
    node.descendants().filter(Node::is_text).filter_map(|node| node.text()).collect()
}

fn the_page_shows_it() {
    let directory = reported();
    let text = directory.read("index.html");
    let document = page(&text);
    let root = document.root_element();
    let by_class = |class: &str| {
        let has =
            |node: &Node<'_, '_>| node.attribute("class").is_some_and(|all| all.split(' ').any(|own| own == class));
        root.descendants().filter(has).collect::<Vec<_>>()
    };
    // The page fetches nothing and runs nothing.
    let outside = |node: &Node<'_, '_>| {
        ["script", "link", "img", "iframe"].contains(&node.tag_name().name())
            || node.attributes().any(|attribute| attribute.name() == "src" || attribute.name().starts_with("on"))
            || node.attribute("href").is_some_and(|target| !target.starts_with('#'))
    };
    assert!(
        !root.descendants().any(|node| outside(&node)) && !text.contains("url("),
        "the page needs something from outside"
    );

    let failures = by_class("failure");
    let about = |check: &str| failures.iter().copied().find(|node| all_text(*node).contains(check));
    let counter = about("C1_exclusion::counter_under_contention").expect("the failure");
    let words = all_text(counter);
    for expected in
        [NASTY, "a later grant has a smaller token", "granted token", "--exact", "in the store's commit order"]
    {
        assert!(words.contains(expected), "{expected} is not in {words}");
    }
    // The timeline shows the calls of the failure in red, and the other clients' holds, if any came
    // before the failure.
    let drawn = counter.descendants().filter(|node| node.attribute("class") == Some("call bad")).count();
    assert_eq!(drawn, 2);
    let holds = counter.descendants().filter(|node| node.attribute("class") == Some("hold")).count();
    let recorded: Value = serde_json::from_str(&directory.read(&format!("{FILE}.json"))).expect("JSON");
    let history = &checks(&recorded)["C1_exclusion::counter_under_contention"]["result"]["failed"]["history"];
    let granted = history.as_array().expect("a list").iter().filter(|call| call["what"]["granted"].is_object()).count();
    assert!(granted >= 2 && holds >= granted.min(3), "{holds} of {granted} holds are drawn");
    assert!(counter.descendants().any(|node| node.has_tag_name("svg")));
    // Every link has a target.
    let targets: Vec<_> = root.descendants().filter_map(|node| node.attribute("id")).collect();
    let links: Vec<_> = root.descendants().filter_map(|node| node.attribute("href")).collect();
    assert!(!links.is_empty() && links.iter().all(|link| targets.contains(&&link[1..])), "{links:?} {targets:?}");

    let rows = by_class("clauses")[0].descendants().filter(|node| node.has_tag_name("tr")).map(all_text);
    let row = rows.into_iter().find(|row| row.starts_with("counter_under_contention")).expect("a row");
    assert!(row.contains("failed") && row.contains("passed"), "{row}");
    let curves = by_class("curve").len();
    assert_eq!(curves, 4, "two backends in two plots");
}

fn binaries_share_a_directory() {
    let directory = Directory::new();
    for (backend, check) in [("sound", "C7_owner"), ("broken", "C6_")] {
        ran(backend, &["--report", directory.argument(), check]);
    }
    let text = directory.read("index.html");
    let document = page(&text);
    let words = all_text(document.root_element());
    assert!(words.contains("C6_constant_token") && words.contains(NASTY), "{words}");
    // The last run of a backend is the one that counts.
    let sound: Value = serde_json::from_str(&directory.read("sound.json")).expect("JSON");
    assert!(checks(&sound).keys().all(|name| name.starts_with("C6_")), "{sound}");
}

fn unwritable_is_a_failure() {
    let directory = Directory::new();
    let file = directory.path().join("file");
    std::fs::write(&file, "").expect("a file");
    let mut command = command("sound");
    command.args(["--exact", "sound::C5_fencing::across_release"]).env("DISTLOCK_CONFORMANCE_REPORT", file.join("in"));
    let run = finished(command);
    assert!(!run.succeeded && run.err.contains("the reports cannot be written"), "{run:?}");
}

fn programs_save_reports_too() {
    let directory = Directory::new();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    let fixture = Memory { name: "sound", breaks: false };
    let check = "C5_fencing::across_release";
    let report = runtime.block_on(distlock_conformance::examine(fixture, |of| of.name() == check));
    report.save(directory.path()).expect("it is written");
    let sound: Value = serde_json::from_str(&directory.read("sound.json")).expect("JSON");
    assert_eq!(checks(&sound)[check]["result"], "passed");
    assert_eq!(directory.files(), ["index.html", "sound.json", "sound.xml"]);
}
