//! The order of the faults: every kind once in random order, and then again.

use std::sync::Arc;

use fastrand::Rng;

use super::process_faults::ProcessFault;
use crate::arena::Fault;

pub(super) struct FaultSchedule {
    of_store: Vec<Arc<dyn Fault>>,
    store: Vec<usize>,
    clients: Vec<ProcessFault>,
    rng: Rng,
}

/// The faults of a round: one of the store, one of a client, or one of each.
pub(super) struct RoundFaults {
    pub(super) store: Option<Arc<dyn Fault>>,
    pub(super) client: Option<ProcessFault>,
}

impl RoundFaults {
    pub(super) fn name(&self) -> String {
        let kinds = [self.store.as_ref().map(|fault| fault.kind()), self.client.map(ProcessFault::kind)];
        kinds.into_iter().flatten().collect::<Vec<_>>().join(" and ")
    }
}

impl FaultSchedule {
    pub(super) fn new(of_store: Vec<Arc<dyn Fault>>, rng: Rng) -> Self {
        Self { of_store, store: Vec::new(), clients: Vec::new(), rng }
    }

    pub(super) fn kinds(&self) -> Vec<String> {
        let of_store = self.of_store.iter().map(|fault| fault.kind());
        of_store.chain(ProcessFault::ALL.map(ProcessFault::kind)).map(str::to_owned).collect()
    }

    /// Returns the next faults; with `both`, always one of each, for runs that have no time for one
    /// at a time.
    pub(super) fn next(&mut self, both: bool) -> RoundFaults {
        let choice = if both { 3 } else { self.rng.u8(..4) };
        RoundFaults {
            store: (choice > 0).then(|| self.of_store()).flatten(),
            client: (choice % 3 == 0).then(|| self.of_client()),
        }
    }

    fn of_store(&mut self) -> Option<Arc<dyn Fault>> {
        if self.store.is_empty() {
            self.store = (0..self.of_store.len()).collect();
            self.rng.shuffle(&mut self.store);
        }
        self.store.pop().map(|number| Arc::clone(&self.of_store[number]))
    }

    fn of_client(&mut self) -> ProcessFault {
        if self.clients.is_empty() {
            self.clients = ProcessFault::ALL.to_vec();
            self.rng.shuffle(&mut self.clients);
        }
        self.clients.pop().unwrap_or(ProcessFault::Kill)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    struct Named(&'static str);

    #[async_trait::async_trait]
    impl Fault for Named {
        fn kind(&self) -> &'static str {
            self.0
        }

        async fn begin(&self) -> Result<(), crate::failure::FixtureError> {
            Ok(())
        }

        async fn end(&self) -> Result<String, crate::failure::FixtureError> {
            Ok(String::new())
        }
    }

    #[test]
    fn every_kind_is_scheduled_before_any_repeats() {
        let faults: Vec<Arc<dyn Fault>> = ["a", "b", "c"].map(|kind| Arc::new(Named(kind)) as Arc<dyn Fault>).into();
        let mut schedule = FaultSchedule::new(faults, Rng::with_seed(7));
        assert_eq!(schedule.kinds().len(), 3 + ProcessFault::ALL.len());
        for times in 1..5 {
            let mut seen: HashMap<String, usize> = HashMap::new();
            let mut schedule = FaultSchedule::new(schedule.of_store.clone(), Rng::with_seed(times as u64));
            for _ in 0..12 * times {
                let faults = schedule.next(true);
                *seen.entry(faults.store.unwrap().kind().to_owned()).or_default() += 1;
                *seen.entry(faults.client.unwrap().kind().to_owned()).or_default() += 1;
            }
            let expected: HashMap<String, usize> = schedule
                .kinds()
                .into_iter()
                .map(|kind| (kind.clone(), (if kind.len() == 1 { 4 } else { 3 }) * times))
                .collect();
            assert_eq!(seen, expected);
        }
        let names: Vec<String> = (0..100).map(|_| schedule.next(false).name()).collect();
        assert!(names.iter().all(|name| !name.is_empty()));
        assert!(names.iter().any(|name| name.contains(" and ")) && names.contains(&"a".to_owned()));
    }
}
