//! The waiters of one key, in order.

use std::task::Waker;

use distlock_api::{Holder, Mode};

use super::gap_deque::GapDeque;
use super::minimum_hold::MinimumHold;
use super::spin::Thread;

/// Waiters of all modes, in the order of their calls (C28).
pub(super) type Queue = GapDeque<Waiter>;

pub(super) struct Waiter {
    pub(super) waker: Waker,
    pub(super) thread: Thread,
    pub(super) mode: Mode,
    pub(super) holder: Holder,
    pub(super) hold: Option<MinimumHold>,
}
