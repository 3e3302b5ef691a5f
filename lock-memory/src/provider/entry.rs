//! A key in use: its holders and its waiters.

use std::task::Waker;
use std::time::Duration;

use distlock_api::style::contained;
use distlock_api::{Busy, Holder, LockKey, Loss, Mode};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::Instant;

use super::events::EventSender;
use super::gap_deque::GapDeque;
use super::holders::{HolderRef, Holders, Holding, LossSender, Member, Phase};
use super::minimum_hold::MinimumHold;
use super::queue::{Queue, Waiter};
use super::spin::Thread;

pub(super) struct Entry {
    pub(super) hash: u64,
    pub(super) key: LockKey,
    /// The token that was granted last. While there is one holder, its token.
    pub(super) token: u64,
    extra: Option<Box<Extra>>,
    /// What all holders together have of the key: their modes are of one kind.
    mode: Mode,
    /// The thread of the present holder when it got the key.
    thread: Thread,
    /// The phase of the only holder. `None` if the holders are listed, each with a phase of its
    /// own.
    phase: Option<Phase>,
}

/// The data that an uncontended key with plain options does not need.
#[derive(Default)]
struct Extra {
    holders: Holders,
    queue: Queue,
}

/// What has the key next.
pub(super) enum Next {
    /// Nothing. The key is free, and its entry is to be removed.
    Free,
    /// One waiter, to be woken, or the holders that are left. A waiter finds the key under its own
    /// token.
    Wake(Option<Waker>),
    /// Several waiters, together.
    WakeAll(Vec<Waker>),
    /// A timer, before any waiter.
    Timer { until: Instant, runtime: Handle },
}

impl Entry {
    /// Creates the entry of a key that was free, held from now on.
    #[inline]
    pub(super) fn held(
        hash: u64,
        key: LockKey,
        token: u64,
        mode: Mode,
        holder: &Holder,
        hold: Option<MinimumHold>,
    ) -> Self {
        let plain = hold.is_none() && holder.owner.is_none() && holder.metadata.is_none();
        let extra = (!plain).then(|| {
            let holders = Holders::One(Holding::begin(holder.clone(), hold));
            Box::new(Extra { holders, ..Extra::default() })
        });
        Self { hash, key, token, extra, mode, thread: Thread::this(), phase: Some(Phase::Held) }
    }

    /// Returns whether the key is only held: no waiter, no minimum hold, no guard that waits for
    /// its loss, one holder.
    #[inline]
    pub(super) fn is_plain(&self) -> bool {
        self.extra.is_none()
    }

    /// Returns whether the grant with this token holds the key.
    #[inline]
    pub(super) fn holds(&self, token: u64) -> bool {
        match self.phase {
            Some(_) => self.token == token,
            None => self.members().is_some_and(|members| members.get(token).is_some()),
        }
    }

    /// Returns whether a request is granted beside the present holders: it fits, and no caller
    /// waits (C28).
    #[inline]
    pub(super) fn admits(&self, mode: Mode) -> bool {
        !mode.is_exclusive() && self.has_no_waiter() && mode.fits([self.mode])
    }

    /// Adds a guard beside the present holders.
    pub(super) fn admit(&mut self, token: u64, mode: Mode, holder: Holder, hold: Option<MinimumHold>) {
        self.add(token, Member { phase: Phase::Held, mode, holding: Holding::begin(holder, hold) });
    }

    fn add(&mut self, token: u64, member: Member) {
        let extra = self.extra.get_or_insert_default();
        if let (Some(phase), Holders::One(holding)) = (self.phase.take(), &mut extra.holders) {
            let mut members = GapDeque::default();
            members.push(self.token, Member { phase, mode: self.mode, holding: std::mem::take(holding) });
            extra.holders = Holders::Several(members);
        }
        if let Some(members) = extra.holders.several_mut() {
            if let (Mode::Permits { take, .. }, Mode::Permits { take: more, .. }) = (&mut self.mode, member.mode) {
                *take += more;
            }
            self.token = token;
            members.push(token, member);
        }
    }

    #[inline]
    pub(super) fn enqueue(&mut self, token: u64, waiter: Waiter) {
        self.extra.get_or_insert_default().queue.push(token, waiter);
    }

    pub(super) fn queue(&mut self) -> Option<&mut Queue> {
        Some(&mut self.extra.as_mut()?.queue)
    }

    #[inline]
    fn has_no_waiter(&self) -> bool {
        self.extra.as_ref().is_none_or(|extra| extra.queue.is_empty())
    }

    /// Returns whether another thread has the key, or is about to get it, and it has no waiter.
    #[inline]
    pub(super) fn is_elsewhere(&self, here: Thread) -> bool {
        let by_thread = matches!(self.phase, Some(Phase::InTransit | Phase::Held));
        by_thread && self.thread != here && self.has_no_waiter()
    }

    /// Returns whether the grant with this token has a guard.
    #[inline]
    pub(super) fn is_held(&self, token: u64) -> bool {
        match self.phase {
            Some(phase) => phase == Phase::Held,
            None => self.grant(token).is_some_and(|grant| grant.phase == Phase::Held),
        }
    }

    /// Makes a grant in transit a guard.
    #[inline]
    pub(super) fn arrive(&mut self, token: u64) {
        self.thread = Thread::this();
        self.set_phase(token, Phase::Held);
    }

    #[inline]
    fn set_phase(&mut self, token: u64, phase: Phase) {
        match &mut self.phase {
            Some(own) => *own = phase,
            None => {
                if let Some(member) = self.members_mut().and_then(|members| members.get_mut(token)) {
                    member.phase = phase;
                }
            }
        }
    }

    /// Ends a grant, and starts its minimum hold if that is not over (C25). Returns the sender for
    /// guards that wait for a loss, and what has the key next.
    #[inline]
    pub(super) fn end(
        &mut self,
        token: u64,
        was_held: bool,
        events: Option<&EventSender>,
    ) -> (Option<LossSender>, Next) {
        let (mut signal, mut timer) = (None, None);
        if let Some(holding) = self.holding_mut(token) {
            signal = holding.signal.take();
            let hold = holding.hold.as_ref().filter(|_| was_held);
            timer = hold.filter(|(until, _)| *until > Instant::now()).cloned();
        }
        if let Some((until, runtime)) = timer {
            self.set_phase(token, Phase::MinimumHold);
            return (signal, Next::Timer { until, runtime });
        }
        (signal, self.remove(&[token], events))
    }

    /// Removes these holders, and grants the key to the waiters whose turn it is then.
    #[inline]
    pub(super) fn remove(&mut self, tokens: &[u64], events: Option<&EventSender>) -> Next {
        if self.phase.is_none() && self.remove_members(tokens) {
            return self.serve_beside(events);
        }
        self.serve(events)
    }

    /// Removes some of several holders. Returns whether others are left.
    fn remove_members(&mut self, tokens: &[u64]) -> bool {
        let mut others_left = false;
        for token in tokens {
            let Some(members) = self.members_mut() else { break };
            let removed = members.remove(*token);
            others_left = !members.is_empty();
            if let Some(Mode::Permits { take: less, .. }) = removed.map(|member| member.mode)
                && let Mode::Permits { take, .. } = &mut self.mode
            {
                *take -= less;
            }
        }
        others_left
    }

    /// Grants the key, which has no holder, to the first waiter, under the token that it has had
    /// since its request, and to those behind it that fit beside it.
    #[inline]
    fn serve(&mut self, events: Option<&EventSender>) -> Next {
        let Some(extra) = &mut self.extra else { return Next::Free };
        let Some((token, waiter)) = extra.queue.pop() else { return Next::Free };
        let Waiter { waker, thread, mode, holder, hold } = waiter;
        match &mut extra.holders {
            // In place, which is quicker.
            Holders::One(holding) => {
                holding.holder = holder;
                holding.hold = hold.map(MinimumHold::start);
                holding.signal = None;
            }
            several @ Holders::Several(_) => *several = Holders::One(Holding::begin(holder, hold)),
        }
        (self.token, self.thread, self.mode, self.phase) = (token, thread, mode, Some(Phase::InTransit));
        if mode.is_exclusive() {
            return Next::Wake(Some(waker));
        }
        self.serve_behind(waker, events)
    }

    /// Continues after the grant to a first waiter that is not exclusive, with this waker.
    #[inline(never)]
    fn serve_behind(&mut self, waker: Waker, events: Option<&EventSender>) -> Next {
        self.report_grant(self.token, events);
        if !self.first_waiter_fits() {
            return Next::Wake(Some(waker));
        }
        let mut wakers = vec![waker];
        self.serve_run(&mut wakers, events);
        Next::WakeAll(wakers)
    }

    /// Grants the key to the first waiters that fit beside the present holders.
    pub(super) fn serve_beside(&mut self, events: Option<&EventSender>) -> Next {
        let mut wakers = Vec::new();
        self.serve_run(&mut wakers, events);
        if wakers.is_empty() { Next::Wake(None) } else { Next::WakeAll(wakers) }
    }

    fn serve_run(&mut self, wakers: &mut Vec<Waker>, events: Option<&EventSender>) {
        while self.first_waiter_fits()
            && let Some((token, waiter)) = self.queue().and_then(Queue::pop)
        {
            let Waiter { waker, mode, holder, hold, .. } = waiter;
            self.add(token, Member { phase: Phase::InTransit, mode, holding: Holding::begin(holder, hold) });
            self.report_grant(token, events);
            wakers.push(waker);
        }
    }

    fn first_waiter_fits(&self) -> bool {
        let first = self.extra.as_ref().and_then(|extra| extra.queue.first());
        first.is_some_and(|waiter| waiter.mode.fits([self.mode]))
    }

    /// Reports a grant to watchers.
    pub(super) fn report_grant(&self, token: u64, events: Option<&EventSender>) {
        if let Some(events) = events
            && let Some(grant) = self.grant(token)
        {
            events.granted(&self.key, token, grant.mode, grant.holder());
        }
    }

    pub(super) fn forget_minimum_hold(&mut self, token: u64) {
        if let Some(holding) = self.holding_mut(token) {
            holding.hold = None;
        }
    }

    /// Returns how much longer minimum holds without a guard keep the key closed; `None` if it has
    /// a guard.
    pub(super) fn minimum_hold_left(&self) -> Option<Duration> {
        let mut longest = None;
        for grant in self.grants() {
            longest = longest.max(Some(grant.minimum_hold_left()?));
        }
        longest
    }

    pub(super) fn subscribe(&mut self, token: u64) -> watch::Receiver<Option<Loss>> {
        self.extra.get_or_insert_default();
        match self.holding_mut(token) {
            Some(holding) => holding.subscribe(),
            None => watch::Sender::new(None).subscribe(),
        }
    }

    pub(super) fn take_signal(&mut self, token: u64) -> Option<LossSender> {
        self.holding_mut(token)?.signal.take()
    }

    /// Returns the holders in the order of their grants.
    pub(super) fn grants(&self) -> impl Iterator<Item = HolderRef<'_>> {
        let only = self.phase.map(|phase| {
            let holding = self.extra.as_ref().and_then(|extra| match &extra.holders {
                Holders::One(holding) => Some(holding),
                Holders::Several(_) => None,
            });
            HolderRef { token: self.token, mode: self.mode, phase, holding }
        });
        let listed = self.members().into_iter().flat_map(GapDeque::iter);
        only.into_iter().chain(listed.map(|(token, member)| member.describe(token)))
    }

    /// Returns the holder with this token.
    pub(super) fn grant(&self, token: u64) -> Option<HolderRef<'_>> {
        match self.members() {
            Some(members) => Some(members.get(token)?.describe(token)),
            None => self.grants().next().filter(|only| only.token == token),
        }
    }

    /// Returns whether the key has one exclusive holder.
    #[inline]
    pub(super) fn is_exclusive(&self) -> bool {
        self.mode.is_exclusive()
    }

    #[inline]
    fn holding_mut(&mut self, token: u64) -> Option<&mut Holding> {
        match &mut self.extra.as_mut()?.holders {
            Holders::One(holding) => Some(holding),
            Holders::Several(members) => Some(&mut members.get_mut(token)?.holding),
        }
    }

    fn members(&self) -> Option<&GapDeque<Member>> {
        self.extra.as_ref()?.holders.several()
    }

    fn members_mut(&mut self) -> Option<&mut GapDeque<Member>> {
        self.extra.as_mut()?.holders.several_mut()
    }

    pub(super) fn busy(&self) -> Busy {
        let ahead = self.extra.as_ref().map_or(0, |extra| extra.queue.len());
        Busy::new().with_retry_after(self.minimum_hold_left()).with_ahead(u32::try_from(ahead).ok())
    }

    /// Ends the entry because the provider was closed: reports the loss to the holders, and wakes
    /// the waiters, which find the state closed.
    pub(super) fn end_closed(self) {
        let Some(extra) = self.extra else { return };
        let Extra { holders, queue } = *extra;
        holders.into_signals().for_each(|signal| {
            contained(|| {
                signal.send_replace(Some(Loss::Closed));
            });
        });
        queue.into_values().for_each(|waiter| contained(|| waiter.waker.wake()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_and_a_waiter_are_small() {
        assert_eq!((size_of::<Entry>(), size_of::<Waiter>()), (64, 80));
    }
}
