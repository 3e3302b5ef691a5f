//! A key in use: its holder and its waiters.

use std::task::Waker;
use std::time::Duration;

use distlock_api::{Busy, Holder, LockKey, Loss, contained};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::Instant;

use super::minimum_hold::MinimumHold;
use super::queue::{Queue, Waiter};
use super::spin::Thread;

pub(super) struct Entry {
    pub(super) hash: u64,
    pub(super) key: LockKey,
    /// The token of the present grant.
    pub(super) token: u64,
    pub(super) phase: Phase,
    /// The thread of the present holder when it got the key.
    pub(super) thread: Thread,
    extra: Option<Box<Extra>>,
}

/// Which part of the code has the key.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// A waiter that has been woken and has not looked yet.
    InTransit,
    /// A guard.
    Held,
    /// The timer of a minimum hold.
    MinimumHold,
}

/// The data that an uncontended key with plain options does not need.
#[derive(Default)]
struct Extra {
    holder: Holder,
    /// The end of the present grant's minimum hold, and the runtime whose timer will wait for it.
    hold: Option<(Instant, Handle)>,
    /// Created for the first guard that waits for its loss.
    signal: Option<LossSender>,
    queue: Queue,
}

pub(super) type LossSender = watch::Sender<Option<Loss>>;

/// What has the key next.
pub(super) enum Next {
    /// A waiter, to be woken unless it spins. It finds the key under its own token.
    Waiter(Option<Waker>),
    /// A timer, before any waiter.
    Timer { until: Instant, runtime: Handle },
}

impl Entry {
    /// Creates the entry of a key that was free, held from now on.
    #[inline]
    pub(super) fn held(hash: u64, key: LockKey, token: u64, holder: &Holder, hold: Option<MinimumHold>) -> Self {
        let plain = hold.is_none() && holder.owner.is_none() && holder.metadata.is_none();
        let extra = (!plain).then(|| {
            let hold = hold.map(MinimumHold::start);
            Box::new(Extra { holder: holder.clone(), hold, ..Extra::default() })
        });
        Self { hash, key, token, phase: Phase::Held, thread: Thread::this(), extra }
    }

    /// Returns whether the key is only held: no waiter, no minimum hold, no guard that waits for
    /// its loss.
    #[inline]
    pub(super) fn is_plain(&self) -> bool {
        self.extra.is_none()
    }

    pub(super) fn enqueue(&mut self, token: u64, waiter: Waiter) {
        self.extra.get_or_insert_default().queue.push(token, waiter);
    }

    pub(super) fn queue(&mut self) -> Option<&mut Queue> {
        Some(&mut self.extra.as_mut()?.queue)
    }

    /// Returns whether another thread has the key, or is about to get it, and it has no waiter.
    pub(super) fn is_elsewhere(&self, here: Thread) -> bool {
        let no_waiter = self.extra.as_ref().is_none_or(|extra| extra.queue.is_empty());
        self.phase != Phase::MinimumHold && self.thread != here && no_waiter
    }

    /// Makes the first waiter the next holder, under the token that it has had since its request.
    pub(super) fn serve(&mut self) -> Option<Option<Waker>> {
        let extra = self.extra.as_mut()?;
        let (token, Waiter { waker, thread, holder, hold }) = extra.queue.pop()?;
        extra.holder = holder;
        extra.hold = hold.map(MinimumHold::start);
        self.token = token;
        self.thread = thread;
        self.phase = Phase::InTransit;
        Some(waker)
    }

    /// Starts the timer of the minimum hold (C25), if one is not over yet.
    pub(super) fn start_minimum_hold_timer(&mut self) -> Option<Next> {
        let (until, runtime) = self.extra.as_ref()?.hold.clone()?;
        if until <= Instant::now() {
            return None;
        }
        self.phase = Phase::MinimumHold;
        Some(Next::Timer { until, runtime })
    }

    /// Returns how much longer a minimum hold without a guard keeps the key closed.
    pub(super) fn minimum_hold_left(&self) -> Option<Duration> {
        let (until, _) = self.extra.as_ref()?.hold.as_ref().filter(|_| self.phase == Phase::MinimumHold)?;
        Some(until.saturating_duration_since(Instant::now()))
    }

    pub(super) fn subscribe(&mut self) -> watch::Receiver<Option<Loss>> {
        let extra = self.extra.get_or_insert_default();
        extra.signal.get_or_insert_with(|| watch::Sender::new(None)).subscribe()
    }

    pub(super) fn take_signal(&mut self) -> Option<LossSender> {
        self.extra.as_mut()?.signal.take()
    }

    pub(super) fn holder(&self) -> Option<&Holder> {
        self.extra.as_ref().map(|extra| &extra.holder)
    }

    pub(super) fn busy(&self) -> Busy {
        let ahead = self.extra.as_ref().map_or(0, |extra| extra.queue.len());
        Busy::new().with_retry_after(self.minimum_hold_left()).with_ahead(u32::try_from(ahead).ok())
    }

    /// Ends the entry because the provider was closed: reports the loss to the holder, and wakes
    /// the waiters, which find the state closed.
    pub(super) fn end_closed(self) {
        let Some(extra) = self.extra else { return };
        let Extra { signal, queue, .. } = *extra;
        if let Some(signal) = signal {
            contained(|| {
                signal.send_replace(Some(Loss::Closed));
            });
        }
        queue.into_waiters().filter_map(|waiter| waiter.waker).for_each(|waker| contained(|| waker.wake()));
    }
}
