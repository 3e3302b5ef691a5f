//! Records every call of the clients of a check.

mod provider;

use std::collections::{HashSet, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use distlock_api::{LockKey, Mode};
use tokio::time::Instant;

use crate::failure::{Failure, Verdict};
use crate::history::{Call, CallKind, End, Expected, Violation, violations, violations_amid_faults};

pub(crate) use provider::RecordedProvider;

/// How many calls of a check are recorded. A longer history cannot be judged.
const MOST: usize = 20_000;

/// How many requests to stores are kept.
const MOST_SENT: usize = 2_000;

/// The name of a renewal in [`CallKind::Sent`].
pub(crate) const RENEWAL: &str = "renewal";

/// The history of one check.
#[derive(Clone)]
pub(crate) struct Recorder(Arc<Inner>);

struct Inner {
    origin: Instant,
    history: Mutex<History>,
}

#[derive(Default)]
struct History {
    calls: Vec<Call>,
    /// The latest requests to stores.
    sent: VecDeque<Call>,
    clients: usize,
    truncated: bool,
}

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recorder").field("calls", &self.history().calls.len()).finish_non_exhaustive()
    }
}

impl Default for Recorder {
    fn default() -> Self {
        Self(Arc::new(Inner { origin: Instant::now(), history: Mutex::default() }))
    }
}

impl Recorder {
    fn history(&self) -> MutexGuard<'_, History> {
        self.0.history.lock().expect("not poisoned")
    }

    pub(crate) fn now(&self) -> Duration {
        self.0.origin.elapsed()
    }

    /// Returns the number of a new client, from 1 on.
    pub(crate) fn client(&self) -> usize {
        let mut history = self.history();
        history.clients += 1;
        history.clients
    }

    /// Records an acquisition that is about to be requested.
    pub(crate) fn acquisition(&self, client: usize, key: &LockKey, mode: Mode) -> Acquisition {
        self.acquisition_since(client, key, mode, self.now())
    }

    /// Records an acquisition that was requested at the moment `asked`.
    pub(crate) fn acquisition_since(&self, client: usize, key: &LockKey, mode: Mode, asked: Duration) -> Acquisition {
        let entry = self.entry(client, key, asked, None, CallKind::NotGranted);
        entry.change(|call| call.mode = mode);
        Acquisition(Some(entry))
    }

    /// Records a write under a token, from the moment `asked` until now.
    pub(crate) fn wrote(&self, client: usize, key: &LockKey, token: u64, asked: Duration) {
        self.entry(client, key, asked, Some(self.now()), CallKind::Wrote { token });
    }

    /// Records what the store has left of a key, queried at the moment `asked`.
    pub(crate) fn left(&self, client: usize, key: &LockKey, held: bool, waiting: u32, asked: Duration) {
        self.entry(client, key, asked, Some(self.now()), CallKind::Left { held, waiting });
    }

    /// Records that the client's last acquisition of the key has a ticket in the queue.
    pub(crate) fn queued(&self, client: usize, key: &LockKey) {
        let now = self.now();
        let is_meant = |call: &&mut Call| call.client == client && call.key == key.as_str() && call.answered.is_none();
        if let Some(call) = self.history().calls.iter_mut().rev().find(is_meant) {
            call.queued.get_or_insert(now);
        }
    }

    fn entry(
        &self,
        client: usize,
        key: &LockKey,
        asked: Duration,
        answered: Option<Duration>,
        what: CallKind,
    ) -> Entry {
        let call =
            Call { client, key: key.as_str().to_owned(), asked, answered, queued: None, mode: Mode::Exclusive, what };
        let mut history = self.history();
        let index = (history.calls.len() < MOST).then_some(history.calls.len());
        match index {
            Some(_) => history.calls.push(call),
            None => history.truncated = true,
        }
        Entry { recorder: self.clone(), index }
    }

    /// Returns all calls until now, without requests to stores.
    pub(crate) fn calls(&self) -> Vec<Call> {
        self.history().calls.clone()
    }

    /// Returns all calls until now, including requests to stores.
    pub(crate) fn everything(&self) -> Vec<Call> {
        let history = self.history();
        history.calls.iter().chain(&history.sent).cloned().collect()
    }

    /// Returns the longest time that an answer took, of those that did not wait for a lock: of the
    /// first acquisition of a key, of attempts that were busy, and of releases.
    pub(crate) fn slowest(&self) -> Duration {
        let (mut slowest, mut known) = (Duration::ZERO, HashSet::new());
        for call in &self.history().calls {
            let is_first = known.insert(call.key.as_str());
            let took = call.answered.map(|answered| answered.saturating_sub(call.asked)).unwrap_or_default();
            slowest = slowest.max(match &call.what {
                CallKind::Granted { end: End::Released { asked, answered }, .. } if !is_first => *answered - *asked,
                CallKind::Granted { end: End::Released { asked, answered }, .. } => took.max(*answered - *asked),
                CallKind::Granted { .. } if is_first => took,
                CallKind::Busy => took,
                _ => Duration::ZERO,
            });
        }
        slowest
    }

    /// Records a request to a store, with its answer and the time of that.
    pub(crate) fn sent(
        &self,
        client: usize,
        key: &LockKey,
        request: &str,
        asked: Instant,
        answer: Option<(Instant, String)>,
    ) {
        let since = |moment: Instant| moment.saturating_duration_since(self.0.origin);
        let (answered, answer) = answer.map(|(at, said)| (since(at), said)).unzip();
        let what = CallKind::Sent { request: request.to_owned(), answer };
        let (key, asked) = (key.as_str().to_owned(), since(asked));
        let call = Call { client, key, asked, answered, queued: None, mode: Mode::Exclusive, what };
        let mut history = self.history();
        history.sent.push_back(call);
        if history.sent.len() > MOST_SENT {
            history.sent.pop_front();
        }
    }

    /// Judges the calls of these keys.
    #[track_caller]
    pub(crate) fn verdict(&self, keys: &[LockKey], expected: Expected) -> Verdict {
        self.verdict_by(violations, keys, expected)
    }

    /// Judges them, if the outcome of requests to the store may have been unknown.
    #[track_caller]
    pub(crate) fn verdict_amid_faults(&self, keys: &[LockKey], expected: Expected) -> Verdict {
        self.verdict_by(violations_amid_faults, keys, expected)
    }

    #[track_caller]
    fn verdict_by(
        &self,
        violations: fn(&[Call], Expected) -> Vec<Violation>,
        keys: &[LockKey],
        expected: Expected,
    ) -> Verdict {
        let is_meant = |call: &&Call| keys.iter().any(|key| key.as_str() == call.key);
        let (calls, truncated): (Vec<Call>, bool) = {
            let history = self.history();
            (history.calls.iter().filter(is_meant).cloned().collect(), history.truncated)
        };
        let mut found = violations(&calls, expected);
        found.extend(truncated.then_some(Violation::Truncated { recorded: MOST }));
        let Some(first) = found.first() else { return Ok(()) };
        let others = found.len() - 1;
        let more = if others == 0 { String::new() } else { format!(" (and {others} more violations)") };
        Err(Failure::new(format!("{first}{more}")).shown_by(first.calls().to_vec()))
    }
}

/// The index of a call in the history.
struct Entry {
    recorder: Recorder,
    index: Option<usize>,
}

impl Entry {
    fn change(&self, change: impl FnOnce(&mut Call)) {
        if let Some(index) = self.index {
            change(&mut self.recorder.history().calls[index]);
        }
    }

    fn end(&self, how: End) {
        self.change(|call| {
            if let CallKind::Granted { end, .. } = &mut call.what {
                *end = how;
            }
        });
    }
}

/// A pending acquisition. If it is dropped, it was given up.
pub(crate) struct Acquisition(Option<Entry>);

impl Acquisition {
    pub(crate) fn granted(mut self, token: u64) -> Holding {
        let entry = self.0.take().expect("taken at its end");
        let now = entry.recorder.now();
        entry.change(|call| {
            (call.answered, call.what) = (Some(now), CallKind::Granted { token, until: now, end: End::Open });
        });
        Holding { entry: Some(entry) }
    }

    /// Records the answer "busy" to a single attempt: [`CallKind::Busy`] or [`CallKind::GaveWay`].
    pub(crate) fn busy(mut self, what: CallKind) {
        self.end(what);
    }

    fn end(&mut self, what: CallKind) {
        if let Some(entry) = self.0.take() {
            let now = entry.recorder.now();
            entry.change(|call| (call.answered, call.what) = (Some(now), what));
        }
    }
}

impl Drop for Acquisition {
    fn drop(&mut self) {
        self.end(CallKind::NotGranted);
    }
}

/// A hold. If it is dropped without an end, it ended at an unknown time.
pub(crate) struct Holding {
    entry: Option<Entry>,
}

impl Holding {
    pub(crate) fn now(&self) -> Duration {
        self.entry.as_ref().map(|entry| entry.recorder.now()).unwrap_or_default()
    }

    /// Records that the lock is held until this moment for certain.
    pub(crate) fn until(&self, moment: Duration) {
        let Some(entry) = &self.entry else { return };
        entry.change(|call| {
            if let CallKind::Granted { until, .. } = &mut call.what {
                *until = moment.max(*until);
            }
        });
    }

    /// Records a release in time that was requested at `asked` and has just been answered.
    pub(crate) fn released(mut self, asked: Duration) {
        let answered = self.now();
        self.finish(End::Released { asked, answered });
    }

    /// Records that the lease was lost, or left to expire.
    pub(crate) fn lost(mut self) {
        self.finish(End::Lost);
    }

    /// Records that the hold ends from now on, at an unknown time as long as nothing else is known.
    pub(crate) fn ends(&self) {
        if let Some(entry) = &self.entry {
            entry.end(End::Unknown);
        }
    }

    fn finish(&mut self, how: End) {
        if let Some(entry) = self.entry.take() {
            entry.end(how);
        }
    }
}

impl Drop for Holding {
    fn drop(&mut self) {
        self.finish(End::Unknown);
    }
}
