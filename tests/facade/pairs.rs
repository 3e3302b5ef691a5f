//! The table of pairs in `DESIGN.md` names checks that exist, and has each pair of mechanisms.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

const DESIGN: &str = include_str!("../../DESIGN.md");

/// The rows of the section's table: the cells of each, without its head.
fn rows() -> Vec<Vec<&'static str>> {
    let (_, section) = DESIGN.split_once("### Pairs of mechanisms").expect("the section");
    let section = section.split("\n## ").next().expect("its end");
    let rows = section.lines().filter(|line| line.starts_with('|')).skip(2);
    rows.map(|row| row.trim_matches('|').split('|').map(str::trim).collect()).collect()
}

/// Adds the texts of the files of this name, in all folders below.
fn find(folder: &Path, file: &str, texts: &mut Vec<String>) {
    for entry in fs::read_dir(folder).expect("the workspace's source") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            find(&path, file, texts);
        } else if path.ends_with(file) {
            texts.push(fs::read_to_string(&path).expect("UTF-8"));
        }
    }
}

/// The sources that a name in the table means: a binary or a package, and a file of it.
fn sources(name: &str) -> Vec<String> {
    let (binary, file) = name.split_once('/').expect("a binary or a package");
    let (folder, file) = match binary {
        "engine" => ("lock-memory/tests", name),
        "store" => ("lock-mongo/tests", name),
        "checks" => ("conformance/src", name),
        "simulator" => ("lock-engine/simulator/tests", file),
        "recipes" => ("lock-recipes/tests", file),
        other => panic!("{other} is not known"),
    };
    let mut texts = Vec::new();
    find(&Path::new(env!("CARGO_MANIFEST_DIR")).join(folder), file, &mut texts);
    texts
}

#[test]
fn every_check_of_the_table_exists() {
    let mut checks = 0;
    for row in rows() {
        let [pairs, answers] = &*row else { panic!("{row:?}") };
        for check in answers.split('`').skip(1).step_by(2) {
            let (file, name) = check.split_once(": ").unwrap_or_else(|| panic!("{pairs}: {check} is no check"));
            let texts = sources(file);
            assert!(!texts.is_empty(), "{pairs}: there is no {file}");
            let function = format!("fn {name}(");
            assert!(texts.iter().any(|text| text.contains(&function)), "{pairs}: {file} has no {name}");
            checks += 1;
        }
    }
    assert!(checks > 80, "{checks} checks");
}

/// Each pair stands in one row: with its checks, or with the reason why the two do not meet.
#[test]
fn every_pair_is_in_the_table() {
    let (mut mechanisms, mut pairs) = (BTreeSet::new(), BTreeSet::new());
    for row in rows() {
        let (one, others) = row[0].split_once(" × ").unwrap_or_else(|| panic!("{row:?}"));
        let others: Vec<&str> = others.split(", ").collect();
        let answers: Vec<&str> = row[1].split("; ").filter(|answer| !answer.is_empty()).collect();
        assert!(answers.len() == 1 || answers.len() == others.len(), "{row:?}");
        for other in others {
            mechanisms.extend([one, other]);
            assert!(pairs.insert([one.min(other), one.max(other)]), "twice: {one} and {other}");
        }
    }
    for (index, one) in mechanisms.iter().enumerate() {
        for other in mechanisms.iter().skip(index + 1) {
            assert!(pairs.contains(&[*one, *other]), "{one} and {other} are missing");
        }
    }
    assert_eq!(mechanisms.len(), 13, "{mechanisms:?}");
}
