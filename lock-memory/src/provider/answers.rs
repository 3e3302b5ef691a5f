//! What the state of a shard answers, and what remains to be done after its lock.

use std::task::Waker;

use distlock_api::{Busy, Loss};
use tokio::sync::watch;

use super::entry::Next;
use super::holders::LossSender;

/// The answer to an acquisition.
pub(super) enum Answer<T> {
    Granted(Grant<T>),
    Busy(Busy),
    Queued {
        token: u64,
    },
    /// Another caller has the key. This one has no waker to join the queue with, or should spin.
    Held,
}

/// A granted key.
pub(super) struct Grant<T> {
    pub(super) token: u64,
    /// The box for the guard, if there is a spare one.
    pub(super) spare: Option<Box<T>>,
}

/// What a waiter finds when it looks.
pub(super) enum Look<T> {
    Granted(Grant<T>),
    Closed,
    /// Its turn has not come. The waker that was registered before is to be dropped after the lock.
    Waits {
        replaced: Option<Waker>,
    },
}

/// How a guard learns of its loss.
pub(super) enum LossWatch {
    Lost(Loss),
    Held(watch::Receiver<Option<Loss>>),
    Released,
}

/// The work that remains after the lock, because it wakes tasks.
pub(super) struct FollowUp {
    pub(super) signal: Option<LossSender>,
    pub(super) next: Next,
}

/// How a turn ended.
pub(super) enum Ended {
    /// The key had been taken away before.
    Lost,
    /// The key is free again, or others have it. This waiter is to be woken; `None` if it did not
    /// need the end of this turn.
    NextWaiter(Option<Waker>),
    WithFollowUp(Box<FollowUp>),
}

/// The work that remains after a key was taken away.
pub(super) struct Taken {
    pub(super) loss: Loss,
    pub(super) signals: Vec<LossSender>,
    pub(super) next: Next,
}

impl Ended {
    #[inline]
    pub(super) fn with(signal: Option<LossSender>, next: Next) -> Self {
        match (signal, next) {
            (None, Next::Free) => Self::NextWaiter(None),
            (None, Next::Wake(waker)) => Self::NextWaiter(waker),
            (signal, next) => Self::WithFollowUp(Box::new(FollowUp { signal, next })),
        }
    }
}
