//! Serialization of keys, tokens, holders and options, with the feature `serde`.
//!
//! Durations are whole milliseconds in fields whose names end in `_ms`. One with a fraction is an
//! error, so that what was written reads back as the same value.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::acquisition::AcquisitionId;
use crate::holder::Holder;
use crate::key::LockKey;
use crate::mode::Mode;
use crate::options::{AcquireOptions, LeaseOptions, RenewalPolicy, Wait};
use crate::token::FencingToken;

/// As text.
impl Serialize for LockKey {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

/// From text. Text that is not a key is refused, as by [`LockKey::new`].
impl<'de> Deserialize<'de> for LockKey {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::new(String::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

/// As an unsigned number. See [`FencingToken`] for readers that turn numbers into doubles.
impl Serialize for FencingToken {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(self.get())
    }
}

/// From an unsigned number.
impl<'de> Deserialize<'de> for FencingToken {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        u64::deserialize(deserializer).map(Self::new)
    }
}

/// As text.
impl Serialize for AcquisitionId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

/// From text.
impl<'de> Deserialize<'de> for AcquisitionId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(Self::new)
    }
}

/// As a map of what is set: `owner`, `metadata`.
impl Serialize for Holder {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let metadata = self.metadata.as_deref().cloned();
        HolderText { owner: self.owner.as_deref().map(str::to_owned), metadata }.serialize(serializer)
    }
}

/// From a map of `owner` and `metadata`, each of which may be absent. Other fields are refused.
impl<'de> Deserialize<'de> for Holder {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let HolderText { owner, metadata } = HolderText::deserialize(deserializer)?;
        Ok(Self { owner: owner.map(Into::into), metadata: metadata.map(Into::into) })
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct HolderText {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    owner: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    metadata: Option<BTreeMap<String, String>>,
}

/// `"try"`, `"forever"` or `{"up_to_ms": 5000}`.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum WaitText {
    Try,
    UpToMs(u64),
    Forever,
}

/// `"auto"`, `"never"` or `{"every_ms": 10000}`.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum RenewalText {
    Auto,
    EveryMs(u64),
    Never,
}

/// `"exclusive"`, `"shared"` or `{"permits": {"take": 1, "of": 10}}`.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum ModeText {
    Exclusive,
    Shared,
    Permits { take: u32, of: u32 },
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct LeaseText {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ttl_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    renewal: Option<RenewalPolicy>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    safety_margin_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    hold_at_least_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    linger_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    max_hold_ms: Option<u64>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct AcquireText {
    #[serde(default)]
    wait: Wait,
    #[serde(default, skip_serializing_if = "is_exclusive")]
    mode: Mode,
    #[serde(default, skip_serializing_if = "sets_nothing")]
    lease: LeaseOptions,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    owner: Option<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    metadata: BTreeMap<String, String>,
}

fn is_exclusive(mode: &Mode) -> bool {
    mode.is_exclusive()
}

fn sets_nothing(lease: &LeaseOptions) -> bool {
    *lease == LeaseOptions::new()
}

fn millis<E: serde::ser::Error>(duration: Duration) -> Result<u64, E> {
    let whole = u64::try_from(duration.as_millis()).ok().filter(|millis| Duration::from_millis(*millis) == duration);
    whole.ok_or_else(|| E::custom(format!("a duration of {duration:?} is not a whole number of milliseconds")))
}

/// As `"try"`, `"forever"` or `{"up_to_ms": 5000}`.
impl Serialize for Wait {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let text = match self {
            Self::Try => WaitText::Try,
            Self::UpTo(limit) => WaitText::UpToMs(millis::<S::Error>(*limit)?),
            Self::Forever => WaitText::Forever,
        };
        text.serialize(serializer)
    }
}

/// From `"try"`, `"forever"` or `{"up_to_ms": 5000}`.
impl<'de> Deserialize<'de> for Wait {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(match WaitText::deserialize(deserializer)? {
            WaitText::Try => Self::Try,
            WaitText::UpToMs(limit) => Self::UpTo(Duration::from_millis(limit)),
            WaitText::Forever => Self::Forever,
        })
    }
}

/// As `"exclusive"`, `"shared"` or `{"permits": {"take": 1, "of": 10}}`.
impl Serialize for Mode {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let text = match *self {
            Self::Exclusive => ModeText::Exclusive,
            Self::Shared => ModeText::Shared,
            Self::Permits { take, of } => ModeText::Permits { take, of },
        };
        text.serialize(serializer)
    }
}

/// From `"exclusive"`, `"shared"` or `{"permits": {"take": 1, "of": 10}}`.
impl<'de> Deserialize<'de> for Mode {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(match ModeText::deserialize(deserializer)? {
            ModeText::Exclusive => Self::Exclusive,
            ModeText::Shared => Self::Shared,
            ModeText::Permits { take, of } => Self::Permits { take, of },
        })
    }
}

/// As `"auto"`, `"never"` or `{"every_ms": 10000}`.
impl Serialize for RenewalPolicy {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let text = match self {
            Self::Auto => RenewalText::Auto,
            Self::Every(interval) => RenewalText::EveryMs(millis::<S::Error>(*interval)?),
            Self::Never => RenewalText::Never,
        };
        text.serialize(serializer)
    }
}

/// From `"auto"`, `"never"` or `{"every_ms": 10000}`.
impl<'de> Deserialize<'de> for RenewalPolicy {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(match RenewalText::deserialize(deserializer)? {
            RenewalText::Auto => Self::Auto,
            RenewalText::EveryMs(interval) => Self::Every(Duration::from_millis(interval)),
            RenewalText::Never => Self::Never,
        })
    }
}

/// As a map of what is set: `ttl_ms`, `renewal`, `safety_margin_ms`, `hold_at_least_ms`,
/// `linger_ms`, `max_hold_ms`.
impl Serialize for LeaseOptions {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let text = LeaseText {
            ttl_ms: self.get_ttl().map(millis::<S::Error>).transpose()?,
            renewal: self.get_renewal(),
            safety_margin_ms: self.get_safety_margin().map(millis::<S::Error>).transpose()?,
            hold_at_least_ms: self.get_hold_at_least().map(millis::<S::Error>).transpose()?,
            linger_ms: self.get_linger().map(millis::<S::Error>).transpose()?,
            max_hold_ms: self.get_max_hold().map(millis::<S::Error>).transpose()?,
        };
        text.serialize(serializer)
    }
}

/// From a map of `ttl_ms`, `renewal`, `safety_margin_ms`, `hold_at_least_ms`, `linger_ms` and
/// `max_hold_ms`, each of which may be absent. Other fields are refused. The values are checked
/// when they are used.
impl<'de> Deserialize<'de> for LeaseOptions {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = LeaseText::deserialize(deserializer)?;
        let mut options = Self::new();
        if let Some(ttl) = text.ttl_ms {
            options = options.ttl(Duration::from_millis(ttl));
        }
        if let Some(renewal) = text.renewal {
            options = options.renewal(renewal);
        }
        if let Some(margin) = text.safety_margin_ms {
            options = options.safety_margin(Duration::from_millis(margin));
        }
        if let Some(hold) = text.hold_at_least_ms {
            options = options.hold_at_least(Duration::from_millis(hold));
        }
        if let Some(linger) = text.linger_ms {
            options = options.linger(Duration::from_millis(linger));
        }
        if let Some(hold) = text.max_hold_ms {
            options = options.max_hold(Duration::from_millis(hold));
        }
        Ok(options)
    }
}

/// As a map of `wait` and of what is set: `mode`, `lease`, `owner`, `metadata`. Whether attempts
/// are batched is the business of the call, and is left out.
impl Serialize for AcquireOptions {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let text = AcquireText {
            wait: self.wait(),
            mode: self.mode(),
            lease: self.lease(),
            owner: self.holder().owner.as_deref().map(str::to_owned),
            metadata: self.holder().metadata.as_deref().cloned().unwrap_or_default(),
        };
        text.serialize(serializer)
    }
}

/// From a map of `wait`, `mode`, `lease`, `owner` and `metadata`, each of which may be absent.
/// Other fields are refused. The values are checked when they are used.
impl<'de> Deserialize<'de> for AcquireOptions {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = AcquireText::deserialize(deserializer)?;
        let mut options = Self::new().with_wait(text.wait).with_mode(text.mode).with_lease(text.lease);
        if let Some(owner) = text.owner {
            options = options.with_owner(owner);
        }
        for (name, value) in text.metadata {
            options = options.with_metadata(name, value);
        }
        Ok(options)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round_trip<T: Serialize + serde::de::DeserializeOwned>(value: &T, json: &str) -> T {
        assert_eq!(serde_json::to_string(value).unwrap(), json);
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn values_come_back_as_they_were() {
        let key = LockKey::new("orders/7").unwrap();
        assert_eq!(round_trip(&key, r#""orders/7""#), key);
        let token = FencingToken::new(u64::MAX);
        assert_eq!(round_trip(&token, "18446744073709551615"), token);
        let id = AcquisitionId::new("p-1");
        assert_eq!(round_trip(&id, r#""p-1""#), id);
        assert_eq!(round_trip(&Holder::new(), "{}"), Holder::new());
        let holder = Holder::new().with_owner("a\0").with_metadata("b", "c");
        assert_eq!(round_trip(&holder, r#"{"owner":"a\u0000","metadata":{"b":"c"}}"#), holder);
        let lease = LeaseOptions::new()
            .ttl(Duration::from_secs(12))
            .renewal(RenewalPolicy::Every(Duration::from_millis(1500)))
            .safety_margin(Duration::ZERO)
            .hold_at_least(Duration::from_secs(60));
        let text = r#"{"ttl_ms":12000,"renewal":{"every_ms":1500},"safety_margin_ms":0,"hold_at_least_ms":60000}"#;
        assert_eq!(round_trip(&lease, text), lease);
        let lease = LeaseOptions::new().linger(Duration::from_millis(100)).max_hold(Duration::from_secs(9));
        assert_eq!(round_trip(&lease, r#"{"linger_ms":100,"max_hold_ms":9000}"#), lease);
        let options = AcquireOptions::new()
            .with_wait(Wait::UpTo(Duration::from_secs(5)))
            .with_lease(LeaseOptions::new().renewal(RenewalPolicy::Never))
            .with_owner("a")
            .with_metadata("b", "c");
        let text = r#"{"wait":{"up_to_ms":5000},"lease":{"renewal":"never"},"owner":"a","metadata":{"b":"c"}}"#;
        assert_eq!(round_trip(&options, text), options);
        let options = AcquireOptions::new().with_mode(Mode::Permits { take: 1, of: 10 });
        assert_eq!(round_trip(&options, r#"{"wait":"forever","mode":{"permits":{"take":1,"of":10}}}"#), options);
        assert_eq!(round_trip(&Mode::Shared, r#""shared""#), Mode::Shared);
        assert_eq!(round_trip(&AcquireOptions::try_once(), r#"{"wait":"try"}"#), AcquireOptions::try_once());
        assert_eq!(serde_json::from_str::<AcquireOptions>("{}").unwrap(), AcquireOptions::new());
    }

    #[test]
    fn what_cannot_be_read_or_written_exactly_is_refused() {
        let empty = serde_json::from_str::<LockKey>(r#""""#).unwrap_err();
        assert!(empty.to_string().contains("must not be empty"), "{empty}");
        assert!(serde_json::from_str::<FencingToken>("-1").is_err());
        assert!(serde_json::from_str::<LeaseOptions>(r#"{"ttl":30}"#).is_err());
        let fraction = serde_json::to_string(&Wait::UpTo(Duration::from_micros(1500))).unwrap_err();
        assert!(fraction.to_string().contains("whole number of milliseconds"), "{fraction}");
    }
}
