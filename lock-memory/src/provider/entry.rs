//! A key in use: who has it, who waits for it.

use std::collections::BTreeMap;
use std::time::Duration;

use distlock_api::{Busy, Holder, LockKey, Loss};
use tokio::runtime::Handle;
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;

use super::Hold;
use super::turn::Turn;

pub(super) struct Entry {
    pub(super) hash: u64,
    pub(super) key: LockKey,
    /// Of the present grant.
    pub(super) token: u64,
    pub(super) phase: Phase,
    extra: Option<Box<Extra>>,
}

/// Where the right to the key is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// On its way to a waiter.
    Travelling,
    /// In a guard.
    Held,
    /// With the timer of a minimum hold.
    Resting,
}

/// What an uncontended key with plain options does without.
#[derive(Default)]
struct Extra {
    holder: Holder,
    /// The end of the present grant's minimum hold, and whose timer will wait for it.
    hold: Option<(Instant, Handle)>,
    /// Made when somebody first asks for it.
    signal: Option<LossSender>,
    /// In the order of their tickets.
    waiters: BTreeMap<u64, Waiter>,
}

pub(super) type LossSender = watch::Sender<Option<Loss>>;

pub(super) struct Waiter {
    pub(super) holder: Holder,
    pub(super) hold: Option<Hold>,
    pub(super) sender: oneshot::Sender<Turn>,
}

/// Who has a key next.
pub(super) enum Next {
    Waiter {
        sender: oneshot::Sender<Turn>,
        token: u64,
    },
    /// A timer, before any waiter.
    Timer {
        until: Instant,
        runtime: Handle,
    },
}

impl Entry {
    /// A key that was free, held from now on.
    #[inline]
    pub(super) fn held(hash: u64, key: LockKey, token: u64, holder: &Holder, hold: Option<Hold>) -> Self {
        let plain = hold.is_none() && holder.owner.is_none() && holder.metadata.is_none();
        let extra = (!plain).then(|| {
            let hold = hold.map(Hold::start);
            Box::new(Extra { holder: holder.clone(), hold, ..Extra::default() })
        });
        Self { hash, key, token, phase: Phase::Held, extra }
    }

    /// Nothing but a key that is held: no waiter, nobody to be told anything.
    #[inline]
    pub(super) fn is_plain(&self) -> bool {
        self.extra.is_none()
    }

    pub(super) fn enqueue(&mut self, ticket: u64, waiter: Waiter) {
        self.extra.get_or_insert_default().waiters.insert(ticket, waiter);
    }

    pub(super) fn dequeue(&mut self, ticket: u64) -> Option<Waiter> {
        self.extra.as_mut()?.waiters.remove(&ticket)
    }

    /// Makes the first waiter the next holder, with a new token.
    pub(super) fn serve(&mut self, last_token: &mut u64) -> Option<Next> {
        let extra = self.extra.as_mut()?;
        let (_, Waiter { holder, hold, sender }) = extra.waiters.pop_first()?;
        extra.holder = holder;
        extra.hold = hold.map(Hold::start);
        *last_token += 1;
        self.token = *last_token;
        self.phase = Phase::Travelling;
        Some(Next::Waiter { sender, token: self.token })
    }

    /// Begins the rest of a minimum hold (C25), if there is one.
    pub(super) fn rest(&mut self) -> Option<Next> {
        let (until, runtime) = self.extra.as_ref()?.hold.clone()?;
        if until <= Instant::now() {
            return None;
        }
        self.phase = Phase::Resting;
        Some(Next::Timer { until, runtime })
    }

    /// How much longer a minimum hold without a guard keeps the key closed.
    pub(super) fn resting(&self) -> Option<Duration> {
        let (until, _) = self.extra.as_ref()?.hold.as_ref().filter(|_| self.phase == Phase::Resting)?;
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
        let ahead = self.extra.as_ref().map_or(0, |extra| extra.waiters.len());
        Busy::new().with_retry_after(self.resting()).with_ahead(u32::try_from(ahead).ok())
    }

    /// The provider was closed: the holder has lost the lock, and the waiters, whose channels are dropped, hear that nothing comes.
    pub(super) fn end_closed(mut self) {
        if let Some(signal) = self.take_signal() {
            signal.send_replace(Some(Loss::Closed));
        }
    }
}
