//! How many checks run at the same time.

use std::sync::Arc;

use tokio::sync::{Mutex, OwnedMutexGuard, OwnedSemaphorePermit, Semaphore};

/// The turns of a run. Most checks wait for a clock most of the time, so several run at once. Those
/// that damage a deployment run one after the other. They take half of the places until none of
/// them waits, because together they take longest.
#[derive(Debug)]
pub(super) struct Turns {
    places: Arc<Semaphore>,
    half: u32,
    arena: Arc<Arena>,
}

/// The places of checks that damage a deployment.
type Arena = Mutex<Option<OwnedSemaphorePermit>>;

/// The turn of a check, until it is dropped.
#[derive(Debug)]
pub(super) enum Turn {
    One { _place: OwnedSemaphorePermit },
    Arena(OwnedMutexGuard<Option<OwnedSemaphorePermit>>),
}

impl Drop for Turn {
    fn drop(&mut self) {
        let Self::Arena(places) = self else { return };
        // That of the turns, and that of this one.
        let nothing_waits = Arc::strong_count(OwnedMutexGuard::mutex(places)) <= 2;
        if nothing_waits {
            **places = None;
        }
    }
}

impl Turns {
    /// Lets `at_once` checks run at the same time, at least one.
    pub(super) fn new(at_once: usize) -> Self {
        let at_once = at_once.max(1);
        let half = u32::try_from(at_once / 2).unwrap_or(u32::MAX).max(1);
        Self { places: Arc::new(Semaphore::new(at_once)), half, arena: Arc::default() }
    }

    /// Waits for the turn of a check among others.
    pub(super) async fn of_one(&self) -> Turn {
        Turn::One { _place: self.take(1).await }
    }

    /// Waits for the turn of a check that damages a deployment.
    pub(super) async fn of_arena(&self) -> Turn {
        let mut places = Arc::clone(&self.arena).lock_owned().await;
        if places.is_none() {
            *places = Some(self.take(self.half).await);
        }
        Turn::Arena(places)
    }

    async fn take(&self, places: u32) -> OwnedSemaphorePermit {
        Arc::clone(&self.places).acquire_many_owned(places).await.expect("never closed")
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
        let all: Vec<Turn> = (0..4).map(|_| turns.of_one().now_or_never().expect("a place")).collect();
        assert!(turns.of_one().now_or_never().is_none());
        drop(all);
        let arena = turns.of_arena().await;
        let others = [turns.of_one().await, turns.of_one().await];
        let mut next = std::pin::pin!(turns.of_arena());
        let mut another = std::pin::pin!(turns.of_one());
        assert!(next.as_mut().now_or_never().is_none() && another.as_mut().now_or_never().is_none());
        drop(arena);
        assert!(another.as_mut().now_or_never().is_none(), "half of the places, without a pause");
        drop((next.now_or_never().expect("the next turn"), others));
        drop(another.now_or_never().expect("a place"));
        let alone = Turns::new(0);
        let arena = alone.of_arena().await;
        assert!(alone.of_one().now_or_never().is_none());
        drop(arena);
        assert!(alone.of_one().now_or_never().is_some());
    }
}
