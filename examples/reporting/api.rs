//! The external reporting API: a program of somebody else's, which can make one report per account
//! at a time, and notices if that is not respected.

use std::collections::BTreeMap;
use std::fmt;
use std::future::pending;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::extract::{Path, Query, State};
use axum::routing::{get, post};
use axum::{Json, Router};
use distlock_examples::{Failure, Orders, report, serve};
use serde::{Deserialize, Serialize};
use tokio::time::sleep;

use crate::{CALL, Report};

/// A call of the API that has ended, or that hangs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Call {
    pub(crate) server: String,
    pub(crate) account: String,
    month: String,
    /// For how long nobody had called for the account before.
    idle: Option<Duration>,
    pub(crate) outcome: Outcome,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Outcome {
    Made,
    Hangs,
    /// The caller has gone.
    BrokenOff,
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { server, account, month, .. } = self;
        write!(f, "{account} {month}  called by {server}")?;
        match (self.outcome, self.idle) {
            (Outcome::Hangs, _) => write!(f, ": the call HANGS"),
            (Outcome::BrokenOff, _) => write!(f, ": broken off"),
            (Outcome::Made, Some(idle)) => write!(f, ", {:.1} ms after the call before", idle.as_secs_f64() * 1000.0),
            (Outcome::Made, None) => Ok(()),
        }
    }
}

/// What the API has counted.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Tally {
    /// How often each report was made.
    pub(crate) made: BTreeMap<String, u64>,
    pub(crate) broken_off: u64,
    /// Calls that began while another one of the same account was not over.
    pub(crate) overlaps: u64,
    /// From the end of a call until the next one of the account.
    pub(crate) hand_overs: Vec<Duration>,
    /// The same, if the call before was broken off.
    pub(crate) recoveries: Vec<Duration>,
}

#[derive(Default)]
struct Desk {
    tally: Tally,
    accounts: BTreeMap<String, Account>,
    begun: usize,
    hang_after: usize,
}

#[derive(Default)]
struct Account {
    running: u64,
    /// When the last call ended, and whether it was broken off.
    ended: Option<(Instant, bool)>,
}

#[derive(Clone)]
struct Api(Arc<Mutex<Desk>>);

impl Api {
    fn change<T>(&self, change: impl FnOnce(&mut Desk) -> T) -> T {
        change(&mut self.0.lock().expect("no code in here panics"))
    }

    /// A call begins; whether it will hang.
    fn begin(&self, mut call: Call) -> (Running, bool) {
        let hangs = self.change(|desk| {
            let account = desk.accounts.entry(call.account.clone()).or_default();
            desk.tally.overlaps += u64::from(account.running > 0);
            account.running += 1;
            if let Some((ended, broken_off)) = account.ended.take() {
                let idle = ended.elapsed();
                call.idle = Some(idle);
                if broken_off { &mut desk.tally.recoveries } else { &mut desk.tally.hand_overs }.push(idle);
            }
            desk.begun += 1;
            desk.begun == desk.hang_after + 1
        });
        (Running { api: self.clone(), call }, hangs)
    }
}

/// A call that is not over. Its server drops it when the caller goes.
struct Running {
    api: Api,
    call: Call,
}

impl Drop for Running {
    fn drop(&mut self) {
        let Self { api, call } = self;
        let made = call.outcome == Outcome::Made;
        api.change(|desk| {
            if let Some(account) = desk.accounts.get_mut(&call.account) {
                account.running -= 1;
                account.ended = Some((Instant::now(), !made));
            }
            match made {
                true => *desk.tally.made.entry(format!("{}/{}", call.account, call.month)).or_default() += 1,
                false => desk.tally.broken_off += 1,
            }
        });
        report(&Report::Call(call.clone()));
    }
}

#[derive(Deserialize)]
struct Caller {
    server: String,
}

async fn make(
    State(api): State<Api>,
    Path((account, month)): Path<(String, String)>,
    Query(caller): Query<Caller>,
) -> String {
    let text = format!("the report of {account} for {month}");
    let call = Call { server: caller.server, account, month, idle: None, outcome: Outcome::BrokenOff };
    let (mut running, hangs) = api.begin(call);
    if hangs {
        report(&Report::Call(Call { outcome: Outcome::Hangs, ..running.call.clone() }));
        pending::<()>().await;
    }
    sleep(CALL).await;
    running.call.outcome = Outcome::Made;
    text
}

async fn tally(State(api): State<Api>) -> Json<Tally> {
    Json(api.change(|desk| desk.tally.clone()))
}

/// The API as a process of its own, until it is told to stop.
pub(crate) async fn play(hang_after: usize, mut orders: Orders) -> Result<(), Failure> {
    let api = Api(Arc::new(Mutex::new(Desk { hang_after, ..Desk::default() })));
    let router = Router::new().route("/accounts/{account}/reports/{month}", post(make)).route("/tally", get(tally));
    let (address, _) = serve(router.with_state(api), 0).await?;
    report(&Report::Listening(address));
    orders.end().await;
    Ok(())
}
