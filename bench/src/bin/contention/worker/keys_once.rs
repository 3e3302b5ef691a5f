//! A million keys in memory, each used once, in a process that does nothing else.

use std::time::Instant;

use distlock_api::LockKey;
use distlock_bench::{Contender, Fluent, Keyed, Lockable};

use super::protocol::{KeysOnce, Report};
use crate::Outcome;

const KEYS: u32 = 1_000_000;
/// Enough for the allocator and the tables to have their usual size.
const WARM_UP: u32 = 1_000;

pub(super) async fn run(who: &str) -> Outcome<Report> {
    let measured = match who {
        Keyed::NAME => measure::<Keyed>().await?,
        Lockable::NAME => measure::<Lockable>().await?,
        Fluent::NAME => measure::<Fluent>().await?,
        other => return Err(format!("nobody is called {other}").into()),
    };
    Ok(Report { keys_once: Some(measured), ..Report::default() })
}

async fn measure<C: Contender>() -> Outcome<KeysOnce> {
    let locks = C::default();
    use_keys(&locks, "warm-up", WARM_UP).await?;
    let before = resident_bytes()?;
    let start = Instant::now();
    use_keys(&locks, "orders", KEYS).await?;
    let ns = start.elapsed().as_nanos() as f64 / f64::from(KEYS);
    Ok(KeysOnce { left_bytes: resident_bytes()? - before, ns })
}

async fn use_keys<C: Contender>(locks: &C, prefix: &str, keys: u32) -> Outcome<()> {
    for number in 0..keys {
        locks.locked(&LockKey::new(format!("{prefix}/{number}"))?, || ()).await;
    }
    Ok(())
}

/// What the process occupies as the operating system sees it.
fn resident_bytes() -> Outcome<i64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).ok_or("/proc does not tell")?;
    Ok(line.trim().trim_end_matches("kB").trim().parse::<i64>()? * 1024)
}
