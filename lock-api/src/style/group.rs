//! Several locks, all or nothing.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use tokio::runtime::Handle;
use tokio::task::coop::consume_budget;
use tokio::task::yield_now;
use tokio::time::{Instant, timeout, timeout_at};

use crate::error::{Disposition, LockError, Result};
use crate::guard::{LockGuard, ReleaseFuture};
use crate::key::LockKey;
use crate::loss::Loss;
use crate::options::{AcquireOptions, Wait};

/// How long a failed acquisition of a group waits for the release of the locks it had. After that
/// they are released in the background.
const ROLLBACK_WAIT: Duration = Duration::from_secs(1);

/// A guard that can be one of a group. See [`acquire_group`].
pub trait GroupGuard {
    /// The key.
    fn key(&self) -> &LockKey;

    /// Returns how the lock was lost, if it was.
    fn loss(&self) -> Option<Loss>;

    /// Gives the lock back unused: without the minimum hold.
    fn discard(self) -> ReleaseFuture;
}

impl GroupGuard for LockGuard {
    fn key(&self) -> &LockKey {
        self.key()
    }

    fn loss(&self) -> Option<Loss> {
        self.loss()
    }

    fn discard(self) -> ReleaseFuture {
        self.discard()
    }
}

/// The answer to the acquisition of a group. Returned by [`acquire_group`].
#[derive(Debug)]
#[must_use]
pub enum Group<G> {
    /// All locks are held: their guards, in the order of the keys.
    Held(Vec<G>),
    /// The lock of this key was not granted within the wait. None is held.
    Busy(LockKey),
}

impl<G> Group<G> {
    /// Returns the guards, or `None` if a lock was not granted.
    #[must_use]
    pub fn held(self) -> Option<Vec<G>> {
        match self {
            Self::Held(guards) => Some(guards),
            Self::Busy(_) => None,
        }
    }

    /// Returns the guards.
    ///
    /// # Errors
    /// [`LockError::not_granted`], with the key that was busy.
    pub fn or_not_granted(self) -> Result<Vec<G>> {
        match self {
            Self::Held(guards) => Ok(guards),
            Self::Busy(key) => Err(LockError::not_granted().with_key(key)),
        }
    }
}

/// How many locks of a group are tried at once.
const AT_ONCE: usize = 64;

/// Acquires several locks, all or nothing ([C21]).
///
/// The keys are sorted, and duplicates are left out. Up to 64 of them are tried at once, without a
/// wait. The locks before the first one that is busy are kept, those after it are discarded, and
/// the busy one is waited for. Then the rest is tried. A caller waits only while it holds locks of
/// smaller keys, so callers cannot deadlock. Free locks take as long as a few requests, if the
/// backend sends requests together.
///
/// `acquire_now` answers as [`LockProvider::acquire_now`](crate::LockProvider::acquire_now) does,
/// and may always return `None`. No try is made of a key that it refuses, nor of the keys behind it
/// before that one is held. `acquire` returns `None` for a lock that was not granted. The wait of
/// `options` covers all of them: a call that waits gets the rest of it. If one lock is not granted,
/// or fails, those already held are discarded, and for up to a second the call waits until the
/// store has confirmed that.
///
/// The tries are [batched](AcquireOptions::batched). The busy lock is requested once more, by a
/// call of its own. Where there is a wait, the tries get half of what is left of it.
///
/// # Errors
/// The first error of `acquire`, in the order of the keys; [`ErrorKind::Lost`] if one of the locks
/// was lost while the others were acquired. Where there is a wait, only a
/// [permanent](Disposition::Permanent) error of a try counts.
///
/// # Cancel safety
/// As cancel safe as `acquire`: dropping the future discards the guards that it has.
///
/// [C21]: distlock_api::contract#c21
/// [`ErrorKind::Lost`]: crate::ErrorKind::Lost
pub async fn acquire_group<G, F>(
    keys: Vec<LockKey>,
    options: &AcquireOptions,
    acquire_now: impl Fn(&LockKey, &AcquireOptions) -> Option<Result<Option<G>>>,
    acquire: impl Fn(LockKey, AcquireOptions) -> F,
) -> Result<Group<G>>
where
    G: GroupGuard,
    F: Future<Output = Result<Option<G>>>,
{
    // An answer without a call comes without a wait.
    consume_budget().await;
    let answer = acquire_each(keys, options, acquire_now, acquire).await;
    if !matches!(answer, Ok(Group::Held(_))) {
        yield_now().await;
    }
    answer
}

async fn acquire_each<G, F>(
    mut keys: Vec<LockKey>,
    options: &AcquireOptions,
    acquire_now: impl Fn(&LockKey, &AcquireOptions) -> Option<Result<Option<G>>>,
    acquire: impl Fn(LockKey, AcquireOptions) -> F,
) -> Result<Group<G>>
where
    G: GroupGuard,
    F: Future<Output = Result<Option<G>>>,
{
    keys.sort_unstable();
    keys.dedup();
    let limit = Limit::of(options.wait());
    let now = |key: &LockKey, options: &AcquireOptions| Some(acquire_now(key, options)?.map(Part::of));
    let call = async |key: &LockKey, options: AcquireOptions| acquire(key.clone(), options).await.map(Part::of);
    let as_try = options.clone().with_wait(Wait::Try).batched();
    let mut guards = Vec::with_capacity(keys.len());
    // The releases of locks behind a busy one. They go on while that one is waited for.
    let mut discards = FuturesUnordered::new();
    // The next lock is requested by itself.
    let mut is_alone = false;
    while let Some(next) = keys.get(guards.len()) {
        let wait = limit.wait();
        // Options that say "batched" are for rounds.
        let at_once = wait.filter(|_| !options.is_batched()).and_then(|_| now(next, options));
        if at_once.is_none() && wait.is_some() && !std::mem::take(&mut is_alone) {
            let round = keys[guards.len()..].iter().take(AT_ONCE);
            let mut answers: Vec<_> = round.map_while(|key| not_refused(now(key, &as_try))).collect();
            if answers.len() < 2 {
                // One lock needs no try.
                match answers.pop() {
                    Some(Some(guard)) => guards.push(guard),
                    _ => is_alone = true,
                }
                continue;
            }
            let tries = keys[guards.len()..].iter().zip(answers).map(|(key, answer)| async {
                match answer {
                    Some(guard) => Ok(Some(guard)),
                    None => call(key, as_try.clone()).await,
                }
            });
            let Tried { held, refusal, beyond } = beside(&mut discards, limit.tried(tries.collect())).await;
            guards.extend(held);
            discards.extend(beyond.into_iter().map(Part::discard));
            is_alone = refusal.is_some();
            if let Some(Refusal::Failed(error)) = refusal
                && (limit == Limit::Try || error.disposition() == Disposition::Permanent)
            {
                roll_back(guards, discards).await;
                return Err(error);
            }
            continue;
        }
        let answer = match (at_once, wait) {
            (Some(answer), _) => answer,
            (None, Some(wait)) => beside(&mut discards, call(next, options.clone().with_wait(wait))).await,
            (None, None) => Ok(None),
        };
        match answer {
            Ok(Some(guard)) => guards.push(guard),
            refused => {
                roll_back(guards, discards).await;
                return refused.map(|_| Group::Busy(next.clone()));
            }
        }
        // A try of a key behind this one would find it held by its own discard.
        settle(&mut discards).await;
    }
    // A lease can be lost while the next lock is waited for.
    let lost = guards.iter().find_map(|part: &Part<G>| part.lost());
    match lost {
        None => Ok(Group::Held(guards.into_iter().map(Part::kept).collect())),
        Some((key, loss)) => {
            roll_back(guards, discards).await;
            Err(LockError::lost(loss).with_key(key))
        }
    }
}

/// A guard of a group that is not complete. Dropping it discards it: no work was done under it.
struct Part<G: GroupGuard>(Option<G>);

impl<G: GroupGuard> Part<G> {
    fn of(granted: Option<G>) -> Option<Self> {
        granted.map(|guard| Self(Some(guard)))
    }

    fn lost(&self) -> Option<(LockKey, Loss)> {
        let guard = self.0.as_ref()?;
        Some((guard.key().clone(), guard.loss()?))
    }

    /// Returns the guard: the group is complete.
    fn kept(mut self) -> G {
        self.0.take().expect("there until it is kept or discarded")
    }

    fn discard(self) -> ReleaseFuture {
        self.kept().discard()
    }
}

impl<G: GroupGuard> Drop for Part<G> {
    fn drop(&mut self) {
        // It continues in the background.
        self.0.take().map(G::discard);
    }
}

/// How long the acquisition of a group may take.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Limit {
    /// As long as one try.
    Try,
    Until(Instant),
    Never,
}

impl Limit {
    fn of(wait: Wait) -> Self {
        match wait {
            Wait::Try | Wait::UpTo(Duration::ZERO) => Self::Try,
            Wait::UpTo(limit) => Instant::now().checked_add(limit).map_or(Self::Never, Self::Until),
            Wait::Forever => Self::Never,
        }
    }

    /// Returns how long the next call may wait; `None` when the time is up.
    fn wait(self) -> Option<Wait> {
        match self {
            Self::Try => Some(Wait::Try),
            Self::Never => Some(Wait::Forever),
            Self::Until(deadline) => {
                Some(deadline.saturating_duration_since(Instant::now())).filter(|left| !left.is_zero()).map(Wait::UpTo)
            }
        }
    }

    /// Awaits a round of tries, each for half of the time that is left: a call that waits says why
    /// the store does not answer.
    async fn tried<G: GroupGuard>(self, tries: Vec<impl Future<Output = Result<Option<Part<G>>>>>) -> Tried<G> {
        Tried::of(match self {
            Self::Try | Self::Never => join_all(tries).await,
            Self::Until(deadline) => {
                let now = Instant::now();
                let half = now + deadline.saturating_duration_since(now) / 2;
                join_all(tries.into_iter().map(|one| async move { timeout_at(half, one).await.unwrap_or(Ok(None)) }))
                    .await
            }
        })
    }
}

/// What a round of tries gave.
struct Tried<G: GroupGuard> {
    /// The guards of the first locks.
    held: Vec<Part<G>>,
    /// Why the next lock is not held; `None` if all are.
    refusal: Option<Refusal>,
    /// The guards of locks after that.
    beyond: Vec<Part<G>>,
}

enum Refusal {
    Busy,
    Failed(LockError),
}

impl<G: GroupGuard> Tried<G> {
    fn of(answers: Vec<Result<Option<Part<G>>>>) -> Self {
        let (mut held, mut refusal, mut beyond) = (Vec::new(), None, Vec::new());
        for answer in answers {
            let this = match answer {
                Ok(Some(guard)) if refusal.is_none() => {
                    held.push(guard);
                    continue;
                }
                Ok(Some(guard)) => {
                    beyond.push(guard);
                    continue;
                }
                Ok(None) => Refusal::Busy,
                Err(error) => Refusal::Failed(error),
            };
            refusal.get_or_insert(this);
        }
        Self { held, refusal, beyond }
    }
}

/// Awaits a call while discards go on.
async fn beside<T>(discards: &mut FuturesUnordered<ReleaseFuture>, call: impl Future<Output = T>) -> T {
    let mut call = pin!(call);
    poll_fn(|context| {
        while let Poll::Ready(Some(_)) = discards.poll_next_unpin(context) {}
        call.as_mut().poll(context)
    })
    .await
}

/// Returns the guard of an answer without a call, if there is one; `None` if it was refused.
#[expect(clippy::option_option, reason = "the outer one ends an iterator")]
fn not_refused<G>(now: Option<Result<Option<G>>>) -> Option<Option<G>> {
    match now {
        None => Some(None),
        Some(Ok(Some(guard))) => Some(Some(guard)),
        Some(Ok(None) | Err(_)) => None,
    }
}

/// Waits until the store has confirmed discards. Those that it does not confirm soon continue in
/// the background, as do all without a runtime, whose timer would be needed.
async fn settle(discards: &mut FuturesUnordered<ReleaseFuture>) {
    if discards.is_empty() || Handle::try_current().is_err() {
        return discards.clear();
    }
    let ended = async {
        while let Some(outcome) = discards.next().await {
            if let Err(error) = outcome {
                tracing::debug!(%error, "the roll-back of a partial acquisition continues in the background");
            }
        }
    };
    let _ = timeout(ROLLBACK_WAIT, ended).await;
    discards.clear();
}

/// Discards the guards, and waits for these and earlier discards.
async fn roll_back<G: GroupGuard>(guards: Vec<Part<G>>, mut discards: FuturesUnordered<ReleaseFuture>) {
    discards.extend(guards.into_iter().map(Part::discard));
    settle(&mut discards).await;
}
