//! The guide to errors, compared with the errors that the tests provoke.

use distlock_api::LockError;

/// The guide, wherever the package of the tests is.
pub(crate) const TEXT: &str = include_str!("../../../src/guide/errors.md");

/// Asserts that the guide lists the text of this error.
#[track_caller]
pub(crate) fn lists(error: &LockError) {
    let text = error.to_string();
    let mut listed = TEXT.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    assert!(listed.any(|pattern| matches(pattern, &text)), "the guide `errors` does not list: {text}");
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
