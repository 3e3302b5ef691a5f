//! Turns rows into answers, without I/O.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::time::Duration;

use distlock_api::{AcquisitionId, FencingToken, ForcedRelease, Holder, LockInfo, LockKey, Loss, Result};
use distlock_engine::store::{BusyReply, Grant, QueueStanding, Reply, Standing};
use tokio_postgres::Row;
use tokio_postgres::types::FromSql;

use crate::clock::{duration, reading, wall};
use crate::error::unreadable;

fn get<'a, T: FromSql<'a>>(row: &'a Row, column: &str) -> Result<T> {
    row.try_get(column).map_err(|error| unreadable(format!("{column}: {error}")))
}

pub(crate) fn token(number: i64) -> FencingToken {
    FencingToken::new(number.max(0).cast_unsigned())
}

fn small(number: i64) -> u32 {
    number.try_into().unwrap_or(u32::MAX)
}

/// The answer to an attempt.
pub(crate) fn reply(rows: &[Row]) -> Result<Reply> {
    let row = rows.first().ok_or_else(|| unreadable("no row"))?;
    let remaining = duration(get(row, "remaining")?);
    let first = token(get(row, "first")?);
    if get(row, "granted")? {
        let block = u32::try_from(get::<i32>(row, "block")?).ok().and_then(NonZeroU32::new);
        let block = block.ok_or_else(|| unreadable("an empty block"))?;
        return Ok(Reply::Granted(Grant::new(first, remaining).with_tokens(block)));
    }
    let standing = match get(row, "standing")? {
        -1 => QueueStanding::NotQueued,
        -2 => QueueStanding::Full,
        ahead => QueueStanding::Queued { ahead: small(ahead) },
    };
    Ok(Reply::Busy(busy(remaining, get(row, "read_at")?, first).with_standing(standing)))
}

fn busy(remaining: Duration, read_at: i64, first: FencingToken) -> BusyReply {
    BusyReply::new().with_holder_remaining(remaining).with_anchor(reading(read_at), first)
}

/// The result of one renewal.
#[derive(Debug)]
pub(crate) enum Renewed {
    Answered(Standing),
    /// Another transaction had locked the record, and this request did not wait.
    Locked,
}

/// The answers to `count` renewals, in their order.
pub(crate) fn standings(rows: &[Row], count: usize) -> Vec<Result<Renewed>> {
    let mut answers: Vec<_> = (0..count).map(|_| Err(unreadable("a renewal has no answer"))).collect();
    for row in rows {
        let place = get::<i32>(row, "nr").ok().and_then(|nr| usize::try_from(nr).ok()?.checked_sub(1));
        if let Some(answer) = place.and_then(|place| answers.get_mut(place)) {
            *answer = standing(row);
        }
    }
    answers
}

fn standing(row: &Row) -> Result<Renewed> {
    Ok(Renewed::Answered(match get(row, "state")? {
        "held" => Standing::Held { remaining: duration(get(row, "remaining")?) },
        "waiting" => {
            let first = token(get::<Option<i64>>(row, "first")?.unwrap_or(0));
            let busy = busy(duration(get(row, "remaining")?), get(row, "read_at")?, first);
            Standing::Waiting(busy.with_standing(QueueStanding::Queued { ahead: small(get(row, "ahead")?) }))
        }
        "gone" => Standing::Gone(Loss::Gone),
        "forced" => Standing::Gone(Loss::ForceReleased),
        "locked" => return Ok(Renewed::Locked),
        other => return Err(unreadable(format!("the state {other:?}"))),
    }))
}

/// The single value of an answer.
pub(crate) fn value<T: for<'a> FromSql<'a>>(rows: &[Row]) -> Result<T> {
    let row = rows.first().ok_or_else(|| unreadable("no row"))?;
    row.try_get(0).map_err(|error| unreadable(error.to_string()))
}

/// One column of the only row.
pub(crate) fn column<'a, T: FromSql<'a>>(rows: &'a [Row], column: &str) -> Result<T> {
    get(rows.first().ok_or_else(|| unreadable("no row"))?, column)
}

/// The description of a holder, as it is stored: the owner's bytes, and a JSON object.
pub(crate) fn description(holder: &Holder) -> (Option<&[u8]>, Option<Vec<u8>>) {
    let metadata = holder.metadata.as_deref().filter(|metadata| !metadata.is_empty());
    let metadata = metadata.and_then(|metadata| serde_json::to_vec(metadata).ok());
    (holder.owner.as_deref().map(str::as_bytes), metadata)
}

/// Text that was stored as bytes. Text that is not UTF-8 was written by another program.
fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A row of the view `held`.
pub(crate) fn info(row: &Row) -> Result<LockInfo> {
    let key = std::str::from_utf8(get(row, "key")?).map_err(|error| unreadable(format!("a key: {error}")))?;
    let key = LockKey::new(key)?;
    let id: Option<&str> = get(row, "id")?;
    let (last, remaining) = (token(get(row, "token")?), duration(get(row, "remaining")?));
    let info = LockInfo::new(key, id.map(AcquisitionId::new), last, remaining);
    let info = info.with_waiting(small(get(row, "waiting")?));
    if id.is_none() {
        // A minimum hold. The columns still describe the last holder.
        return Ok(info);
    }
    let owner: Option<&[u8]> = get(row, "owner")?;
    let metadata: Option<&[u8]> = get(row, "metadata")?;
    let metadata: BTreeMap<_, _> = metadata.and_then(|json| serde_json::from_slice(json).ok()).unwrap_or_default();
    Ok(info.with_holder(owner.map(text), metadata))
}

/// A row of a key's history.
pub(crate) fn forced(row: &Row) -> Result<ForcedRelease> {
    let id: Option<&str> = get(row, "id")?;
    let owner: Option<&[u8]> = get(row, "owner")?;
    let (last, at) = (token(get(row, "token")?), wall(get(row, "at")?));
    Ok(ForcedRelease::new(id.map(AcquisitionId::new), owner.map(text), last, at, text(get(row, "reason")?)))
}
