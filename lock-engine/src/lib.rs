//! The lease engine: a full [`LockProvider`](distlock_api::LockProvider) over any [`LeaseStore`].
//!
//! For authors of backends. They implement [`LeaseStore`], three required methods without loops,
//! timers or tasks. One that can load a value and save it needs only [`Record`](record::Record),
//! which decides what a request does. [`LeaseProvider`] makes a provider of the store, and
//! [`LeaseGuard`] is the base of guards that carry more than a lock. The conformance suite
//! (`distlock-conformance`) checks whether the promises hold.
//!
//! # How it works
//!
//! ```text
//!  caller                      engine                                                store
//!
//!  acquire(key) ──► local queue: one turn per key             state::local_queue
//!                        │ turn
//!                        ▼
//!                   attempt ──► outbox: permit ─► try_acquire ─────────────────────► busy: a ticket
//!                        ▲                                                             │
//!                        └── timer, event, refreshed ticket ── state::wait ◄───────────┘
//!                        │
//!                        │ granted: deadline = sent + remaining - margin  state::lease::deadline
//!                        ▼
//!  LockGuard ◄────── lease enters the ledger                    state::ledger
//!     │                  │
//!     │                  │ keeper: due leases in batches ──────► renew_many ────────► held | gone
//!     │                  │          state::schedule, batch
//!     │  lost() ◄── lost: at the deadline, by an answer, by an event   run::core::record_loss
//!     │
//!     ├─ release ──► share: other readers have the lease, no call     state::sharing
//!     │         ├──► hand on: next local caller, next token, no call   state::hand_off (R21)
//!     │         ├──► linger: parked for the next one that comes        run::parked
//!     │         └──► release ──► outbox: permit ─► release ─────────────────────────► next ticket granted
//!     │                          run::release
//!     └─ drop ─────► the same in the background
//! ```
//!
//! * **Acquire.** Callers of one process that want the same key stand in a local queue, and one of
//!   them makes attempts at the store. After each answer, event and timer it does what the wait
//!   decides, until it has the lease or leaves. An attempt that is dropped is finished in the
//!   background, and what it brought is given back.
//! * **Hold.** The lease is held until its deadline, which counts from before its attempt, or its
//!   last answered renewal, was sent. One keeper per runtime renews all leases in batches and
//!   notices deadlines that have passed. A lease is lost once, and only while it is held.
//! * **Release.** The lease passes to the next local caller without a call of the store, or lingers
//!   for one. Otherwise it is released there, and the store grants it to the first ticket. If the
//!   reply of a release is lost, the same release is sent again after the error. The store has
//!   remembered the first one, and answers as it would have then. After one request timeout without
//!   an answer the caller gets an error of unknown outcome. In the background the release is sent
//!   until the store has answered, the lease would have expired, or `close` gives up.
//! * **Share.** Readers of one process share one lease. A reader that has the key's turn, or comes
//!   beside one that has just got it, joins a shared lease that is held, with the next token and
//!   without a call of the store. It lets the readers behind it join. The last one that leaves
//!   releases the lease. A lease that is shared, or for permits, does not keep the turn: the next
//!   local caller may request the key from the store.
//!
//! # Walks
//! What passes through which functions, if no other caller wants the key.
//!
//! **An acquisition**
//! 1. `run/acquire.rs: acquire` checks the options (`check`), fixes the limit of the wait, and puts
//!    all that the caller wants into one `Wanted`.
//! 2. `run/local.rs: enter_local` takes the key's turn from `state/local_queue.rs: try_take`. With
//!    a lease of this process the walk ends here: it is handed on, or joined by a reader.
//! 3. `run/acquire.rs: drive` begins a claim and does what `state/wait.rs: Wait` decides: attempt,
//!    sleep, start, return.
//! 4. `run/attempt.rs: attempt_once` sends the attempt; `run/outbox.rs: send` gets a permit for it
//!    from `store/outbox/queue.rs: enter`, or leaves it in line. A task calls `try_acquire`.
//! 5. `run/call.rs: answer` awaits the answer, and `Wait::on_answer` decides on it.
//! 6. `run/acquire.rs: enter` makes the lease and enters it in the ledger, whose keeper renews it.
//!    `run/held.rs: HeldLease` is behind the guard.
//!
//! **A release**
//! 1. `run/held.rs: give_up` ends the guard: other readers have the lease, the next local caller
//!    gets it, it lingers, or `begin_release` takes it out of the keeper's hands.
//! 2. `run/release.rs: run` sends it through the outbox (`send`), awaits the answer, and retries
//!    errors; after one request timeout, or if the caller leaves, `background` does.
//! 3. `end` takes the lease out of the ledger and passes the turn on.
//!
//! **A renewal**
//! 1. `run/keeper.rs: run_keeper` wakes at the time that `Ledger::plan` has named, and
//!    `state/ledger/due.rs: take_due` makes batches of what is due, one for each permit.
//! 2. A task per call (`renew`) leaves out what was released meanwhile, and sends `renew_many`.
//! 3. `record_answers` records each answer: `Lease::renewed` moves the deadline, counted from
//!    before the call; an error is repeated after `renewal_retry_after`; *gone* is a loss.
//!
//! **A batch whose reply is lost.** Each of its callers gets the error from `run/outbox.rs: call`.
//! `attempt_once` starts a new claim, and hands the old one to `run/cleanup.rs: settle`. That
//! withdraws it: at once, and again when the lost call can no longer act (R24). Withdrawals go
//! through the same outbox, together.
//!
//! # Floors
//! The documentation cites the clauses C1–C31 of the [contract](distlock_api::contract), and the
//! rules R1–R32 of the MongoDB lease protocol: see the module `protocol` of `distlock-mongo`.
//!
//! | floor | contents |
//! |---|---|
//! | `face` | the provider with its configuration, and the guard of typed styles |
//! | `run` | calls, tasks and timers |
//! | `state` | decisions, without I/O: the time is an argument |
//! | [`record`] | the record of a key as a value, and what each request does to it |
//! | `store` | the interface to a store |
//!
//! A floor imports from those below it only; `scripts/check-imports` tests that.
//!
//! | to change | edit |
//! |---|---|
//! | how often a lease is renewed | `LeaseOptions::terms` in `lock-api/src/options/lease.rs`; of a short lease, and how much earlier with others, `state/ledger.rs` (`renewal_succeeded`) |
//! | when a failed renewal is sent again | `state/backoff.rs` (`renewal_retry_after`) |
//! | what the deadline of a lease is | `state/lease.rs` (`deadline`; `effective_deadline` with the maximum hold and the sleeps of the machine); of a pushed grant `state/wait.rs` (`on_pushed`), by the expiry from `state/claim.rs` (`end_of`) |
//! | what happens when a release is not answered | `run/release.rs` |
//! | what a waiter does after an answer | `state/wait.rs` |
//! | how long a lease is handed on | `state/hand_off.rs` |
//! | when a reader joins a lease of this process | `state/sharing.rs`; the order of joins `run/join.rs` |
//! | how many calls go to the store at once, and what goes together | `store/outbox/queue.rs` |

mod face;
mod log;
mod metrics;
mod options;
pub mod record;
mod run;
#[cfg(feature = "simulation")]
pub mod simulation;
#[cfg(not(feature = "simulation"))]
mod simulation;
mod state;
pub mod store;
#[cfg(test)]
mod test_kit;

pub use face::guard::{AcquiredLease, LeaseGuard, NotCommitted};
pub use face::provider::{LeaseProvider, LeaseProviderBuilder};
pub use options::{EngineOptions, HandOff, QueueOptions, WhenFull};
pub use store::LeaseStore;

/// For implementing the traits of this crate.
pub use distlock_api::async_trait;

/// Compiles the example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
