//! The table at the end.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex};

#[derive(Clone, Copy)]
pub(super) enum Column {
    Passed,
    Failed,
    Refused,
}

/// How many checks passed, failed and were refused, for each fixture.
#[derive(Clone, Default)]
pub(super) struct Table(Arc<Mutex<BTreeMap<String, [usize; 3]>>>);

impl Table {
    pub(super) fn count(&self, fixture: &str, column: Column) {
        let mut rows = self.0.lock().expect("not poisoned");
        rows.entry(fixture.to_owned()).or_default()[column as usize] += 1;
    }

    /// How many checks there were, refused ones included.
    pub(super) fn checks(&self) -> usize {
        self.0.lock().expect("not poisoned").values().flatten().sum()
    }

    /// How many checks a fixture passed or failed.
    pub(super) fn ran(&self, fixture: &str) -> usize {
        let rows = self.0.lock().expect("not poisoned");
        rows.get(fixture).map_or(0, |row| row[Column::Passed as usize] + row[Column::Failed as usize])
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rows = self.0.lock().expect("not poisoned");
        let width = rows.keys().map(String::len).chain(["backend".len()]).max().unwrap_or_default();
        let refused = "refused by design";
        writeln!(f, "{:width$} | passed | failed | {refused}", "backend")?;
        write!(f, "{:-<width$}-|--------|--------|-{:-<len$}", "", "", len = refused.len())?;
        for (name, [passed, failed, refused_count]) in &*rows {
            write!(f, "\n{name:width$} | {passed:6} | {failed:6} | {refused_count:len$}", len = refused.len())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_row_per_backend() {
        let table = Table::default();
        table.count("memory", Column::Passed);
        table.count("memory", Column::Passed);
        table.count("memory", Column::Refused);
        table.count("a-longer-name", Column::Failed);
        let text = table.to_string();
        assert_eq!((table.checks(), table.ran("memory"), table.ran("a-longer-name"), table.ran("none")), (4, 2, 1, 0));
        assert!(text.contains("a-longer-name |      0 |      1 |                 0"), "{text}");
        assert!(text.contains("memory        |      2 |      0 |                 1"), "{text}");
    }
}
