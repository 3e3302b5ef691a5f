//! C1, and with it most of the contract, under every kind of fault of the store and its clients.

use std::time::Duration;

use crate::check::checks;
use crate::context::Context;
use crate::failure::Verdict;
use crate::torture::{Length, run};

checks! {
    C1 under_faults Standard [Expiry, Processes, Arena]
        "A few faults of the store and of processes, one after the other, break no promise, and \
         every client can work afterwards. A failure means that a fault broke a promise or left a \
         client stuck.";
    C1 torture Torture [Expiry, Processes, Arena]
        "Every kind of fault, in random order for as long as the run lasts, breaks no promise, and \
         every client can work afterwards. A failure means that a fault broke a promise or left a \
         client stuck.";
}

/// How long the check of the level `standard` runs.
const SHORT: Duration = Duration::from_secs(25);

async fn under_faults(cx: Context) -> Verdict {
    run(&cx, Length { time: SHORT, all_kinds: false }).await
}

async fn torture(cx: Context) -> Verdict {
    let time = cx.time();
    run(&cx, Length { time, all_kinds: true }).await
}
