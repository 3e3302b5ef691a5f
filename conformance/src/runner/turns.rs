//! How many checks run at the same time.

use tokio::sync::{Mutex, MutexGuard, Semaphore, SemaphorePermit};

/// The turns of a run. Most checks wait for a clock most of the time, so several run at once. Those
/// that damage a deployment run one after the other, and take half of the places meanwhile.
#[derive(Debug)]
pub(super) struct Turns {
    places: Semaphore,
    half: u32,
    arena: Mutex<()>,
}

/// The turn of a check, until it is dropped.
#[derive(Debug)]
pub(super) struct Turn<'a> {
    _places: SemaphorePermit<'a>,
    _arena: Option<MutexGuard<'a, ()>>,
}

impl Turns {
    /// Lets `at_once` checks run at the same time, at least one.
    pub(super) fn new(at_once: usize) -> Self {
        let at_once = at_once.max(1);
        let half = u32::try_from(at_once / 2).unwrap_or(u32::MAX).max(1);
        Self { places: Semaphore::new(at_once), half, arena: Mutex::default() }
    }

    /// Waits for the turn of a check among others.
    pub(super) async fn of_one(&self) -> Turn<'_> {
        Turn { _places: self.take(1).await, _arena: None }
    }

    /// Waits for the turn of a check that damages a deployment.
    pub(super) async fn of_arena(&self) -> Turn<'_> {
        let arena = self.arena.lock().await;
        Turn { _places: self.take(self.half).await, _arena: Some(arena) }
    }

    async fn take(&self, places: u32) -> SemaphorePermit<'_> {
        self.places.acquire_many(places).await.expect("never closed")
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[tokio::test]
    async fn one_check_damages_a_deployment_at_a_time_beside_half_of_the_others() {
        let turns = Turns::new(4);
        let arena = turns.of_arena().await;
        let others = [turns.of_one().await, turns.of_one().await];
        assert!(turns.of_one().now_or_never().is_none(), "half of the places");
        drop(others);
        assert!(turns.of_arena().now_or_never().is_none(), "one at a time");
        drop(arena);
        let all: Vec<Turn<'_>> = (0..4).map(|_| turns.of_one().now_or_never().expect("a place")).collect();
        assert!(turns.of_one().now_or_never().is_none());
        drop(all);
        let alone = Turns::new(0);
        let arena = alone.of_arena().await;
        assert!(alone.of_one().now_or_never().is_none());
        drop(arena);
        assert!(alone.of_one().now_or_never().is_some());
    }
}
