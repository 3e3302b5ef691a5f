//! A journal of what tasks do, and a provider whose answers are scripted.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::fmt;
use std::future::{Future, pending, poll_fn};
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use distlock_api::{
    Accounting, AcquireOptions, Acquired, Capabilities, ErrorKind, LockAdmin, LockError, LockKey, LockProvider, Result,
    Wait, async_trait,
};
use distlock_memory::MemoryStore;
use distlock_recipes::lead::Term;
use tokio::task::coop::consume_budget;
use tokio::time::Instant;

pub(crate) const TTL: Duration = Duration::from_secs(10);

/// One line per step, in the order of the steps.
#[derive(Clone, Default)]
pub(crate) struct Journal(Arc<Mutex<Vec<(Instant, String)>>>);

impl Journal {
    pub(crate) fn note(&self, line: impl Into<String>) {
        self.0.lock().unwrap().push((Instant::now(), line.into()));
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        self.0.lock().unwrap().iter().map(|(_, line)| line.clone()).collect()
    }

    /// When a line was noted first.
    pub(crate) fn time(&self, wanted: &str) -> Instant {
        let lines = self.0.lock().unwrap();
        lines.iter().find(|(_, line)| line == wanted).unwrap_or_else(|| panic!("no {wanted:?} in {lines:?}")).0
    }

    /// Notes that it is dropped.
    pub(crate) fn visit(&self, name: &str) -> Visit {
        self.note(format!("{name} starts"));
        Visit { journal: self.clone(), name: name.to_owned() }
    }

    /// A task that works until it is dropped.
    pub(crate) async fn work(self, name: &'static str, _term: Term) -> Result<(), Infallible> {
        let _visit = self.visit(name);
        pending().await
    }
}

pub(crate) struct Visit {
    journal: Journal,
    name: String,
}

impl Drop for Visit {
    fn drop(&mut self) {
        self.journal.note(format!("{} is dropped", self.name));
    }
}

/// Polls a future as a task does that polls others first, which use its cooperative budget up.
pub(crate) async fn poll_without_budget<F: Future>(mut future: Pin<&mut F>) -> Poll<F::Output> {
    poll_fn(|cx| {
        while pin!(consume_budget()).poll(cx).is_ready() {}
        Poll::Ready(future.as_mut().poll(cx))
    })
    .await
}

/// What a scripted provider answers.
pub(crate) enum Answer {
    Error(ErrorKind),
    /// That of a provider on a store of its own.
    Real,
}

/// Answers as scripted, then with the real provider. Records when it was called, and the wait.
#[derive(Clone)]
pub(crate) struct Scripted {
    inner: Arc<dyn LockProvider>,
    script: Arc<Mutex<VecDeque<Answer>>>,
    calls: Arc<Mutex<Vec<(Instant, Wait)>>>,
}

impl Scripted {
    pub(crate) fn new(store: &MemoryStore, script: impl IntoIterator<Item = Answer>) -> Self {
        let script = Arc::new(Mutex::new(script.into_iter().collect()));
        Self { inner: Arc::new(store.provider()), script, calls: Arc::default() }
    }

    pub(crate) fn waits(&self) -> Vec<Wait> {
        self.calls.lock().unwrap().iter().map(|(_, wait)| *wait).collect()
    }

    /// The pauses between the calls.
    pub(crate) fn pauses(&self) -> Vec<Duration> {
        let calls = self.calls.lock().unwrap();
        calls.windows(2).map(|pair| pair[1].0 - pair[0].0).collect()
    }
}

impl fmt::Debug for Scripted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Scripted")
    }
}

impl fmt::Display for Scripted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("scripted")
    }
}

#[async_trait]
impl LockProvider for Scripted {
    async fn acquire_with(&self, key: LockKey, options: AcquireOptions) -> Result<Acquired> {
        self.calls.lock().unwrap().push((Instant::now(), options.wait()));
        let answer = self.script.lock().unwrap().pop_front();
        match answer {
            Some(Answer::Error(kind)) => Err(LockError::new(kind, "scripted")),
            Some(Answer::Real) | None => self.inner.acquire_with(key, options).await,
        }
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn accounting(&self) -> Accounting {
        self.inner.accounting()
    }

    fn admin(&self) -> Option<&dyn LockAdmin> {
        None
    }

    async fn close(&self) -> Result<()> {
        self.inner.close().await
    }
}
