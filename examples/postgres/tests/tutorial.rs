//! The tutorial quotes the files of this package, and counts their lines.

const TUTORIAL: &str = include_str!("../../../conformance/TUTORIAL.md");
/// The part between these lines is about this package.
const BEGIN: &str = "\n## 15. A store over the network\n";
const END: &str = "\n## 16. Work that is done once\n";

fn part() -> &'static str {
    let (_, part) = TUTORIAL.split_once(BEGIN).expect("the heading of this example");
    part.split_once(END).expect("the heading after this example").0
}

/// The files of which it quotes parts.
const FILES: [(&str, &str); 16] = [
    ("src/sql/acquire.sql", include_str!("../src/sql/acquire.sql")),
    ("src/sql/release.sql", include_str!("../src/sql/release.sql")),
    ("src/sql/renew.sql", include_str!("../src/sql/renew.sql")),
    ("src/sql/admin.sql", include_str!("../src/sql/admin.sql")),
    ("src/sql/common.sql", include_str!("../src/sql/common.sql")),
    ("src/sql/push.sql", include_str!("../src/sql/push.sql")),
    ("src/sql/lock_events.sql", include_str!("../src/sql/lock_events.sql")),
    ("src/sql/schema.sql", include_str!("../src/sql/schema.sql")),
    ("src/store.rs", include_str!("../src/store.rs")),
    ("src/answers.rs", include_str!("../src/answers.rs")),
    ("src/calls.rs", include_str!("../src/calls.rs")),
    ("src/connection.rs", include_str!("../src/connection.rs")),
    ("src/error.rs", include_str!("../src/error.rs")),
    ("src/listen.rs", include_str!("../src/listen.rs")),
    ("tests/conformance.rs", include_str!("conformance.rs")),
    ("tests/arena/mod.rs", include_str!("arena/mod.rs")),
];

#[test]
fn every_piece_of_code_is_in_a_file() {
    let mut compared = 0;
    for language in ["```rust\n", "```sql\n"] {
        for block in part().split(language).skip(1).filter_map(|rest| rest.split("```").next()) {
            let is_there = FILES.iter().any(|(_, text)| text.contains(block.trim_end()));
            assert!(is_there, "in no file of this package:\n{block}");
            compared += 1;
        }
    }
    assert!(compared >= 10, "no more than {compared} pieces of code");
}

#[test]
fn the_counts_are_right() {
    let lines = |end: &str| -> usize {
        let files = FILES.iter().filter(|(name, ..)| name.starts_with("src/") && name.ends_with(end));
        files.map(|(_, text)| text.lines().count()).sum()
    };
    let text = format!("{} lines of SQL and {} of Rust", lines(".sql"), lines(".rs"));
    assert!(part().contains(&text), "{text}");
}
