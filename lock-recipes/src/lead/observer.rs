//! The observer of a leadership: reads and events of the administration.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use distlock_api::{ErrorKind, LockAdmin, LockError, LockEvent, LockEvents, LockKey, Result};
use tokio::time::{Instant, sleep_until};

use super::backoff::{Backoff, random};
use super::view::{Leader, Seen, View};

/// How often the state is read by default, whatever the events say.
const DEFAULT_INTERVAL: Duration = Duration::from_secs(5);
/// How often it is read at most. Also how long an ended stream is not opened again.
const MIN_INTERVAL: Duration = Duration::from_millis(100);

/// Shows which process leads, and each change ([L8]). Made by
/// [`LeadExt::observe`](super::LeadExt::observe).
///
/// It reads the state once, and then follows the events of the provider's administration. It reads
/// the state again after a gap in the events, when the leader's lease should have ended, and every
/// 5 s: an expiry has no event of its own. Where there are no events, as on a standalone MongoDB
/// server, the reads alone show the changes; then a short term can be missed.
///
/// On MongoDB an observer has a change stream and a connection of its own while it is used.
///
/// ```
/// # use distlock_api::{LockError, LockProvider};
/// # use distlock_recipes::lead::LeadExt;
/// async fn follow(locks: &dyn LockProvider) -> Result<(), LockError> {
///     let mut observer = locks.observe("mailer")?;
///     loop {
///         match observer.changed().await {
///             Ok(Some(leader)) => println!("{:?} leads", leader.owner),
///             Ok(None) => println!("no process leads"),
///             // The next call tries again, after a pause.
///             Err(error) => println!("unknown: {error}"),
///         }
///     }
/// }
/// ```
///
/// [L8]: crate::contract#l8
#[must_use = "an observer does nothing until it is asked for changes"]
pub struct LeaderObserver<'a> {
    admin: &'a dyn LockAdmin,
    key: LockKey,
    interval: Duration,
    view: View,
    events: Events,
    /// When the state is read next.
    next_read: Instant,
    /// No request is sent before this instant, after an error.
    not_before: Option<Instant>,
    backoff: Backoff,
}

enum Events {
    NotOpen,
    Open(LockEvents),
    /// The backend has none.
    Unsupported,
}

impl<'a> LeaderObserver<'a> {
    pub(crate) fn new(admin: Option<&'a dyn LockAdmin>, key: LockKey) -> Result<Self> {
        let Some(admin) = admin else {
            let message = "this provider has no administration, which observers need: use another backend";
            return Err(LockError::new(ErrorKind::Unsupported, message).with_key(key));
        };
        Ok(Self {
            admin,
            key,
            interval: DEFAULT_INTERVAL,
            view: View::default(),
            events: Events::NotOpen,
            next_read: Instant::now(),
            not_before: None,
            backoff: Backoff::DEFAULT,
        })
    }

    /// Sets how often the state is read, whatever the events say. Defaults to 5 s; less than
    /// 100 ms counts as that.
    pub fn interval(mut self, interval: Duration) -> Self {
        self.interval = interval.max(MIN_INTERVAL);
        self
    }

    /// Returns the present leader at the first call. Then waits for a change, and returns the
    /// leader; `None` if no process leads.
    ///
    /// # Errors
    /// Those of [`LockAdmin::inspect`] and [`LockAdmin::watch`], except that a backend without
    /// events is no error. The observer remains usable: the next call tries again, after a pause
    /// that grows with each error in a row, from 200 ms to 15 s.
    ///
    /// # Cancel safety
    /// Cancel safe: a change that was not returned is returned by the next call.
    pub async fn changed(&mut self) -> Result<Option<Leader>> {
        loop {
            if let Some(until) = self.not_before {
                sleep_until(until).await;
                self.not_before = None;
            }
            if matches!(self.events, Events::NotOpen) {
                self.open().await?;
            }
            let change = match self.next().await {
                Next::Event(event) if event.key() == Some(&self.key) => match self.view.on_event(event) {
                    Seen::Change(leader) => Some(leader),
                    Seen::Nothing => None,
                    Seen::Unclear => {
                        self.next_read = self.next_read.min(Instant::now() + MIN_INTERVAL);
                        None
                    }
                },
                Next::Event(event) => {
                    if event == LockEvent::Gap {
                        self.next_read = Instant::now();
                    }
                    None
                }
                Next::Read => self.read().await?,
                Next::End(error) => {
                    self.events = Events::NotOpen;
                    match error {
                        Some(error) => return Err(self.failed(error)),
                        None => self.not_before = Some(Instant::now() + MIN_INTERVAL),
                    }
                    None
                }
            };
            if let Some(leader) = change {
                return Ok(leader);
            }
        }
    }

    /// Opens the stream of events. The state is read after that, so that no change falls between.
    async fn open(&mut self) -> Result<()> {
        self.events = match self.admin.watch().await {
            Ok(events) => Events::Open(events),
            Err(error) if error.kind() == ErrorKind::Unsupported => Events::Unsupported,
            Err(error) => return Err(self.failed(error)),
        };
        self.next_read = Instant::now();
        Ok(())
    }

    async fn read(&mut self) -> Result<Option<Option<Leader>>> {
        let info = match self.admin.inspect(&self.key).await {
            Ok(info) => info,
            Err(error) => return Err(self.failed(error)),
        };
        self.backoff.reset();
        // At the end of the lease, unless a renewal has moved it.
        let left = info.as_ref().map_or(self.interval, |info| info.remaining);
        self.next_read = Instant::now() + left.min(self.interval).max(MIN_INTERVAL);
        Ok(self.view.on_read(info.as_ref()))
    }

    /// Waits for an event or for the next read. Events that are there come first, so that a read
    /// does not skip what they report.
    fn next(&mut self) -> impl Future<Output = Next> {
        let (events, due) = (&mut self.events, self.next_read);
        async move {
            let mut timer = pin!(sleep_until(due));
            poll_fn(|cx| {
                if let Events::Open(events) = events {
                    match events.as_mut().poll_next(cx) {
                        Poll::Ready(Some(Ok(event))) => return Poll::Ready(Next::Event(event)),
                        Poll::Ready(Some(Err(error))) => return Poll::Ready(Next::End(Some(error))),
                        Poll::Ready(None) => return Poll::Ready(Next::End(None)),
                        Poll::Pending => {}
                    }
                }
                timer.as_mut().poll(cx).map(|()| Next::Read)
            })
            .await
        }
    }

    fn failed(&mut self, error: LockError) -> LockError {
        self.not_before = Some(Instant::now() + self.backoff.next(random()));
        error
    }
}

enum Next {
    Event(LockEvent),
    Read,
    End(Option<LockError>),
}

impl fmt::Debug for LeaderObserver<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaderObserver").field("key", &self.key).field("view", &self.view).finish_non_exhaustive()
    }
}
