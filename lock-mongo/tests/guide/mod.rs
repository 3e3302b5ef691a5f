//! The guide to errors, compared with the errors that the tests provoke.

use distlock_api::LockError;

const GUIDE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../src/guide/errors.md");

/// Returns the guide.
pub(crate) fn text() -> String {
    std::fs::read_to_string(GUIDE).expect("the guide")
}

/// Asserts that the guide lists the text of this error.
#[track_caller]
pub(crate) fn lists(error: &LockError) {
    let guide = text();
    let text = error.to_string();
    let mut listed = guide.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    assert!(listed.any(|pattern| matches(pattern, &text)), "{GUIDE} does not list: {text}");
}

/// Whether a text starts as the pattern says, and has its other parts in their order. `…` stands
/// for anything.
fn matches(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('…');
    let start = parts.next().unwrap_or_default();
    let Some(mut rest) = text.strip_prefix(start).filter(|_| !start.is_empty()) else { return false };
    parts.all(|part| match rest.find(part) {
        Some(at) => {
            rest = &rest[at + part.len()..];
            true
        }
        None => false,
    })
}
