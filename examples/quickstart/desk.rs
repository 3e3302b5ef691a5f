//! Where workers record what they do, and the resources that they write to.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use distlock_api::{FencedRegister, FencedWrite, FencingToken};
use distlock_examples::{Interrupt, Outcome};
use serde::{Deserialize, Serialize};

use crate::show::Show;

/// Something that a worker did. The time is the machine's, so that the events of several processes
/// can be shown together. It serves the display alone.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Event {
    pub(crate) at: Duration,
    pub(crate) worker: String,
    pub(crate) resource: String,
    pub(crate) token: Option<u64>,
    pub(crate) happening: Happening,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Happening {
    Acquired {
        waited: Duration,
    },
    GaveUp {
        waited: Duration,
    },
    FellAsleep {
        /// What is left of the lease.
        lease: Duration,
    },
    Lost,
    Releasing,
    Wrote,
    Refused {
        newest: u64,
    },
}

impl Event {
    pub(crate) fn now(worker: &str, resource: &str, token: Option<u64>, happening: Happening) -> Self {
        let at = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Self { at, worker: worker.to_owned(), resource: resource.to_owned(), token, happening }
    }
}

/// Where a worker records its events and writes.
#[async_trait]
pub(crate) trait Desk: Sync {
    async fn record(&self, event: Event);
    /// Writes to a resource. Returns `false` if the resource has seen a newer token, and refuses.
    async fn write(&self, worker: &str, resource: &str, token: u64) -> bool;
}

/// The resources and the display, shared by all workers of this run.
#[derive(Clone)]
pub(crate) struct Hub(Arc<Mutex<State>>);

struct State {
    /// Each resource holds the name of the last writer, and refuses writers whose token is not the
    /// newest.
    resources: HashMap<String, FencedRegister<String>>,
    show: Show,
}

impl Hub {
    pub(crate) fn new(show: Show) -> Self {
        Self(Arc::new(Mutex::new(State { resources: HashMap::new(), show })))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("no code in here panics")
    }

    pub(crate) fn record(&self, event: Event) {
        self.state().show.note(event);
    }

    pub(crate) fn write(&self, worker: &str, resource: &str, token: u64) -> bool {
        let mut state = self.state();
        let register = state.resources.entry(resource.to_owned()).or_default();
        let outcome = register.write(FencingToken::new(token), worker.to_owned());
        let happening = match outcome {
            FencedWrite::Accepted => Happening::Wrote,
            FencedWrite::FencedOff { newest } => Happening::Refused { newest: newest.get() },
        };
        state.show.note(Event::now(worker, resource, Some(token), happening));
        outcome.is_accepted()
    }

    /// Prints the summary.
    pub(crate) fn finish(&self, resources: &[&str], interrupt: &Interrupt) -> Outcome {
        self.state().show.summary(resources, !interrupt.is_pressed())
    }
}

/// The desk of workers in the same process as the display.
pub(crate) struct LocalDesk(pub(crate) Hub);

#[async_trait]
impl Desk for LocalDesk {
    async fn record(&self, event: Event) {
        self.0.record(event);
    }

    async fn write(&self, worker: &str, resource: &str, token: u64) -> bool {
        self.0.write(worker, resource, token)
    }
}
