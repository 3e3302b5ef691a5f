//! The hold of one request, and what watches over it.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use distlock_api::LostSignal;
use tokio::task::AbortHandle;
use tokio::time::{Instant, Sleep, sleep_until};

use super::config::OnLoss;
use super::slot::{Ending, Slot};
use crate::held::HeldLock;

/// A request's locks. Dropped, they are released.
///
/// The signals that watch over it are made when something is pending for the first time: a request that is served at once pays for none.
#[derive(Debug)]
pub(crate) struct Hold {
    slot: Arc<Slot>,
    deadline: Option<Instant>,
    lost: Option<LostSignal>,
    timer: Option<Pin<Box<Sleep>>>,
    backstop: Option<AbortHandle>,
    /// Set while foreign code runs under the hold, so that its panic is told from a caller who went away.
    pub(crate) running: bool,
}

impl Hold {
    pub(crate) fn new(slot: Slot) -> Self {
        let deadline = slot.gate().config.max_hold.and_then(|max_hold| slot.since().checked_add(max_hold));
        Self { slot: Arc::new(slot), deadline, lost: None, timer: None, backstop: None, running: false }
    }

    pub(crate) fn held_lock(&self) -> HeldLock {
        HeldLock::new(self.slot.clone())
    }

    /// Whether the hold must end now.
    pub(crate) fn check(&self) -> Option<Ending> {
        if self.deadline.is_some_and(|deadline| deadline <= Instant::now()) {
            return Some(Ending::TooLong);
        }
        self.slot.check(self.aborts_on_loss())
    }

    /// Resolves when the hold must end.
    pub(crate) fn poll_ended(&mut self, cx: &mut Context<'_>) -> Poll<Ending> {
        if let Some(deadline) = self.deadline {
            let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(deadline)));
            if timer.as_mut().poll(cx).is_ready() {
                return Poll::Ready(Ending::TooLong);
            }
        }
        if self.aborts_on_loss() {
            let lost = self.lost.get_or_insert_with(|| self.slot.lost());
            return Pin::new(lost).poll(cx).map(Ending::Lost);
        }
        Poll::Pending
    }

    /// From now on the deadline is kept although nobody polls: a server does not poll a body whose reader is slow.
    pub(crate) fn keep_deadline_unpolled(&mut self) {
        if let Some(deadline) = self.deadline {
            let slot = self.slot.clone();
            let backstop = tokio::spawn(async move {
                sleep_until(deadline).await;
                slot.end(Ending::TooLong.reason().as_str(), Some(Ending::TooLong));
            });
            self.backstop = Some(backstop.abort_handle());
        }
    }

    /// The request was served.
    pub(crate) fn release(self) {
        self.slot.end("released", None);
    }

    /// The request is aborted. What served it must have been dropped.
    pub(crate) fn abort(self, ending: Ending) {
        self.slot.end(ending.reason().as_str(), Some(ending));
    }

    fn aborts_on_loss(&self) -> bool {
        self.slot.gate().config.on_loss == OnLoss::Abort
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if let Some(backstop) = &self.backstop {
            backstop.abort();
        }
        self.slot.end(if self.running { "panicked" } else { "cancelled" }, None);
    }
}
