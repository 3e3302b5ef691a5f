//! The holders of a key: one, or several beside each other.

use std::time::Duration;

use distlock_api::{Holder, Loss, Mode};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::Instant;

use super::gap_deque::GapDeque;
use super::minimum_hold::MinimumHold;

/// Which part of the code has the key, or a share of it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// A waiter that has been woken and has not looked yet.
    InTransit,
    /// A guard.
    Held,
    /// The timer of a minimum hold.
    MinimumHold,
}

pub(super) type LossSender = watch::Sender<Option<Loss>>;

/// What a holder has beyond its token, mode and phase. A plain one has none of it.
#[derive(Default)]
pub(super) struct Holding {
    pub(super) holder: Holder,
    /// The end of the minimum hold, and the runtime whose timer will wait for it.
    pub(super) hold: Option<(Instant, Handle)>,
    /// Created for the first guard that waits for its loss.
    pub(super) signal: Option<LossSender>,
}

/// One of several holders.
pub(super) struct Member {
    pub(super) phase: Phase,
    pub(super) mode: Mode,
    pub(super) holding: Holding,
}

/// The holders of a key that needs more than its entry.
pub(super) enum Holders {
    /// Its token, mode and phase are in the entry.
    One(Holding),
    Several(GapDeque<Member>),
}

impl Holding {
    /// Creates the holding of a grant, whose minimum hold begins now.
    pub(super) fn begin(holder: Holder, hold: Option<MinimumHold>) -> Self {
        Self { holder, hold: hold.map(MinimumHold::start), signal: None }
    }

    pub(super) fn subscribe(&mut self) -> watch::Receiver<Option<Loss>> {
        self.signal.get_or_insert_with(|| watch::Sender::new(None)).subscribe()
    }
}

impl Default for Holders {
    fn default() -> Self {
        Self::One(Holding::default())
    }
}

impl Holders {
    /// Returns the holders if they are listed. They are once there were several at the same time.
    pub(super) fn several(&self) -> Option<&GapDeque<Member>> {
        match self {
            Self::One(_) => None,
            Self::Several(members) => Some(members),
        }
    }

    /// Returns what reports the losses to guards that wait for them.
    pub(super) fn into_signals(self) -> impl Iterator<Item = LossSender> {
        let (only, listed) = match self {
            Self::One(holding) => (holding.signal, None),
            Self::Several(members) => (None, Some(members)),
        };
        let listed = listed.into_iter().flat_map(GapDeque::into_values);
        only.into_iter().chain(listed.filter_map(|member| member.holding.signal))
    }

    pub(super) fn several_mut(&mut self) -> Option<&mut GapDeque<Member>> {
        match self {
            Self::One(_) => None,
            Self::Several(members) => Some(members),
        }
    }
}

impl Member {
    pub(super) fn describe(&self, token: u64) -> HolderRef<'_> {
        HolderRef { token, mode: self.mode, phase: self.phase, holding: Some(&self.holding) }
    }
}

/// One holder, for reports.
#[derive(Clone, Copy)]
pub(super) struct HolderRef<'a> {
    pub(super) token: u64,
    pub(super) mode: Mode,
    pub(super) phase: Phase,
    pub(super) holding: Option<&'a Holding>,
}

impl<'a> HolderRef<'a> {
    pub(super) fn holder(&self) -> Option<&'a Holder> {
        self.holding.map(|holding| &holding.holder)
    }

    /// Returns how much longer a minimum hold without a guard keeps the key closed.
    pub(super) fn minimum_hold_left(&self) -> Option<Duration> {
        let (until, _) = self.holding?.hold.as_ref().filter(|_| self.phase == Phase::MinimumHold)?;
        Some(until.saturating_duration_since(Instant::now()))
    }

    /// Returns whether watchers have an event of this grant, and none of its end. The grant of an
    /// exclusive waiter is reported when it has looked, that of others in the step that grants it:
    /// they look in any order.
    pub(super) fn is_reported(&self) -> bool {
        match self.phase {
            Phase::InTransit => !self.mode.is_exclusive(),
            Phase::Held => true,
            Phase::MinimumHold => false,
        }
    }
}
