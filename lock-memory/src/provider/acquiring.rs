//! One acquisition, from the question to the guard.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use distlock_api::{AcquireOptions, Acquired, Busy, FencingToken, LockError, LockGuard, LockKey, Result, Wait};
use tokio::time::{Sleep, sleep};

use super::spin::Patience;
use super::state::{Answer, Grant, Look, Looking, Shard};
use super::turn::{Turn, settle};
use super::{Hold, MemoryProvider, minimum_hold};

/// A running acquisition. By hand rather than as an `async` block: it is half as large, and each one is moved into a box of its own.
///
/// Dropped while it waits, it is gone from the queue; and the turn, should it have come, passes on (C11).
pub(super) struct Acquiring<'a> {
    provider: &'a MemoryProvider,
    /// None once it is with the guard.
    key: Option<LockKey>,
    options: AcquireOptions,
    /// In the queue, while it waits.
    place: Option<Place<'a>>,
    /// Of a bounded wait, from its beginning.
    timer: Option<Pin<Box<Sleep>>>,
}

#[derive(Clone, Copy)]
struct Place<'a> {
    shard: &'a Arc<Shard>,
    hash: u64,
    /// Of the guard to come.
    token: u64,
}

impl<'a> Acquiring<'a> {
    #[inline]
    pub(super) fn new(provider: &'a MemoryProvider, key: LockKey, options: AcquireOptions) -> Self {
        Self { provider, key: Some(key), options, place: None, timer: None }
    }

    #[inline]
    fn ask(&mut self, cx: &mut Context<'_>) -> Poll<Result<Acquired>> {
        let key = self.key.as_ref().expect("polled after completion");
        let mut hold = checked(&self.options)?;
        let (hash, shard) = self.provider.shard(key);
        let answer = shard.lock().acquire(hash, key, &self.options, &mut hold, Some(cx.waker()), Looking::Perhaps);
        match answer? {
            Answer::Granted(grant) => Poll::Ready(Ok(self.held(shard, hash, grant))),
            Answer::Busy(busy) => Poll::Ready(Ok(Acquired::Busy(busy))),
            Answer::Queued { token } => {
                self.join(Place { shard, hash, token });
                self.wait(cx)
            }
            Answer::Held => self.look_again(shard, hash, hold, cx),
        }
    }

    /// Looks again for a moment, then queues up.
    #[cold]
    fn look_again(
        &mut self,
        shard: &'a Arc<Shard>,
        hash: u64,
        mut hold: Option<Hold>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Acquired>> {
        let key = self.key.as_ref().expect("whoever asks has not got the key");
        let (mut patience, mut looking, mut brisk) = (Patience::default(), Looking::Still, false);
        let answer = loop {
            let seen = shard.ended.get();
            // Where keys change hands this fast, it will not be long even from the end of the queue, and nobody need be woken.
            let waker = if brisk && looking == Looking::Over { None } else { Some(cx.waker()) };
            let answer = shard.lock().acquire(hash, key, &self.options, &mut hold, waker, looking)?;
            match answer {
                Answer::Held if patience.wait(&shard.ended, seen) => brisk = true,
                Answer::Held => looking = Looking::Over,
                answer => break answer,
            }
        };
        match answer {
            Answer::Granted(grant) => Poll::Ready(Ok(self.held(shard, hash, grant))),
            Answer::Busy(busy) => Poll::Ready(Ok(Acquired::Busy(busy))),
            Answer::Queued { token } => {
                let place = Place { shard, hash, token };
                self.join(place);
                if !brisk || looking != Looking::Over {
                    return self.wait(cx);
                }
                let mut patience = Patience::default();
                loop {
                    let seen = shard.ended.get();
                    if let Poll::Ready(answer) = self.look(place, None) {
                        return Poll::Ready(answer);
                    }
                    if !patience.wait(&shard.ended, seen) {
                        return self.turn(place, cx);
                    }
                }
            }
            Answer::Held => unreachable!("the loop goes on with it"),
        }
    }

    /// Takes a place in the queue.
    fn join(&mut self, place: Place<'a>) {
        self.place = Some(place);
        if let Wait::UpTo(limit) = self.options.wait() {
            self.timer = Some(Box::pin(sleep(limit)));
        }
    }

    fn turn(&mut self, place: Place<'a>, cx: &mut Context<'_>) -> Poll<Result<Acquired>> {
        match self.look(place, Some(cx.waker())) {
            Poll::Ready(answer) => Poll::Ready(answer),
            Poll::Pending => self.wait(cx),
        }
    }

    fn look(&mut self, place: Place<'a>, waker: Option<&Waker>) -> Poll<Result<Acquired>> {
        let Place { shard, hash, token } = place;
        let key = self.key.as_ref().expect("whoever waits has not got the key");
        let looked = shard.lock().look(hash, key, token, waker);
        match looked {
            Look::Granted(grant) => {
                self.place = None;
                Poll::Ready(Ok(self.held(shard, hash, grant)))
            }
            Look::Closed => {
                self.place = None;
                Poll::Ready(Err(LockError::closed().with_key(key.clone())))
            }
            Look::Waits { replaced } => {
                // After the lock: it may be all that is left of a task that has guards.
                drop(replaced);
                Poll::Pending
            }
        }
    }

    /// The waker is in the queue; what remains is the timer.
    fn wait(&mut self, cx: &mut Context<'_>) -> Poll<Result<Acquired>> {
        let Some(timer) = &mut self.timer else { return Poll::Pending };
        ready!(timer.as_mut().poll(cx));
        self.leave();
        Poll::Ready(Ok(Acquired::Busy(Busy::new())))
    }

    #[inline]
    fn held(&mut self, shard: &Arc<Shard>, hash: u64, grant: Grant) -> Acquired {
        held(self.key.take().expect("granted once"), shard, hash, grant)
    }

    fn leave(&mut self) {
        let (Some(Place { shard, hash, token }), Some(key)) = (self.place.take(), &self.key) else { return };
        let (ended, waiter) = shard.lock().leave(hash, key, token);
        drop(waiter);
        let _ = settle(shard, hash, token, ended);
    }
}

/// The answer, if nobody has the key or nobody wants to wait.
#[inline]
pub(super) fn at_once(provider: &MemoryProvider, key: &LockKey, options: &AcquireOptions) -> Result<Option<Acquired>> {
    let mut hold = checked(options)?;
    let (hash, shard) = provider.shard(key);
    let answer = shard.lock().acquire(hash, key, options, &mut hold, None, Looking::Once);
    Ok(match answer? {
        Answer::Granted(grant) => Some(held(key.clone(), shard, hash, grant)),
        Answer::Busy(busy) => Some(Acquired::Busy(busy)),
        Answer::Held => None,
        Answer::Queued { .. } => unreachable!("whoever looks once does not queue"),
    })
}

#[inline]
fn checked(options: &AcquireOptions) -> Result<Option<Hold>> {
    let hold = minimum_hold(options)?;
    options.holder().validate()?;
    Ok(hold)
}

#[inline]
fn held(key: LockKey, shard: &Arc<Shard>, hash: u64, grant: Grant) -> Acquired {
    let Grant { token, spare } = grant;
    Acquired::Held(LockGuard::new(key, FencingToken::new(token), Turn::boxed(shard.clone(), hash, token, spare)))
}

impl Future for Acquiring<'_> {
    type Output = Result<Acquired>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.place {
            None => self.ask(cx),
            Some(place) => self.turn(place, cx),
        }
    }
}

impl Drop for Acquiring<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.place.is_some() {
            self.leave();
        }
    }
}
