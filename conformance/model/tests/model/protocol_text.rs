//! The protocol's text names removals and configurations of the model.

use distlock_model::removals::Removal;
use distlock_model::rules::Guard;

const PROTOCOL: &str = include_str!("../../../../lock-mongo/PROTOCOL.md");

/// The sections of the rules: number and text.
fn sections() -> Vec<(u8, &'static str)> {
    let sections = PROTOCOL.split("\n### R").skip(1);
    sections
        .map(|section| {
            let (number, text) = section.split_once(' ').expect("a title follows the number");
            let end = text.find("\n#").unwrap_or(text.len());
            (number.parse().expect("the number of a rule"), &text[..end])
        })
        .collect()
}

/// The names in the notes `*Model: …*`.
fn cited(section: &str) -> Vec<&str> {
    let notes = section.split("*Model:").skip(1).map(|rest| rest.split('*').next().unwrap_or_default());
    notes.flat_map(|note| note.split('`').skip(1).step_by(2)).collect()
}

#[test]
fn each_rule_cites_its_removals_and_their_configurations() {
    for (rule, section) in sections() {
        let mut expected: Vec<String> = Vec::new();
        for guard in Guard::ALL.into_iter().filter(|guard| guard.rule() == rule) {
            expected.push(format!("{guard:?}"));
            expected.extend(Removal::of(guard).map(|removal| removal.config.to_owned()));
        }
        let mut cited = cited(section);
        cited.sort_unstable();
        cited.dedup();
        expected.sort_unstable();
        expected.dedup();
        assert_eq!(cited, expected, "R{rule} of PROTOCOL.md, and the removals of the model");
    }
}

#[test]
fn each_rule_has_three_parts_and_an_anchor() {
    let mut numbers: Vec<u8> = sections().iter().map(|(number, _)| *number).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, (1..=32).collect::<Vec<_>>());
    for (rule, section) in sections() {
        for part in ["\n**Rule.**", "\n**Why.**", "\n**Without it.**"] {
            assert_eq!(section.matches(part).count(), 1, "{part} in R{rule}");
        }
        assert!(PROTOCOL.contains(&format!("<a id=\"r{rule}\"></a>\n### R{rule} ")), "the anchor of R{rule}");
    }
}
