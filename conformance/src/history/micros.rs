//! Moments in JSON: microseconds, with three decimals.

use std::time::Duration;

use serde::{Deserialize, Deserializer, Serializer};

fn to_micros(moment: Duration) -> f64 {
    moment.as_secs_f64() * 1e6
}

fn from_micros(micros: f64) -> Duration {
    Duration::try_from_secs_f64(micros / 1e6).unwrap_or_default()
}

pub(super) fn serialize<S: Serializer>(moment: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64((to_micros(*moment) * 1e3).round() / 1e3)
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    f64::deserialize(deserializer).map(from_micros)
}

pub(super) mod option {
    use super::*;

    pub(in super::super) fn serialize<S: Serializer>(
        moment: &Option<Duration>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        match moment {
            Some(moment) => super::serialize(moment, serializer),
            None => serializer.serialize_none(),
        }
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Duration>, D::Error> {
        Ok(Option::<f64>::deserialize(deserializer)?.map(from_micros))
    }
}
