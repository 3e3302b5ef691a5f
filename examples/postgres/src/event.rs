//! Turns the texts of notifications into events, without I/O.

use std::num::NonZeroU32;
use std::time::Duration;

use distlock_api::{AcquisitionId, LockEvent, LockKey, Loss, Mode};
use distlock_engine::store::{Grant, StoreEvent};

use crate::answers::token;
use crate::clock::reading;

/// The event in a notification; a gap if the text is not from this store.
pub(crate) fn parse(payload: &str) -> StoreEvent {
    parsed(payload).unwrap_or(StoreEvent::Gap)
}

/// The lock event in a notification; a gap if the text is not from this store.
pub(crate) fn parse_lock_event(payload: &str) -> LockEvent {
    parsed_lock_event(payload).unwrap_or(LockEvent::Gap)
}

fn parsed_lock_event(payload: &str) -> Option<LockEvent> {
    let parts: Vec<&str> = payload.split(' ').collect();
    let (what, key, id, more) = match *parts.as_slice() {
        [what, key, id, ref more @ ..] => (what, lock_key(key)?, AcquisitionId::new(id), more),
        _ => return None,
    };
    Some(match (what, more) {
        ("released", []) => LockEvent::Released { key, id },
        ("forced", []) => LockEvent::ForceReleased { key, id },
        ("expired", []) => LockEvent::Expired { key, id },
        ("granted", [last, owner @ ..]) if owner.len() <= 1 => {
            let owner = owner.first().map(|owner| text(owner)).map_or(Some(None), |owner| owner.map(Some))?;
            LockEvent::Granted { key, id, token: token(number(last)?), owner, mode: Mode::Exclusive }
        }
        _ => return None,
    })
}

fn number(text: &str) -> Option<i64> {
    text.parse().ok()
}

fn parsed(payload: &str) -> Option<StoreEvent> {
    let parts: Vec<&str> = payload.split(' ').collect();
    Some(match *parts.as_slice() {
        ["freed", key] => StoreEvent::Freed { key: lock_key(key)? },
        ["gone", key, id, last] => StoreEvent::Gone {
            key: lock_key(key)?,
            id: AcquisitionId::new(id),
            token: token(number(last)?),
            loss: Loss::ForceReleased,
        },
        ["granted", key, id, first, tokens, expires_at] => StoreEvent::Granted {
            key: lock_key(key)?,
            id: AcquisitionId::new(id),
            grant: Grant::new(token(number(first)?), Duration::ZERO).with_tokens(tokens.parse::<NonZeroU32>().ok()?),
            expires_at: reading(number(expires_at)?),
        },
        _ => return None,
    })
}

fn lock_key(hex: &str) -> Option<LockKey> {
    LockKey::new(text(hex)?).ok()
}

fn text(hex: &str) -> Option<String> {
    let digits = hex.as_bytes();
    if !digits.len().is_multiple_of(2) {
        return None;
    }
    let digit = |digit: u8| char::from(digit).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let bytes = digits.chunks_exact(2).map(|pair| Some(digit(pair[0])? << 4 | digit(pair[1])?));
    String::from_utf8(bytes.collect::<Option<_>>()?).ok()
}

#[cfg(test)]
mod tests {
    use distlock_api::FencingToken;

    use super::*;

    #[test]
    fn pushed_events_are_parsed() {
        let key = LockKey::new("a \0é").unwrap();
        assert_eq!(parse("freed 612000c3a9"), StoreEvent::Freed { key: key.clone() });
        let id = AcquisitionId::new("p-1");
        let (token, loss) = (FencingToken::new(7), Loss::ForceReleased);
        let gone = StoreEvent::Gone { key: key.clone(), id: id.clone(), token, loss };
        assert_eq!(parse("gone 612000c3a9 p-1 7"), gone);
        let grant = Grant::new(token, Duration::ZERO).with_tokens(NonZeroU32::new(3).unwrap());
        let granted = StoreEvent::Granted { key, id, grant, expires_at: reading(1000) };
        assert_eq!(parse("granted 612000c3a9 p-1 7 3 1000"), granted);
    }

    #[test]
    fn lock_events_are_parsed() {
        let (key, id) = (LockKey::new("a").unwrap(), AcquisitionId::new("p-1"));
        let granted = |owner: Option<&str>| {
            let (key, id, owner) = (key.clone(), id.clone(), owner.map(str::to_owned));
            LockEvent::Granted { key, id, token: FencingToken::new(7), owner, mode: Mode::Exclusive }
        };
        assert_eq!(parse_lock_event("granted 61 p-1 7"), granted(None));
        assert_eq!(parse_lock_event("granted 61 p-1 7 "), granted(Some("")));
        assert_eq!(parse_lock_event("granted 61 p-1 7 6d65"), granted(Some("me")));
        let ended = || (key.clone(), id.clone());
        let (key, id) = ended();
        assert_eq!(parse_lock_event("released 61 p-1"), LockEvent::Released { key, id });
        let (key, id) = ended();
        assert_eq!(parse_lock_event("forced 61 p-1"), LockEvent::ForceReleased { key, id });
        let (key, id) = ended();
        assert_eq!(parse_lock_event("expired 61 p-1"), LockEvent::Expired { key, id });
        for payload in
            ["", "expired", "expired 61 p-1 7", "granted 61 p-1", "granted 61 p-1 7 zz", "granted 61 p-1 7 61 61"]
        {
            assert_eq!(parse_lock_event(payload), LockEvent::Gap, "{payload:?}");
        }
    }

    #[test]
    fn anything_else_is_a_gap() {
        for payload in
            ["", "freed", "freed 6", "freed zz", "freed ff", "freed ", "gone 61 p x", "granted 61 p 1 0 1", "hello 61"]
        {
            assert_eq!(parse(payload), StoreEvent::Gap, "{payload:?}");
        }
    }
}
