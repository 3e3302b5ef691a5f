//! The state of a lock, as a JSON object and as cells of a table. No I/O.

use std::time::SystemTime;

use distlock::mongodb::mongodb::bson::DateTime;
use distlock::{LockHolder, LockInfo};
use serde_json::{Value, json};

use crate::{duration, mode};

/// Returns the state in one word.
pub(crate) fn word(info: &LockInfo) -> &'static str {
    match (&info.unreadable, &info.id) {
        (Some(_), _) => "unreadable",
        (None, Some(_)) => "held",
        // Only a minimum hold keeps the key closed.
        (None, None) => "closed",
    }
}

/// Returns the state as a JSON object.
pub(crate) fn object(info: &LockInfo) -> Value {
    let holders = mode::holders(info);
    json!({
        "key": info.key.as_str(),
        "state": word(info),
        "mode": holders.first().map(|first| mode::word(first.mode)),
        "owner": info.owner,
        "token": info.token.get(),
        "remaining_ms": duration::millis(info.remaining),
        "waiting": info.waiting,
        "id": info.id.as_ref().map(|id| id.as_str()),
        "metadata": info.metadata,
        "holders": holders.iter().map(holder).collect::<Vec<_>>(),
        "unreadable": info.unreadable,
    })
}

/// Returns one holder as a JSON object.
fn holder(holder: &LockHolder) -> Value {
    let mut object = json!({
        "id": holder.id.as_str(),
        "owner": holder.owner,
        "token": holder.token.get(),
        "remaining_ms": duration::millis(holder.remaining),
        "metadata": holder.metadata,
    });
    mode::add_fields(object.as_object_mut().expect("made above"), holder.mode);
    object
}

/// Returns the owner; of several holders that of the first, and how many others there are. Empty
/// if the holders have named none.
pub(crate) fn owners(info: &LockInfo) -> String {
    let owner = info.owner.clone().unwrap_or_default();
    match info.holders.len().saturating_sub(1) {
        0 => owner,
        1 => format!("{owner} and 1 other").trim_start().to_owned(),
        others => format!("{owner} and {others} others").trim_start().to_owned(),
    }
}

/// Returns a time of the store's clock, as in RFC 3339.
pub(crate) fn time(at: SystemTime) -> String {
    let at = DateTime::from_system_time(at);
    at.try_to_rfc3339_string().unwrap_or_else(|_| format!("{} ms", at.timestamp_millis()))
}

/// Returns the columns of a list: key, state, mode, owner, time left, waiting, token.
pub(crate) fn cells(info: &LockInfo) -> [String; 7] {
    [
        info.key.as_str().to_owned(),
        word(info).to_owned(),
        if info.id.is_some() { mode::summary(info) } else { String::new() },
        owners(info),
        duration::show(info.remaining),
        info.waiting.map_or_else(String::new, |waiting| waiting.to_string()),
        info.token.to_string(),
    ]
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use distlock::{AcquisitionId, FencingToken, LockKey, Mode};

    use super::*;

    #[test]
    fn a_key_can_be_closed_without_a_holder() {
        let key = LockKey::new("a").unwrap();
        let (token, left) = (FencingToken::new(7), Duration::from_millis(1500));
        let held = LockInfo::new(key.clone(), Some(AcquisitionId::new("x")), token, left).with_waiting(2);
        let closed = LockInfo::new(key.clone(), None, token, left);
        let unreadable = LockInfo::unreadable(key, left, "no long");
        for (info, state) in [(&held, "held"), (&closed, "closed"), (&unreadable, "unreadable")] {
            assert_eq!(object(info)["state"], state);
        }
        assert_eq!(cells(&held), ["a", "held", "exclusive", "", "1.5 s", "2", "7"]);
        assert_eq!(cells(&closed), ["a", "closed", "", "", "1.5 s", "", "7"]);
        assert_eq!(object(&held)["remaining_ms"], 1500);
        assert_eq!(object(&unreadable)["unreadable"], "no long");
        assert_eq!((&object(&held)["mode"], &object(&held)["holders"][0]["id"]), (&"exclusive".into(), &"x".into()));
        assert_eq!((&object(&closed)["mode"], &object(&closed)["holders"]), (&Value::Null, &json!([])));
    }

    /// A lock with these holders, named `a`, `b` and so on.
    fn held_by(modes: &[Mode]) -> LockInfo {
        let (key, left) = (LockKey::new("k").unwrap(), Duration::from_secs(5));
        let holder = |(mode, name): (&Mode, char)| {
            LockHolder::new(AcquisitionId::new(name.to_string()), *mode, FencingToken::new(3), left)
                .with_holder(Some(format!("owner {name}")), Default::default())
        };
        let holders: Vec<_> = modes.iter().zip('a'..).map(holder).collect();
        let first = holders[0].clone();
        LockInfo::new(key, Some(first.id), FencingToken::new(4), left)
            .with_holder(first.owner, first.metadata)
            .with_holders(holders)
    }

    #[test]
    fn several_holders_are_shown() {
        let shared = held_by(&[Mode::Shared; 3]);
        assert_eq!(cells(&shared)[2..4], ["shared by 3", "owner a and 2 others"]);
        let object = object(&shared);
        assert_eq!((&object["mode"], object["holders"].as_array().unwrap().len()), (&"shared".into(), 3));
        assert_eq!(object["holders"][1]["owner"], "owner b");
        assert_eq!(object["holders"][1].get("take"), None);

        let permits = held_by(&[Mode::Permits { take: 2, of: 10 }, Mode::Permits { take: 1, of: 10 }]);
        assert_eq!(cells(&permits)[2..4], ["3 of 10 permits", "owner a and 1 other"]);
        let expected = json!({
            "id": "a", "owner": "owner a", "token": 3, "remaining_ms": 5000, "metadata": {},
            "mode": "permits", "take": 2, "of": 10,
        });
        assert_eq!(super::object(&permits)["holders"][0], expected);
        assert_eq!(owners(&held_by(&[Mode::Shared])), "owner a");
    }
}
