//! The calls of a history.

use std::time::Duration;

use distlock_api::Mode;
use serde::{Deserialize, Serialize};

use super::{micros, modes};

/// One call of a client, and its result. Times count from the start of the history.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Call {
    /// The number of the client.
    pub client: usize,
    /// The key of the lock.
    pub key: String,
    /// The moment before the request.
    #[serde(rename = "asked_us", with = "micros")]
    pub asked: Duration,
    /// The moment after the answer, or when the caller gave up. `None` if the history ended before.
    #[serde(rename = "answered_us", with = "micros::option")]
    pub answered: Option<Duration>,
    /// The moment from which on it certainly had a ticket in the queue, if that is known.
    #[serde(rename = "queued_us", with = "micros::option")]
    pub queued: Option<Duration>,
    /// What an acquisition claims of the key.
    #[serde(default, skip_serializing_if = "is_exclusive")]
    pub mode: Mode,
    /// The kind of call, and its result.
    pub what: CallKind,
}

fn is_exclusive(mode: &Mode) -> bool {
    mode.is_exclusive()
}

/// The kind of a call, and its result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum CallKind {
    /// The lock was granted.
    Granted {
        /// The token.
        token: u64,
        /// The last moment at which it was held for certain: before the release, or when its guard
        /// was last valid.
        #[serde(rename = "until_us", with = "micros")]
        until: Duration,
        /// How the hold ended.
        end: End,
    },
    /// A single attempt was answered: another acquisition holds the lock, or waits for it, or the
    /// client has no answer yet to a release of its own.
    Busy,
    /// A [batched](distlock_api::AcquireOptions::batched) attempt was answered as by `Busy`, or
    /// another caller of the client wants the lock.
    GaveWay,
    /// No grant: too late, given up, or failed. The store may have granted the lock, and taken it
    /// back, at any time after the request.
    NotGranted,
    /// The resource that the lock protects accepted a write under this token.
    Wrote {
        /// The token.
        token: u64,
    },
    /// A request to the store, below the client's own calls. It is shown, but not judged.
    Sent {
        /// The kind of request.
        request: String,
        /// The store's answer; `None` without one.
        answer: Option<String>,
    },
    /// What the store had left at the end.
    Left {
        /// Whether it reported the lock as held.
        held: bool,
        /// How many waiters it reported.
        waiting: u32,
    },
}

/// How a hold ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum End {
    /// It was still held when the history ended.
    Open,
    /// By a release that was in time.
    Released {
        /// The moment before the release.
        #[serde(rename = "asked_us", with = "micros")]
        asked: Duration,
        /// The moment after its answer.
        #[serde(rename = "answered_us", with = "micros")]
        answered: Duration,
    },
    /// The guard was dropped, the holder killed, or the release not confirmed: the hold ended at
    /// any time after `until`.
    Unknown,
    /// The lease was lost, or left to expire: the hold ended at any time after `until`.
    Lost,
}

impl Call {
    /// Returns the token, and the beginning and end of the certain hold, if there was one.
    #[must_use]
    pub fn hold(&self) -> Option<(u64, Duration, Duration)> {
        match (&self.what, self.answered) {
            (CallKind::Granted { token, until, .. }, Some(from)) if from < *until => Some((*token, from, *until)),
            _ => None,
        }
    }

    /// Whether the modes of these two exclude each other, whatever numbers they have.
    pub(crate) fn excludes(&self, other: &Self) -> bool {
        modes::kind(self.mode) != modes::kind(other.mode) || self.mode.is_exclusive()
    }

    /// Whether it says that another acquisition holds the lock. `calls` are all of the key.
    ///
    /// As long as a client has no answer to a release of its own, the lock may be held for all that
    /// it knows. If the answer is slow, others may have had the lock meanwhile.
    pub(crate) fn says_held(&self, calls: &[&Self]) -> bool {
        match self.what {
            CallKind::Busy => !self.may_be_before_its_release(calls),
            CallKind::GaveWay => {
                !self.may_be_before_its_release(calls) && !calls.iter().any(|other| self.may_give_way_to(other))
            }
            _ => false,
        }
    }

    /// Whether a release of the same client had begun, and its answer may not have come. The next
    /// grant of the client shows that it no longer waits for that.
    fn may_be_before_its_release(&self, calls: &[&Self]) -> bool {
        let of_client = || calls.iter().filter(|other| other.client == self.client);
        let is_before = |moment: Duration| self.answered.is_none_or(|answered| moment <= answered);
        let was_granted_since = |token: u64| {
            let mut grants = of_client().filter_map(|other| match other.what {
                CallKind::Granted { token, .. } => Some((token, other.answered?)),
                _ => None,
            });
            grants.any(|(later, answered)| later > token && answered < self.asked)
        };
        of_client().any(|other| match &other.what {
            CallKind::Granted { end: End::Released { asked, answered }, .. } => {
                is_before(*asked) && *answered >= self.asked
            }
            CallKind::Granted { token, until, end: End::Unknown } => is_before(*until) && !was_granted_since(*token),
            _ => false,
        })
    }

    /// Whether the other is an acquisition of the same client that was pending at the same time.
    fn may_give_way_to(&self, other: &Self) -> bool {
        let is_acquisition =
            matches!(other.what, CallKind::Granted { .. } | CallKind::Busy | CallKind::GaveWay | CallKind::NotGranted);
        let ends_before = |one: &Self, other: &Self| one.answered.is_some_and(|answered| answered < other.asked);
        is_acquisition
            && !std::ptr::eq(self, other)
            && self.client == other.client
            && !ends_before(self, other)
            && !ends_before(other, self)
    }

    /// Returns when the client may have held the lock, without an end if that is unknown. `None` if
    /// it cannot have held the lock.
    pub(crate) fn possible_hold(&self) -> Option<(Duration, Option<Duration>)> {
        match &self.what {
            CallKind::Granted { end: End::Released { answered, .. }, .. } => Some((self.asked, Some(*answered))),
            CallKind::Granted { .. } | CallKind::NotGranted => Some((self.asked, None)),
            _ => None,
        }
    }
}

/// Returns the calls of each key, in the order of their requests.
pub(crate) fn by_key(calls: &[Call]) -> Vec<Vec<&Call>> {
    let mut sorted: Vec<&Call> = calls.iter().collect();
    sorted.sort_by(|a, b| (&a.key, a.asked).cmp(&(&b.key, b.asked)));
    sorted.chunk_by(|a, b| a.key == b.key).map(<[_]>::to_vec).collect()
}
