//! Whether all was as promised: what the workers were told that they had committed, against what is
//! in the orders.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use distlock_mongo::mongodb::bson::Document;

use crate::LEASE;
use crate::worker::{Order, State};

/// What goes on beyond the lease until a stopped worker's order goes on.
const GRACE: Duration = Duration::from_millis(2500);

/// What was told.
#[derive(Debug, Default)]
pub(crate) struct Journal {
    /// By order and state, who has committed it; more than one have done the step twice.
    committed: BTreeMap<(i64, State), Vec<String>>,
    /// Commits that came too late.
    pub(crate) refused: usize,
    /// Orders whose worker has stopped, and when.
    stopped: HashMap<i64, Instant>,
    interrupted: usize,
    recoveries: Vec<Duration>,
}

impl Journal {
    /// A step is done; how long after its worker had stopped, if it had.
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

    /// Prints the sums, and returns what was not as promised.
    pub(crate) fn compare(&self, orders: &[Order], effects: &[Document]) -> Vec<String> {
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
        let asked_again = effects.iter().filter(|effect| effect.get_i32("asked").is_ok_and(|asked| asked > 1)).count();
        let longest = self.recoveries.iter().max().copied().unwrap_or(Duration::MAX);
        println!("  orders       {}, {odd} of them without exactly {steps} steps in their order", orders.len());
        println!("  steps        {} confirmed", self.committed.values().map(Vec::len).sum::<usize>());
        println!("  done twice   {twice}");
        println!("  lost steps   {lost}");
        println!("  late commits {} refused", self.refused);
        println!(
            "  effects      {}, {asked_again} of them asked for again, and recognised by their keys",
            effects.len()
        );
        if self.recoveries.len() == 2 {
            println!(
                "  recovery     {:.1} s at the latest, with leases of {} s",
                longest.as_secs_f64(),
                LEASE.as_secs()
            );
        }

        let mut complaints = Vec::new();
        let mut expect = |good: bool, complaint: String| complaints.extend((!good).then_some(complaint));
        expect(twice == 0, format!("{twice} steps were done twice"));
        expect(lost == 0, format!("{lost} steps were lost"));
        expect(odd == 0 && !orders.is_empty(), format!("{odd} orders went another way"));
        expect(self.refused == 1, format!("{} late commits were refused, not 1", self.refused));
        expect(self.interrupted == 2, "no worker was killed, or none fell asleep".to_owned());
        expect(asked_again <= self.interrupted, format!("{asked_again} effects were asked for again"));
        expect(longest <= LEASE + GRACE, "the orders of the stopped workers did not go on soon".to_owned());
        complaints
    }
}
