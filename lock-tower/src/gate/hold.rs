//! The hold of one request, and what ends it early.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use distlock_api::LostSignal;
use tokio::task::AbortHandle;
use tokio::time::{Instant, Sleep, sleep_until};

use super::ending::Ending;
use super::slot::Slot;

/// The locks of a request. They are released when this is dropped.
#[derive(Debug)]
pub(crate) struct Hold {
    slot: Arc<Slot>,
    /// Made at the first pending poll, so that a request that is served at once does not pay for
    /// it.
    watch: Option<Box<Watch>>,
    stage: Stage,
}

/// How far the request is. It decides what dropping the hold means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Nothing runs under the hold. If it is dropped now, the request was cancelled.
    Paused,
    /// The inner service runs under the hold. If it is dropped now, that service has panicked.
    Running,
    Served,
    Aborted(Ending),
}

/// The sources of an early end.
#[derive(Debug, Default)]
struct Watch {
    lost: Option<LostSignal>,
    timer: Option<Pin<Box<Sleep>>>,
    backstop: Option<AbortHandle>,
}

impl Hold {
    #[inline]
    pub(super) fn new(slot: Arc<Slot>) -> Self {
        Self { slot, watch: None, stage: Stage::Paused }
    }

    pub(crate) fn slot(&self) -> &Arc<Slot> {
        &self.slot
    }

    /// Runs code of the inner service under the hold.
    pub(crate) fn run<T>(&mut self, inner: impl FnOnce() -> T) -> T {
        self.stage = Stage::Running;
        let done = inner();
        self.stage = Stage::Paused;
        done
    }

    /// Returns why the hold must end now, if it must.
    pub(crate) fn check(&self) -> Option<Ending> {
        if self.slot.deadline().is_some_and(|deadline| deadline <= Instant::now()) {
            return Some(Ending::TooLong);
        }
        self.slot.check(self.slot.aborts_on_loss())
    }

    /// Resolves when the hold must end.
    pub(crate) fn poll_ended(&mut self, cx: &mut Context<'_>) -> Poll<Ending> {
        let aborts_on_loss = self.slot.aborts_on_loss();
        let watch = self.watch.get_or_insert_default();
        if let Some(deadline) = self.slot.deadline() {
            let timer = watch.timer.get_or_insert_with(|| Box::pin(sleep_until(deadline)));
            if timer.as_mut().poll(cx).is_ready() {
                return Poll::Ready(Ending::TooLong);
            }
        }
        if aborts_on_loss {
            let lost = watch.lost.get_or_insert_with(|| self.slot.lost());
            return Pin::new(lost).poll(cx).map(Ending::Lost);
        }
        Poll::Pending
    }

    /// Enforces the deadline from now on even without polls: a server does not poll a body whose
    /// reader is slow.
    pub(crate) fn keep_deadline_unpolled(&mut self) {
        if let Some(deadline) = self.slot.deadline() {
            let slot = self.slot.clone();
            let backstop = tokio::spawn(async move {
                sleep_until(deadline).await;
                slot.end(Ending::TooLong.reason().as_str(), Some(Ending::TooLong));
            });
            self.watch.get_or_insert_default().backstop = Some(backstop.abort_handle());
        }
    }

    /// The request was served.
    pub(crate) fn release(mut self) {
        self.stage = Stage::Served;
    }

    /// The request is aborted. What served it must have been dropped.
    pub(crate) fn abort(mut self, ending: Ending) {
        self.stage = Stage::Aborted(ending);
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if let Some(backstop) = self.watch.as_ref().and_then(|watch| watch.backstop.as_ref()) {
            backstop.abort();
        }
        match self.stage {
            Stage::Paused => self.slot.end("cancelled", None),
            Stage::Running => self.slot.end("panicked", None),
            Stage::Served => self.slot.end("released", None),
            Stage::Aborted(ending) => self.slot.end(ending.reason().as_str(), Some(ending)),
        }
    }
}
