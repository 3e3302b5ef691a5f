//! The tutorial quotes the files of this package, and counts their lines.

const TUTORIAL: &str = include_str!("../../../conformance/TUTORIAL_NETWORK.md");

/// Each file of the table, and how it begins a comment.
const FILES: [(&str, &str, &str); 16] = [
    ("src/sql/acquire.sql", include_str!("../src/sql/acquire.sql"), "--"),
    ("src/sql/release.sql", include_str!("../src/sql/release.sql"), "--"),
    ("src/sql/renew.sql", include_str!("../src/sql/renew.sql"), "--"),
    ("src/sql/admin.sql", include_str!("../src/sql/admin.sql"), "--"),
    ("src/sql/common.sql", include_str!("../src/sql/common.sql"), "--"),
    ("src/sql/push.sql", include_str!("../src/sql/push.sql"), "--"),
    ("src/sql/lock_events.sql", include_str!("../src/sql/lock_events.sql"), "--"),
    ("src/sql/schema.sql", include_str!("../src/sql/schema.sql"), "--"),
    ("src/store.rs", include_str!("../src/store.rs"), "//"),
    ("src/answers.rs", include_str!("../src/answers.rs"), "//"),
    ("src/calls.rs", include_str!("../src/calls.rs"), "//"),
    ("src/connection.rs", include_str!("../src/connection.rs"), "//"),
    ("src/error.rs", include_str!("../src/error.rs"), "//"),
    ("src/listen.rs", include_str!("../src/listen.rs"), "//"),
    ("tests/conformance.rs", include_str!("conformance.rs"), "//"),
    ("tests/arena/mod.rs", include_str!("arena/mod.rs"), "//"),
];

#[test]
fn every_piece_of_code_is_in_a_file() {
    let mut compared = 0;
    for language in ["```rust\n", "```sql\n"] {
        for block in TUTORIAL.split(language).skip(1).filter_map(|rest| rest.split("```").next()) {
            let is_there = FILES.iter().any(|(_, text, _)| text.contains(block.trim_end()));
            assert!(is_there, "in no file of this package:\n{block}");
            compared += 1;
        }
    }
    assert!(compared >= 10, "no more than {compared} pieces of code");
}

#[test]
fn every_count_is_right() {
    for (name, text, comment) in FILES {
        let is_code = |line: &&str| !line.is_empty() && !line.starts_with(comment);
        let (lines, code) = (text.lines().count(), text.lines().map(str::trim_start).filter(is_code).count());
        let row = TUTORIAL.lines().find(|line| line.starts_with(&format!("| `{name}`")));
        let row = row.unwrap_or_else(|| panic!("{name} is not in the table"));
        assert!(row.ends_with(&format!(" | {lines} | {code} |")), "{name} has {lines} lines, {code} of code: {row}");
    }
}
