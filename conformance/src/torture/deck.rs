//! Which faults are next: every kind once in random order, and then again.

use std::sync::Arc;

use fastrand::Rng;

use super::acts::Act;
use crate::arena::Fault;

pub(super) struct Deck {
    of_store: Vec<Arc<dyn Fault>>,
    store: Vec<usize>,
    clients: Vec<Act>,
    chance: Rng,
}

/// The faults of a round: one to the store, one to a client, or one of each.
pub(super) struct Drawn {
    pub(super) store: Option<Arc<dyn Fault>>,
    pub(super) client: Option<Act>,
}

impl Drawn {
    pub(super) fn name(&self) -> String {
        let kinds = [self.store.as_ref().map(|fault| fault.kind()), self.client.map(Act::kind)];
        kinds.into_iter().flatten().collect::<Vec<_>>().join(" and ")
    }
}

impl Deck {
    pub(super) fn new(of_store: Vec<Arc<dyn Fault>>, chance: Rng) -> Self {
        Self { of_store, store: Vec::new(), clients: Vec::new(), chance }
    }

    pub(super) fn kinds(&self) -> Vec<String> {
        let of_store = self.of_store.iter().map(|fault| fault.kind());
        of_store.chain(Act::ALL.map(Act::kind)).map(str::to_owned).collect()
    }

    /// The next ones; `both` if there is no time for one at a time.
    pub(super) fn draw(&mut self, both: bool) -> Drawn {
        let choice = if both { 3 } else { self.chance.u8(..4) };
        Drawn { store: (choice > 0).then(|| self.of_store()).flatten(), client: (choice % 3 == 0).then(|| self.act()) }
    }

    fn of_store(&mut self) -> Option<Arc<dyn Fault>> {
        if self.store.is_empty() {
            self.store = (0..self.of_store.len()).collect();
            self.chance.shuffle(&mut self.store);
        }
        self.store.pop().map(|number| Arc::clone(&self.of_store[number]))
    }

    fn act(&mut self) -> Act {
        if self.clients.is_empty() {
            self.clients = Act::ALL.to_vec();
            self.chance.shuffle(&mut self.clients);
        }
        self.clients.pop().unwrap_or(Act::Kill)
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
    fn every_kind_comes_before_any_comes_again() {
        let faults: Vec<Arc<dyn Fault>> = ["a", "b", "c"].map(|kind| Arc::new(Named(kind)) as Arc<dyn Fault>).into();
        let mut deck = Deck::new(faults, Rng::with_seed(7));
        assert_eq!(deck.kinds().len(), 3 + Act::ALL.len());
        for times in 1..5 {
            let mut seen: HashMap<String, usize> = HashMap::new();
            let mut deck = Deck::new(deck.of_store.clone(), Rng::with_seed(times as u64));
            for _ in 0..12 * times {
                let drawn = deck.draw(true);
                *seen.entry(drawn.store.unwrap().kind().to_owned()).or_default() += 1;
                *seen.entry(drawn.client.unwrap().kind().to_owned()).or_default() += 1;
            }
            let expected: HashMap<String, usize> = deck
                .kinds()
                .into_iter()
                .map(|kind| (kind.clone(), (if kind.len() == 1 { 4 } else { 3 }) * times))
                .collect();
            assert_eq!(seen, expected);
        }
        let names: Vec<String> = (0..100).map(|_| deck.draw(false).name()).collect();
        assert!(names.iter().all(|name| !name.is_empty()));
        assert!(names.iter().any(|name| name.contains(" and ")) && names.contains(&"a".to_owned()));
    }
}
