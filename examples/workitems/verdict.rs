//! Whether all was as promised: compares the saves that were confirmed to the sessions with the
//! items.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use distlock_api::LeaseOptions;
use distlock_examples::Checks;

use crate::EDITS;
use crate::session::Item;

/// What the sessions have reported.
#[derive(Debug, Default)]
pub(crate) struct Journal {
    /// The item of each confirmed edit.
    saved: BTreeMap<String, String>,
    pub(crate) refused: u64,
    /// How many locks were released at each early end of a session.
    pub(crate) freed: Vec<u64>,
    /// The items of sessions that were ended, and when.
    orphans: HashMap<String, (String, Instant)>,
    waits: Vec<Duration>,
}

impl Journal {
    pub(crate) fn saved(&mut self, item: String, edit: String) {
        self.saved.insert(edit, item);
    }

    pub(crate) fn ended(&mut self, session: &str, items: &[String]) {
        let now = Instant::now();
        self.orphans.extend(items.iter().map(|item| (item.clone(), (session.to_owned(), now))));
    }

    /// Records that a session has checked an item out. Returns how long ago the session that had
    /// the item before was ended, if it was.
    pub(crate) fn taken(&mut self, by: &str, item: &str) -> Option<Duration> {
        self.orphans.get(item).filter(|(session, _)| session != by)?;
        let (_, since) = self.orphans.remove(item)?;
        let wait = since.elapsed();
        self.waits.push(wait);
        Some(wait)
    }

    /// Prints the sums, and checks the promises. An edit of a killed session may be there although
    /// it was not confirmed.
    pub(crate) fn compare(&self, items: &[Item], killed: &[&str], is_complete: bool) -> Checks {
        let mut found: BTreeMap<&str, (usize, &str)> = BTreeMap::new();
        for item in items {
            for edit in &item.edits {
                found.entry(edit).or_insert((0, &item.id)).0 += 1;
            }
        }
        let lost =
            self.saved.iter().filter(|(edit, item)| found.get(&***edit).is_none_or(|(_, at)| at != item)).count();
        let twice = found.values().filter(|(times, _)| *times > 1).count();
        let of_the_dead = |edit: &str| killed.iter().any(|name| edit.split('/').next() == Some(name));
        let unknown = found.keys().filter(|edit| !self.saved.contains_key(**edit) && !of_the_dead(edit)).count();
        let undone = items.iter().filter(|item| item.edits.len() != EDITS).count();
        let freed: u64 = self.freed.iter().sum();
        let longest = self.waits.iter().max().copied();
        println!("  items        {}, each to be edited {EDITS} times, {undone} of them not", items.len());
        println!("  edits        {} confirmed, {} in the items", self.saved.len(), found.len());
        println!("  lost edits   {lost}");
        println!("  twice        {twice}");
        println!("  late saves   {} refused", self.refused);
        println!("  sessions     {} ended early, {freed} items released", self.freed.len());
        if let Some(longest) = longest {
            let ttl = LeaseOptions::DEFAULT_TTL.as_secs();
            println!(
                "  next holder  {:.1} ms after the end of a session at the latest; leases last {ttl} s",
                longest.as_secs_f64() * 1e3
            );
        }

        let mut checks = Checks::new(is_complete);
        checks.always(lost == 0, format!("{lost} edits were lost"));
        checks.always(twice + unknown == 0, format!("{} edits are there twice, or unconfirmed", twice + unknown));
        checks.at_the_end(undone == 0 && !items.is_empty(), format!("{undone} items have another number of edits"));
        checks.at_the_end(self.refused > 0, "no late save was refused");
        let all_released = self.freed.len() == 3 && self.freed.iter().all(|freed| *freed > 0);
        checks.at_the_end(all_released, "an ended session released nothing");
        let was_soon = longest.is_some_and(|longest| longest < LeaseOptions::DEFAULT_TTL / 2);
        checks.at_the_end(was_soon, "the items of a dead session did not soon have another holder");
        checks
    }
}
