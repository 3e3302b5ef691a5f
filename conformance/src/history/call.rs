//! What a history consists of.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::micros;

/// One call of a client, and what came of it. Times count from the start of the history.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Call {
    /// Who.
    pub client: usize,
    /// Which lock.
    pub key: String,
    /// The moment before the question.
    #[serde(rename = "asked_us", with = "micros")]
    pub asked: Duration,
    /// The moment after the answer, or at which the caller gave up; none if neither came before the history ended.
    #[serde(rename = "answered_us", with = "micros::option")]
    pub answered: Option<Duration>,
    /// From when on it is known to have had a place in the queue, if it is known.
    #[serde(rename = "queued_us", with = "micros::option")]
    pub queued: Option<Duration>,
    /// What it was.
    pub what: What,
}

/// What a call was, and its answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum What {
    /// The lock was granted.
    Granted {
        /// The token.
        token: u64,
        /// The last moment at which it was held for certain: before the release, or when its guard was last valid.
        #[serde(rename = "until_us", with = "micros")]
        until: Duration,
        /// How the hold ended.
        end: End,
    },
    /// A single attempt was answered: somebody else has it.
    Busy,
    /// No grant: too late, given up, or failed. It may have been granted, and given back, at any time from the question on.
    NotGranted,
    /// The resource that the lock protects accepted a write under this token.
    Wrote {
        /// The token.
        token: u64,
    },
    /// A request below the client's own calls, as it was sent to the store. It is shown, and judged by nobody.
    Sent {
        /// What was asked for.
        request: String,
        /// What the store answered; none if it has not.
        answer: Option<String>,
    },
    /// What the store had left when all was over.
    Left {
        /// Whether it said that the lock is held.
        held: bool,
        /// How many waiters it knew.
        waiting: u32,
    },
}

/// How a hold ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum End {
    /// It had not ended when the history did.
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
    /// The guard was dropped, the holder killed, or the release not confirmed: at any time after `until`.
    Unknown,
    /// The lease was lost, or left to its ttl: at any time after `until`.
    Lost,
}

impl Call {
    /// The token and the certain hold, if there was one.
    #[must_use]
    pub fn hold(&self) -> Option<(u64, Duration, Duration)> {
        match (&self.what, self.answered) {
            (What::Granted { token, until, .. }, Some(from)) if from < *until => Some((*token, from, *until)),
            _ => None,
        }
    }

    /// When the client may have held the lock: without an end if none is known. None if it cannot have.
    pub(crate) fn possible_hold(&self) -> Option<(Duration, Option<Duration>)> {
        match &self.what {
            What::Granted { end: End::Released { answered, .. }, .. } => Some((self.asked, Some(*answered))),
            What::Granted { .. } | What::NotGranted => Some((self.asked, None)),
            _ => None,
        }
    }
}

/// The calls of each key, in the order in which they were asked.
pub(crate) fn by_key(calls: &[Call]) -> Vec<Vec<&Call>> {
    let mut sorted: Vec<&Call> = calls.iter().collect();
    sorted.sort_by(|a, b| (&a.key, a.asked).cmp(&(&b.key, b.asked)));
    sorted.chunk_by(|a, b| a.key == b.key).map(<[_]>::to_vec).collect()
}
