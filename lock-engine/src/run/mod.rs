//! The engine at work: calls of the store, tasks and timers. What they decide is in `state`.
//!
//! | file | what it does |
//! |---|---|
//! | `core` | what a provider and its guards share |
//! | `acquire` | one acquisition from the call to the guard: attempts and waiting |
//! | `local` | what a caller gets within this process: a lease, the turn, or the answer "busy" |
//! | `attempt` | the attempts of one acquisition |
//! | `cleanup` | the withdrawal of attempts that were cancelled or whose outcome is unknown, and of lost leases |
//! | `clock` | the time, and how long the machine was suspended, which the monotonic clock does not show |
//! | `outbox` | the way of every request to the store, alone or with others |
//! | `call` | one request in line for the store or in flight, never doubled |
//! | `held` | what is behind the guards of a lease: its loss, its hand-off, its release |
//! | `join` | readers that join a shared lease of this process, and leave it |
//! | `transit` | a lease in transit from one guard to the next, or to a reader that joins it |
//! | `parked` | a lease that lingers for the next guard |
//! | `release` | the release of a lease, in the foreground and behind a dropped guard |
//! | `commit` | a write that also releases, and one that does not |
//! | `keeper` | the one task per runtime that renews all leases and refreshes all tickets in batches, and notices missed deadlines |
//! | `listener` | the store's events |
//! | `shutdown` | closing a provider |
//!
//! A lease is in exactly one phase, changed under its own lock, and leaves the ledger exactly once.
//! That is all of the accounting (C23), together with the number of guards of a shared lease.
//!
//! Work that must not be forgotten is owned by a value whose `Drop` completes it. These are a
//! [turn](transit::Turn), a guard [on its way](transit::Joined), an
//! [acquisition](attempt::Acquisition) with its call in flight, a [release](release::ReleaseJob),
//! and a [commit](commit::CommitJob).

pub(crate) mod acquire;
pub(crate) mod attempt;
pub(crate) mod call;
pub(crate) mod cleanup;
pub(crate) mod clock;
pub(crate) mod commit;
pub(crate) mod core;
pub(crate) mod held;
pub(crate) mod join;
pub(crate) mod keeper;
pub(crate) mod listener;
pub(crate) mod local;
pub(crate) mod outbox;
pub(crate) mod parked;
pub(crate) mod release;
pub(crate) mod shutdown;
pub(crate) mod transit;
