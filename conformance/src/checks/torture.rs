//! C1, and with it nearly all of the contract, while everything happens to the store and to its clients.

use std::time::Duration;

use crate::check::checks;
use crate::context::Context;
use crate::failure::Verdict;
use crate::torture::{Length, run};

checks! {
    C1 under_faults [Expiry, Processes, Arena] "a few faults of the store and of processes, one after the other, break no promise, and everybody can work afterwards";
    C1 torture Torture [Expiry, Processes, Arena] "every kind of fault, in random order for as long as the run is told to go on, breaks no promise, and everybody can work afterwards";
}

/// What the level torture does, for a short time.
const SHORT: Duration = Duration::from_secs(25);

async fn under_faults(cx: Context) -> Verdict {
    run(&cx, Length { time: SHORT, all_kinds: false }).await
}

async fn torture(cx: Context) -> Verdict {
    let time = cx.time();
    run(&cx, Length { time, all_kinds: true }).await
}
