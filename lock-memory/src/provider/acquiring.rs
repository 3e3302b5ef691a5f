//! One acquisition, from the request to the guard.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use distlock_api::style::contained;
use distlock_api::{
    AcquireOptions, Acquired, Busy, Capabilities, FencingToken, LeaseHandle, LockError, LockGuard, LockKey, Result,
    Wait,
};
use tokio::task::coop::poll_proceed;
use tokio::task::yield_now;
use tokio::time::{Sleep, sleep};

use super::answers::{self, Answer, Look};
use super::max_hold::MaxHold;
use super::minimum_hold::MinimumHold;
use super::shards::Shards;
use super::spin::{SpinBudget, SpinPolicy};
use super::turn::{Turn, TurnShard, settle};

type Grant = answers::Grant<Turn>;

/// A running acquisition. A hand-written future is half as large as an `async` block, and each one
/// is moved into a box of its own.
///
/// If it is dropped while it waits, it leaves the queue. If its turn has come, the turn passes on
/// (C11).
pub(super) struct Acquiring<'a> {
    shards: &'a Shards,
    /// `None` once the guard has it.
    key: Option<LockKey>,
    options: AcquireOptions,
    /// `Some` while it waits.
    position: Option<QueuePosition<'a>>,
    /// The timer of a bounded wait.
    timer: Option<Pin<Box<Sleep>>>,
    max_hold: Option<Box<MaxHold>>,
    /// An answer that came without a wait, and is returned at the next poll.
    refusal: Option<Box<Result<Acquired>>>,
}

#[derive(Clone, Copy)]
struct QueuePosition<'a> {
    shard: &'a Arc<TurnShard>,
    hash: u64,
    /// The token of the guard to come.
    token: u64,
}

impl<'a> Acquiring<'a> {
    #[inline]
    pub(super) fn new(shards: &'a Shards, key: LockKey, options: AcquireOptions) -> Self {
        Self { shards, key: Some(key), options, position: None, timer: None, max_hold: None, refusal: None }
    }

    /// Makes the request. A task may ask again and again without a wait, and must not stop the
    /// timers of its runtime by that. So a caller that is granted keys uses up its budget, and one
    /// that is refused lets other tasks run.
    #[inline]
    fn begin(&mut self, cx: &mut Context<'_>) -> Poll<Result<Acquired>> {
        ready!(poll_proceed(cx)).made_progress();
        match self.request(cx) {
            Poll::Ready(answer) if !matches!(answer, Ok(Acquired::Held(_))) => self.refuse(answer, cx),
            answer => answer,
        }
    }

    #[cold]
    fn refuse(&mut self, answer: Result<Acquired>, cx: &mut Context<'_>) -> Poll<Result<Acquired>> {
        match pin!(yield_now()).poll(cx) {
            Poll::Ready(()) => Poll::Ready(answer),
            Poll::Pending => {
                self.refusal = Some(Box::new(answer));
                Poll::Pending
            }
        }
    }

    #[inline]
    fn request(&mut self, cx: &mut Context<'_>) -> Poll<Result<Acquired>> {
        let key = self.key.as_ref().expect("polled after completion");
        let mut hold = validated(&self.options)?;
        self.max_hold = MaxHold::of(&self.options)?.map(Box::new);
        let (hash, shard) = self.shards.of(key);
        let answer = shard.lock().acquire(hash, key, &self.options, &mut hold, Some(cx.waker()), SpinPolicy::IfAdvised);
        match answer? {
            Answer::Granted(grant) => Poll::Ready(Ok(self.held(shard, hash, grant))),
            Answer::Busy(busy) => Poll::Ready(Ok(Acquired::Busy(busy))),
            Answer::Queued { token } => {
                self.join(QueuePosition { shard, hash, token });
                self.wait(cx)
            }
            Answer::Held => self.spin(shard, hash, hold, cx),
        }
    }

    /// Spins for a moment, then joins the queue.
    #[cold]
    fn spin(
        &mut self,
        shard: &'a Arc<TurnShard>,
        hash: u64,
        mut hold: Option<MinimumHold>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Acquired>> {
        let key = self.key.as_ref().expect("a caller that spins has no guard yet");
        let (mut budget, mut policy) = (SpinBudget::default(), SpinPolicy::Spinning);
        loop {
            let seen = shard.ended.get();
            let answer = shard.lock().acquire(hash, key, &self.options, &mut hold, Some(cx.waker()), policy)?;
            return match answer {
                Answer::Granted(grant) => Poll::Ready(Ok(self.held(shard, hash, grant))),
                Answer::Busy(busy) => Poll::Ready(Ok(Acquired::Busy(busy))),
                Answer::Queued { token } => {
                    self.join(QueuePosition { shard, hash, token });
                    self.wait(cx)
                }
                Answer::Held => {
                    if !budget.wait(&shard.ended, seen) {
                        policy = SpinPolicy::Exhausted;
                    }
                    continue;
                }
            };
        }
    }

    /// Records the position in the queue and starts the timer of a bounded wait.
    fn join(&mut self, position: QueuePosition<'a>) {
        self.position = Some(position);
        if let Wait::UpTo(limit) = self.options.wait() {
            self.timer = Some(Box::pin(sleep(limit)));
        }
    }

    fn turn(&mut self, position: QueuePosition<'a>, cx: &mut Context<'_>) -> Poll<Result<Acquired>> {
        match self.look(position, cx.waker()) {
            Poll::Ready(answer) => Poll::Ready(answer),
            Poll::Pending => self.wait(cx),
        }
    }

    fn look(&mut self, position: QueuePosition<'a>, waker: &Waker) -> Poll<Result<Acquired>> {
        let QueuePosition { shard, hash, token } = position;
        let key = self.key.as_ref().expect("a waiter has no guard yet");
        let looked = shard.lock().look(hash, key, token, waker);
        match looked {
            Look::Granted(grant) => {
                self.position = None;
                Poll::Ready(Ok(self.held(shard, hash, grant)))
            }
            Look::Closed => {
                self.position = None;
                Poll::Ready(Err(LockError::closed().with_key(key.clone())))
            }
            Look::Waits { replaced } => {
                // After the lock: it may be the last handle of a task that has guards.
                drop(replaced);
                Poll::Pending
            }
        }
    }

    /// Polls the timer; the waker is in the queue already.
    fn wait(&mut self, cx: &mut Context<'_>) -> Poll<Result<Acquired>> {
        let Some(timer) = &mut self.timer else { return Poll::Pending };
        ready!(timer.as_mut().poll(cx));
        self.leave();
        Poll::Ready(Ok(Acquired::Busy(Busy::new())))
    }

    #[inline]
    fn held(&mut self, shard: &Arc<TurnShard>, hash: u64, grant: Grant) -> Acquired {
        held(self.key.take().expect("granted once"), shard, hash, grant, self.max_hold.take())
    }

    fn leave(&mut self) {
        let (Some(QueuePosition { shard, hash, token }), Some(key)) = (self.position.take(), &self.key) else { return };
        let (ended, waiter) = shard.lock().leave(hash, key, token);
        contained(|| drop(waiter));
        let _ = settle(shard, hash, token, ended);
    }
}

/// Returns the answer, if the key is free or the caller does not wait.
#[inline]
pub(super) fn at_once(shards: &Shards, key: &LockKey, options: &AcquireOptions) -> Result<Option<Acquired>> {
    let mut hold = validated(options)?;
    let max_hold = MaxHold::of(options)?.map(Box::new);
    let (hash, shard) = shards.of(key);
    let answer = shard.lock().acquire(hash, key, options, &mut hold, None, SpinPolicy::IfAdvised);
    Ok(match answer? {
        Answer::Granted(grant) => Some(held(key.clone(), shard, hash, grant, max_hold)),
        Answer::Busy(busy) => Some(Acquired::Busy(busy)),
        Answer::Held => None,
        Answer::Queued { .. } => unreachable!("no caller joins the queue without a waker"),
    })
}

/// Returns what the provider promises.
pub(super) fn capabilities() -> Capabilities {
    let mut capabilities = Capabilities::default();
    capabilities.minimum_hold = true;
    capabilities.fair = true;
    capabilities.push = true;
    capabilities.shared = true;
    capabilities.permits = true;
    capabilities
}

#[inline]
fn validated(options: &AcquireOptions) -> Result<Option<MinimumHold>> {
    if !options.mode().is_exclusive() {
        options.mode().ensure_supported("Memory", &capabilities())?;
    }
    let hold = MinimumHold::of(options)?;
    options.holder().validate()?;
    Ok(hold)
}

#[inline]
fn held(key: LockKey, shard: &Arc<TurnShard>, hash: u64, grant: Grant, max_hold: Option<Box<MaxHold>>) -> Acquired {
    let Grant { token, spare } = grant;
    let turn = Turn::boxed(shard.clone(), hash, token, spare);
    let handle: Box<dyn LeaseHandle> = match max_hold {
        Some(max_hold) => max_hold.start(&key, turn),
        None => turn,
    };
    Acquired::Held(LockGuard::new(key, FencingToken::new(token), handle))
}

impl Future for Acquiring<'_> {
    type Output = Result<Acquired>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.position {
            None => match self.refusal.take() {
                None => self.begin(cx),
                Some(answer) => Poll::Ready(*answer),
            },
            Some(position) => self.turn(position, cx),
        }
    }
}

impl Drop for Acquiring<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.position.is_some() {
            self.leave();
        }
    }
}
