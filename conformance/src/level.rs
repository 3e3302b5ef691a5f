//! How thorough a run is, and where its randomness comes from.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::profile::Profile;

/// How thorough a run is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Level {
    /// Seconds: the shortest checks, with few rounds.
    Smoke,
    /// A minute: every check once, with few rounds. Variants of a backend
    /// ([`Profile::variant`](crate::Profile::variant)) share the checks of the level smoke. The
    /// default.
    #[default]
    Quick,
    /// Minutes: all checks, once.
    Standard,
    /// For a given time: repeats all checks with new seeds, and runs the checks that only this
    /// level has.
    Torture,
}

impl Level {
    /// The variable that sets the level.
    pub const VARIABLE: &str = "DISTLOCK_CONFORMANCE_LEVEL";

    const ALL: [Self; 4] = [Self::Smoke, Self::Quick, Self::Standard, Self::Torture];

    /// Returns the level of [`VARIABLE`](Self::VARIABLE), or the default one: for tests beside the
    /// suite that have more to examine at the level standard.
    ///
    /// # Errors
    /// The variable names no level.
    pub fn from_env() -> Result<Self, String> {
        match std::env::var(Self::VARIABLE) {
            Ok(level) if !level.is_empty() => level.parse(),
            _ => Ok(Self::default()),
        }
    }

    /// Returns the name on the command line.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Smoke => "smoke",
            Self::Quick => "quick",
            Self::Standard => "standard",
            Self::Torture => "torture",
        }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Level {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let level = Self::ALL.into_iter().find(|level| level.as_str() == text);
        level.ok_or_else(|| format!("`{text}` is not a level: use smoke, quick, standard or torture"))
    }
}

/// The source of all random choices of a run. The choices of a check depend only on this number and
/// the check's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seed(u64);

impl Seed {
    pub(crate) fn random() -> Self {
        Self(fastrand::u64(..))
    }

    /// Returns the seed of the next round.
    pub(crate) fn next(self) -> Self {
        Self(self.0.wrapping_add(1))
    }

    /// Returns the random number generator of one check. Each check of a run has a different one.
    pub(crate) fn of(self, fixture: &str, check: &str) -> fastrand::Rng {
        // FNV-1a: the same in every build, as the hashes of the standard library are not.
        let bytes = fixture.bytes().chain([0]).chain(check.bytes());
        let hash = bytes
            .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
        fastrand::Rng::with_seed(self.0 ^ hash)
    }
}

impl fmt::Display for Seed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#018x}", self.0)
    }
}

impl FromStr for Seed {
    type Err = String;

    /// A decimal number, or a hexadecimal one after `0x`.
    fn from_str(text: &str) -> Result<Self, String> {
        let number = match text.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16),
            None => text.parse(),
        };
        number.map(Self).map_err(|_| format!("`{text}` is not a number of 64 bits"))
    }
}

/// The settings of a run that its checks use.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) level: Level,
    pub(crate) seed: Seed,
    /// How long a check of the level torture runs.
    pub(crate) time: Duration,
}

impl Plan {
    /// Returns the level of the checks that a backend takes.
    pub(crate) fn level_for(self, profile: &Profile) -> Level {
        if self.level == Level::Quick && profile.is_variant() { Level::Smoke } else { self.level }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_reads_as_it_is_written() {
        let seed: Seed = "0x00000000000000ff".parse().unwrap();
        assert_eq!((seed, seed.to_string().as_str()), (Seed(255), "0x00000000000000ff"));
        assert_eq!("255".parse(), Ok(seed));
        for nonsense in ["", "0x", "-1", "ff", "0x1ffffffffffffffff"] {
            assert!(nonsense.parse::<Seed>().is_err(), "{nonsense}");
        }
    }

    #[test]
    fn a_check_chooses_by_the_seed_and_its_name_alone() {
        let first = |seed: u64, fixture, check| Seed(seed).of(fixture, check).u64(..);
        assert_eq!(first(1, "a", "b"), first(1, "a", "b"));
        let others = [first(2, "a", "b"), first(1, "b", "b"), first(1, "a", "c"), first(1, "ab", "")];
        assert!(!others.contains(&first(1, "a", "b")));
    }

    #[test]
    fn levels_have_names() {
        assert!(Level::ALL.into_iter().all(|level| level.as_str().parse() == Ok(level)));
        assert!("Smoke".parse::<Level>().is_err());
        assert!(Level::ALL.is_sorted());
    }
}
