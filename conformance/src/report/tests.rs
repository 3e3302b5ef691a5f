//! What a report keeps of a run.

use std::time::Duration;

use distlock_api::Mode;

use super::*;
use crate::history::{CallKind, End};

fn held(key: &str, token: u64, ms: [u64; 4]) -> Call {
    let [asked, answered, until, released] = ms.map(Duration::from_millis);
    let end = End::Released { asked: until, answered: released };
    Call {
        client: 1,
        key: key.into(),
        asked,
        answered: Some(answered),
        queued: None,
        mode: Mode::Exclusive,
        what: CallKind::Granted { token, until, end },
    }
}

fn checked(name: &str, result: Result) -> Checked {
    let mut subject = Subject::profile("word", "a promise");
    (subject.name, subject.clause) = (name.into(), name.split("::").next().unwrap_or_default().into());
    Checked::new(&subject, result, Duration::from_millis(5), Measures::default())
}

fn failed(message: &str) -> Result {
    let plan = Plan { level: Level::Standard, seed: "7".parse().unwrap(), time: Duration::ZERO };
    let subject = Subject::profile("word", "a promise");
    Result::Failed(Box::new(Failed::new("backend", &subject, &Failure::new(message), plan, Vec::new())))
}

#[test]
fn checks_stand_in_the_order_of_their_clauses() {
    let mut backend = Backend::new("backend", Level::Standard, "7".parse().unwrap());
    for name in ["profile::a", "L1_x::a", "C10_x::a", "O10_x::a", "admin::a", "O2_x::a", "C2_x::b", "C2_x::a"] {
        backend.add(checked(name, Result::Passed), Duration::from_millis(10));
    }
    backend.sort();
    let names: Vec<&str> = backend.checks.iter().map(|check| check.name.as_str()).collect();
    let clauses = ["C2_x::a", "C2_x::b", "C10_x::a", "O2_x::a", "O10_x::a", "L1_x::a"];
    assert_eq!(names, [&clauses[..], &["admin::a", "profile::a"]].concat());
}

#[test]
fn a_check_that_failed_once_has_failed() {
    let mut backend = Backend::new("backend", Level::Torture, "7".parse().unwrap());
    for result in [Result::Passed, failed("first"), failed("second"), Result::Passed] {
        backend.add(checked("C1_x::a", result), Duration::from_millis(10));
    }
    let [check] = &backend.checks[..] else { panic!("one check: {backend:?}") };
    assert_eq!((check.runs, check.took_ms), (4, 20.0));
    assert_eq!(check.failed().map(|failed| failed.message.as_str()), Some("first"));
    assert_eq!(counts(&backend.checks), [0, 1, 0]);
}

#[test]
fn what_shows_a_failure_is_kept_and_what_came_after_is_not() {
    let calls: Vec<Call> = (0..3_000).map(|n| held(["a", "b"][n as usize % 2], n, [n, n, n + 1, n + 2])).collect();
    let shown = [calls[1_500].clone()];
    let kept = kept(calls.clone(), &shown);
    assert!(kept.iter().all(|call| call.key == "a" && call.asked <= Duration::from_millis(1_500)));
    assert_eq!((kept.len(), kept.last()), (751, Some(&shown[0])));
    assert_eq!(super::kept(calls.clone(), &[]), calls[2_000..]);
}

#[test]
fn grants_of_free_locks_and_hand_overs_are_told_apart() {
    let calls = [
        held("k", 1, [0, 2, 10, 12]),
        // Waited from before the release until after it.
        held("k", 2, [5, 13, 20, 21]),
        // Came when it was free.
        held("k", 3, [30, 37, 40, 41]),
        held("other", 1, [0, 1, 50, 51]),
    ];
    let measures = Measures::of(&calls);
    assert_eq!(measures.hand_over_us, [3_000.0]);
    assert_eq!(measures.acquire_us, [1_000.0, 2_000.0, 7_000.0]);
}

#[test]
fn many_samples_are_thinned_and_keep_their_range() {
    let mut measures = Measures::default();
    for n in 0..50 {
        let acquire_us = (0..100).map(|sample| f64::from(n * 100 + sample)).collect();
        measures.add(Measures { acquire_us, hand_over_us: Vec::new() });
    }
    let kept = &measures.acquire_us;
    assert_eq!((kept.len(), kept[0], kept[kept.len() - 1]), (200, 0.0, 4_999.0));
    assert!(kept.is_sorted());
}

#[test]
fn figures_are_in_the_report_and_on_the_page() {
    let mut backend = Backend::new("backend", Level::Torture, "7".parse().unwrap());
    for rounds in [3, 4] {
        let mut torture = checked("C1_x::torture", Result::Passed);
        let faults = [("kill".to_owned(), rounds)].into();
        torture.figures = Some(Figures { rounds, faults, ..Figures::default() });
        backend.add(torture, Duration::from_millis(10));
    }
    backend.add(checked("C1_x::other", Result::Passed), Duration::from_millis(10));
    let text = serde_json::to_string(&backend).unwrap();
    let read: Backend = serde_json::from_str(&text).unwrap();
    let figures: Vec<Option<u64>> =
        read.checks.iter().map(|check| check.figures.as_ref().map(|figures| figures.rounds)).collect();
    assert_eq!(figures, [Some(4), None]);
    assert_eq!(text.matches("figures").count(), 1);
    let page = html::page(&[read]);
    assert!(
        page.contains("<h2>Under faults</h2>") && page.contains("4 rounds in 0 s") && page.contains("kill 4"),
        "{page}"
    );
}

#[test]
fn a_weaker_clause_is_in_every_report() {
    let why = "a fail-over loses <the last> grants";
    let profile = Profile::new(distlock_api::Capabilities::default()).weaker(crate::clause::Clause::C5, why);
    let backend = || Backend::new("mine", Level::Quick, "7".parse().unwrap());
    let mut declared = backend().declared_by(&profile);
    for name in ["C5_fencing::a", "C6_constant_token::a"] {
        declared.add(checked(name, Result::Passed), Duration::from_millis(10));
    }
    let text = serde_json::to_string(&declared).unwrap();
    assert!(text.contains(r#""weaker":[{"clause":"C5_fencing","why":"a fail-over"#), "{text}");
    let read: Backend = serde_json::from_str(&text).unwrap();
    assert_eq!(read.weaker, declared.weaker);
    let page = html::page(std::slice::from_ref(&read));
    let escaped = "a fail-over loses &lt;the last&gt; grants";
    assert!(page.contains(&format!("<b>mine</b> keeps <b>C5_fencing</b> in a weaker form: {escaped}")), "{page}");
    assert_eq!(page.matches("passed in a weaker form").count(), 1);
    let junit = junit::document(&read);
    assert!(junit.contains(&format!(r#"<property name="weaker C5_fencing" value="{escaped}"/>"#)), "{junit}");
    let summary = Summary(&[read]).to_string();
    assert!(summary.ends_with(&format!("\nmine keeps C5_fencing in a weaker form: {why}")), "{summary}");
    // Without a declaration nothing is shown.
    assert!(!serde_json::to_string(&backend()).unwrap().contains("weaker"));
}
