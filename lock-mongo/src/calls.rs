//! Calls of the driver, bounded without being cut off.
//!
//! A call that is dropped in flight costs the driver its connection, and leaves a dead waiter in the queue of the connection pool; enough of them, and live
//! calls time out behind them for many seconds after a hung server is back. So each call is a task of its own: who waited for it goes when the time is up, and the call
//! ends by itself, at the latest by the `maxTimeMS` that it carries.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use distlock_api::{ErrorKind, LockError, Result};
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};

use crate::error::{Effect, translate, unanswered};

/// How many calls of one store may be under way, those included that nobody waits for any more.
const AT_ONCE: usize = 1024;

/// The calls of one store.
#[derive(Clone, Debug)]
pub(crate) struct Calls(Arc<Semaphore>);

impl Default for Calls {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(AT_ONCE)))
    }
}

impl Calls {
    /// Waits for a call no longer than the budget allows. The inner result is the driver's.
    pub(crate) async fn attempt<T: Send + 'static>(
        &self,
        budget: Budget,
        effect: Effect,
        call: impl Future<Output = mongodb::error::Result<T>> + Send + 'static,
    ) -> Result<mongodb::error::Result<T>> {
        let unsent = |_| unanswered(budget.limit, Effect::None);
        let Ok(permit) = timeout(budget.left(), self.0.clone().acquire_owned()).await.map_err(unsent)? else {
            return Err(LockError::new(ErrorKind::Other, "the calls of a store are never closed"));
        };
        let task = tokio::spawn(async move {
            let result = call.await;
            drop(permit);
            result
        });
        match timeout(budget.left(), task).await {
            Ok(Ok(result)) => Ok(result),
            Ok(Err(ended)) => {
                let error = LockError::new(ErrorKind::Other, "a call of MongoDB ended with its runtime, or panicked");
                Err(error.outcome_unknown().with_source(ended))
            }
            Err(_) => Err(unanswered(budget.limit, effect)),
        }
    }

    /// The same, with the driver's error translated.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        budget: Budget,
        effect: Effect,
        call: impl Future<Output = mongodb::error::Result<T>> + Send + 'static,
    ) -> Result<T> {
        self.attempt(budget, effect, call).await?.map_err(|error| translate(&error, effect))
    }
}

/// The time of one request.
#[derive(Clone, Copy)]
pub(crate) struct Budget {
    limit: Duration,
    since: Instant,
}

impl Budget {
    pub(crate) fn new(limit: Duration) -> Self {
        Self { limit, since: Instant::now() }
    }

    pub(crate) fn left(&self) -> Duration {
        self.limit.saturating_sub(self.since.elapsed())
    }

    /// For `maxTimeMS`: a little less than what is left, so that the server's answer comes before we stop listening, and never zero, which is no bound.
    pub(crate) fn on_server(&self) -> Duration {
        (self.left() * 9 / 10).max(Duration::from_millis(1))
    }
}
