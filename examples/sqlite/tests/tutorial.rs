//! The tutorial quotes the files of this package, and counts their lines.

const TUTORIAL: &str = include_str!("../../../conformance/TUTORIAL.md");
/// The part after this line is about `examples/postgres`.
const NETWORK: &str = "\n## 15. A store over the network\n";

/// The tutorial's first store, which the package of the suite tests.
const FIRST_STORE: [&str; 2] = [
    include_str!("../../../conformance/tests/first_store/mine.rs"),
    include_str!("../../../conformance/tests/first_store/main.rs"),
];

/// Each file, and how it begins a comment.
const FILES: [(&str, &str, &str); 7] = [
    ("src/step.rs", include_str!("../src/step.rs"), "//"),
    ("src/lib.rs", include_str!("../src/lib.rs"), "//"),
    ("src/error.rs", include_str!("../src/error.rs"), "//"),
    ("src/clock.rs", include_str!("../src/clock.rs"), "//"),
    ("src/admin.rs", include_str!("../src/admin.rs"), "//"),
    ("src/schema.sql", include_str!("../src/schema.sql"), "--"),
    ("tests/conformance.rs", include_str!("conformance.rs"), "//"),
];

/// The tutorial's code blocks in a language.
fn blocks(language: &str) -> impl Iterator<Item = &'static str> {
    let begin = format!("```{language}\n");
    let (text, _) = TUTORIAL.split_once(NETWORK).expect("the heading of the second example");
    let blocks: Vec<_> = text.split(&begin).skip(1).filter_map(|rest| rest.split("```").next()).collect();
    blocks.into_iter()
}

#[test]
fn every_piece_of_code_is_in_a_file() {
    let all: Vec<&str> = FILES.iter().map(|(_, text, _)| *text).chain(FIRST_STORE).collect();
    let mut compared = 0;
    for block in ["rust", "sql"].into_iter().flat_map(blocks) {
        assert!(all.iter().any(|text| text.contains(block.trim_end())), "in no file:\n{block}");
        compared += 1;
    }
    assert!(compared >= 8, "no more than {compared} pieces of code");
}

#[test]
fn every_count_is_right() {
    let mut sum = (0, 0);
    for (name, text, comment) in FILES {
        let code =
            text.lines().map(str::trim_start).filter(|line| !line.is_empty() && !line.starts_with(comment)).count();
        let lines = text.lines().count();
        let row = TUTORIAL.lines().find(|line| line.starts_with(&format!("| `{name}`")));
        let row = row.unwrap_or_else(|| panic!("{name} is not in the table"));
        assert!(row.ends_with(&format!(" | {lines} | {code} |")), "{name} has {lines} lines, {code} of code: {row}");
        if name.starts_with("src/") && name.ends_with(".rs") && name != "src/admin.rs" {
            sum = (sum.0 + lines, sum.1 + code);
        }
    }
    let total = format!("| **the store** | **{}** | **{}** |", sum.0, sum.1);
    assert!(TUTORIAL.contains(&total), "{total}");
}
