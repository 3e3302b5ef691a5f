//! The configurations. Each small one can be explored completely, and together they cover
//! everything that the protocol must tolerate.

mod base;
mod exclusive;
mod large;
mod modes;

use self::base::BASE;
use self::exclusive::EXCLUSIVE;
use self::large::ONLY_LARGE;
use self::modes::MODES;
use crate::config::Config;

/// For continuous integration: a minute or so.
pub const SMALL: [Config; EXCLUSIVE.len() + MODES.len()] = {
    let mut all = [BASE; EXCLUSIVE.len() + MODES.len()];
    let mut place = 0;
    while place < all.len() {
        all[place] = if place < EXCLUSIVE.len() { EXCLUSIVE[place] } else { MODES[place - EXCLUSIVE.len()] };
        place += 1;
    }
    all
};

/// Returns larger configurations: the small ones with one more tick, attempt, message and fault of
/// each kind, and some without a small version.
#[must_use]
pub fn large() -> Vec<Config> {
    SMALL.iter().map(Config::larger).chain(ONLY_LARGE).collect()
}

/// Returns the small configuration of a name.
#[must_use]
pub fn small(name: &str) -> Option<Config> {
    SMALL.into_iter().find(|config| config.name == name)
}
