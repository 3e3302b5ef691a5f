//! The modes of calls.

use distlock_api::Mode;
use fastrand::Rng;

/// The number of permits of every key.
const PERMITS: u32 = 3;

/// Draws the mode of a call.
pub(crate) fn draw(rng: &mut Rng) -> Mode {
    match rng.u32(..10) {
        0..=3 => Mode::Shared,
        4..=5 => Mode::Permits { take: rng.u32(1..=2), of: PERMITS },
        _ => Mode::Exclusive,
    }
}
