//! A million keys in memory, each used once, in a process that does nothing else.

use std::ops::Range;
use std::time::Instant;

use distlock_api::LockKey;
use distlock_bench::{Contender, Fluent, Keyed, Lockable};

use super::protocol::{KeysOnce, Report};
use crate::report::machine::resident_bytes;
use crate::{Outcome, stats};

const KEYS: u32 = 1_000_000;
/// The time is the median over this many slices: other work of the machine hits some of them, and
/// not the figure.
const SLICES: u32 = 100;
/// Enough for the allocator and the tables to have their usual size.
const WARM_UP: u32 = 1_000;

pub(super) async fn run(who: &str) -> Outcome<Report> {
    let measured = match who {
        Keyed::NAME => measure::<Keyed>().await?,
        Lockable::NAME => measure::<Lockable>().await?,
        Fluent::NAME => measure::<Fluent>().await?,
        other => return Err(format!("there is no contender {other}").into()),
    };
    Ok(Report { keys_once: Some(measured), ..Report::default() })
}

async fn measure<C: Contender>() -> Outcome<KeysOnce> {
    let locks = C::default();
    use_keys(&locks, "warm-up", 0..WARM_UP).await?;
    let mut times = vec![f64::MAX; SLICES as usize];
    let before = resident_bytes()?;
    for (slice, time) in (0..).zip(&mut times) {
        let keys = slice * (KEYS / SLICES)..(slice + 1) * (KEYS / SLICES);
        let start = Instant::now();
        use_keys(&locks, "orders", keys.clone()).await?;
        *time = start.elapsed().as_nanos() as f64 / keys.len() as f64;
    }
    let left_bytes = resident_bytes()? - before;
    Ok(KeysOnce { left_bytes, ns: stats::median(&times) })
}

async fn use_keys<C: Contender>(locks: &C, prefix: &str, keys: Range<u32>) -> Outcome<()> {
    for number in keys {
        locks.locked(&LockKey::new(format!("{prefix}/{number}"))?, || ()).await;
    }
    Ok(())
}
