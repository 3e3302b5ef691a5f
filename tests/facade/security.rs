//! The tests that `SECURITY.md` names exist, where it says.

use std::fs;
use std::path::Path;

const SECURITY: &str = include_str!("../../SECURITY.md");

/// The source in a file, or in all files of a folder.
fn source(path: &Path) -> String {
    if path.is_file() {
        return fs::read_to_string(path).expect("UTF-8");
    }
    let entries = fs::read_dir(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    entries.map(|entry| source(&entry.expect("an entry").path())).collect()
}

fn quoted(cell: &str) -> Vec<&str> {
    cell.split('`').skip(1).step_by(2).collect()
}

#[test]
fn each_claim_has_its_tests() {
    let table = SECURITY.split("\n## What is tested\n").nth(1).expect("the section");
    let table = table.split("\n## ").next().expect("its end");
    let (mut place, mut names) = (Vec::new(), 0);
    for row in table.lines().filter(|line| line.starts_with("| ")).skip(1) {
        let cells: Vec<_> = row.split('|').map(str::trim).collect();
        let [_, _claim, tests, found, _] = cells[..] else { panic!("{row}") };
        if found != "the same" {
            place = quoted(found);
        }
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let source: String = place.iter().map(|path| source(&root.join(path))).collect();
        for name in quoted(tests) {
            let is_defined = source.contains(&format!("fn {name}(")) || source.contains(&format!(" {name} "));
            assert!(is_defined, "{name} is not in {place:?}");
            names += 1;
        }
    }
    assert!(names > 20, "the table was read: {names}");
}
