//! Whether all was as promised: compares the commits that were confirmed to the workers with the
//! orders.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use distlock_examples::Checks;
use distlock_mongo::mongodb::bson::Document;

use crate::worker::{Order, State};

/// What the workers have reported.
#[derive(Debug, Default)]
pub(crate) struct Journal {
    /// The commits of each step of each order. With more than one, the step was done twice.
    committed: BTreeMap<(i64, State), Vec<String>>,
    /// How many commits came too late.
    pub(crate) refused: usize,
    /// The orders whose workers have stopped, and when.
    stopped: HashMap<i64, Instant>,
    interrupted: usize,
    recoveries: Vec<Duration>,
}

impl Journal {
    /// Records a step that is done. Returns how long ago the order's worker had stopped, if it had.
    pub(crate) fn committed(&mut self, order: i64, state: State, entry: String) -> Option<Duration> {
        self.committed.entry((order, state)).or_default().push(entry);
        let recovery = self.stopped.remove(&order)?.elapsed();
        self.recoveries.push(recovery);
        Some(recovery)
    }

    pub(crate) fn stopped(&mut self, order: i64) {
        self.stopped.insert(order, Instant::now());
        self.interrupted += 1;
    }

    /// Prints the sums, and checks the promises.
    pub(crate) fn compare(&self, orders: &[Order], effects: &[Document], lease: Duration, is_complete: bool) -> Checks {
        let logs: HashMap<i64, &[String]> = orders.iter().map(|order| (order.id, &*order.log)).collect();
        let entries =
            self.committed.iter().flat_map(|((order, _), entries)| entries.iter().map(|entry| (*order, entry)));
        let lost = entries.filter(|(order, entry)| !logs.get(order).is_some_and(|log| log.contains(entry))).count();
        let twice = self.committed.values().filter(|entries| entries.len() > 1).count();
        let steps = State::STEPS.len();
        let whole = |order: &&Order| {
            let done = order.log.iter().map(|entry| entry.split(' ').next().unwrap_or_default().to_owned());
            order.state == State::Shipped && done.eq(State::STEPS.map(|state| format!("{state:?}")))
        };
        let odd = orders.len() - orders.iter().filter(whole).count();
        let repeated = effects.iter().filter(|effect| effect.get_i32("times").is_ok_and(|times| times > 1)).count();
        let longest = self.recoveries.iter().max().copied().unwrap_or(Duration::MAX);
        println!("  orders       {}, {odd} of them without exactly {steps} steps in their order", orders.len());
        println!("  steps        {} confirmed", self.committed.values().map(Vec::len).sum::<usize>());
        println!("  done twice   {twice}");
        println!("  lost steps   {lost}");
        println!("  late commits {} refused", self.refused);
        println!("  effects      {}, {repeated} of them repeated, and recognised by their keys", effects.len());
        if self.recoveries.len() == 2 {
            println!(
                "  recovery     {:.1} s at the latest, with leases of {} s",
                longest.as_secs_f64(),
                lease.as_secs()
            );
        }

        let mut checks = Checks::new(is_complete);
        checks.always(twice == 0, format!("{twice} steps were done twice"));
        checks.always(lost == 0, format!("{lost} steps were lost"));
        checks.at_the_end(odd == 0 && !orders.is_empty(), format!("{odd} orders went another way"));
        checks.at_the_end(self.refused == 1, format!("{} late commits were refused, not 1", self.refused));
        checks.at_the_end(self.interrupted == 2, "no worker was killed, or none fell asleep");
        checks.always(repeated <= self.interrupted, format!("{repeated} effects were repeated"));
        // How much later than its lease ends a stopped worker's order must have continued. Where
        // longer leases are needed, everything takes longer.
        let grace = lease * 5 / 4;
        checks.at_the_end(longest <= lease + grace, "the orders of the stopped workers did not soon continue");
        checks
    }
}
