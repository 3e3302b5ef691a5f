//! The engine's integration tests, by clause of the contract (`lock-api/CONTRACT.md`). Time is
//! paused unless a test says otherwise. The store is the memory store with planned faults, or
//! [`store::ScriptedStore`] over it. They are in this package because the engine's is compiled with
//! optimization, which takes longer than it would save here.
//!
//! | clause | module |
//! |---|---|
//! | C1, C5, C7, C20 exclusion, fencing, owners, keys | `exclusion`; random runs in `wild` |
//! | C3, C19 deadline and expiry | `deadline` |
//! | C4 loss | `loss`, `wakers` |
//! | C9, C10 truthful release, lost replies | `replies` |
//! | C11 cancel safety | `cancel` (the matrix), `drops`, `runtimes`; of tickets `clean_up` |
//! | C12 – C14 renewal | `renewal`; just after a hand-over `fresh_claims` |
//! | C15 – C17 queue and wake-ups | `fairness`, `wakeup`, `hand_off` |
//! | C18 bounds | `bounds`, `numbers`, `lanes`; times below those of the store `floor` |
//! | C11, C14 a batch whose answer is lost, a client without CPU | `lost_batch`, `slow_client` |
//! | C21 several keys | `multi` |
//! | C22 release by force | `admin` |
//! | C23 accounting | `accounting` |
//! | C24 shutdown | `shutdown` |
//! | C25 minimum hold | `hold` |
//! | C26 – C31 modes | `modes`; leases that readers share in `sharing` |
//! | leases that carry a resource | `commit` |
//! | spans and metrics of acquisitions and holds | `instrumented` |
//! | pairs of mechanisms that meet in no other module | `pairs` |

mod accounting;
mod admin;
mod auto_traits;
mod bounds;
mod cancel;
mod clean_up;
mod commit;
mod dead_readers;
mod deadline;
mod drops;
mod exclusion;
mod fairness;
mod floor;
mod fresh_claims;
mod gather;
mod hand_off;
mod hold;
#[cfg(feature = "metrics")]
mod instrumented;
mod kit;
mod lanes;
mod log;
mod loss;
mod lost_batch;
mod modes;
mod multi;
mod numbers;
mod pairs;
mod renewal;
mod replies;
mod runtimes;
mod sharing;
mod shutdown;
mod slow_client;
mod store;
mod wakers;
mod wakeup;
mod wild;
