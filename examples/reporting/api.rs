//! The external reporting API, as if from another company: it can make one report per account at a
//! time, and notices calls that overlap.

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
    /// How long there had been no call for the account before this one.
    idle: Option<Duration>,
    pub(crate) ending: Ending,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Ending {
    Made,
    Hangs,
    /// The caller went away.
    BrokenOff,
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { server, account, month, .. } = self;
        write!(f, "{account} {month}  called by {server}")?;
        match (self.ending, self.idle) {
            (Ending::Hangs, _) => write!(f, ": the call HANGS"),
            (Ending::BrokenOff, _) => write!(f, ": broken off"),
            (Ending::Made, Some(idle)) => write!(f, ", {:.1} ms after the call before", idle.as_secs_f64() * 1000.0),
            (Ending::Made, None) => Ok(()),
        }
    }
}

/// What the API has counted.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Tally {
    /// How often each report was made.
    pub(crate) made: BTreeMap<String, u64>,
    pub(crate) broken_off: u64,
    /// Calls that began before another call for the account had ended.
    pub(crate) overlaps: u64,
    /// From the end of a call to the next one for the account.
    pub(crate) hand_overs: Vec<Duration>,
    /// From a call that was broken off to the next one for the account.
    pub(crate) recoveries: Vec<Duration>,
}

#[derive(Default)]
struct ApiState {
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
struct Api(Arc<Mutex<ApiState>>);

impl Api {
    fn change<T>(&self, change: impl FnOnce(&mut ApiState) -> T) -> T {
        change(&mut self.0.lock().expect("no code in here panics"))
    }

    /// Begins a call. Returns whether it will hang.
    fn begin(&self, mut call: Call) -> (Running, bool) {
        let hangs = self.change(|state| {
            let account = state.accounts.entry(call.account.clone()).or_default();
            state.tally.overlaps += u64::from(account.running > 0);
            account.running += 1;
            if let Some((ended, broken_off)) = account.ended.take() {
                let idle = ended.elapsed();
                call.idle = Some(idle);
                if broken_off { &mut state.tally.recoveries } else { &mut state.tally.hand_overs }.push(idle);
            }
            state.begun += 1;
            state.begun == state.hang_after + 1
        });
        (Running { api: self.clone(), call }, hangs)
    }
}

/// A call that has not ended. It is dropped when the caller goes away.
struct Running {
    api: Api,
    call: Call,
}

impl Drop for Running {
    fn drop(&mut self) {
        let Self { api, call } = self;
        let made = call.ending == Ending::Made;
        api.change(|state| {
            if let Some(account) = state.accounts.get_mut(&call.account) {
                account.running -= 1;
                account.ended = Some((Instant::now(), !made));
            }
            match made {
                true => *state.tally.made.entry(format!("{}/{}", call.account, call.month)).or_default() += 1,
                false => state.tally.broken_off += 1,
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
    let call = Call { server: caller.server, account, month, idle: None, ending: Ending::BrokenOff };
    let (mut running, hangs) = api.begin(call);
    if hangs {
        report(&Report::Call(Call { ending: Ending::Hangs, ..running.call.clone() }));
        pending::<()>().await;
    }
    sleep(CALL).await;
    running.call.ending = Ending::Made;
    text
}

async fn tally(State(api): State<Api>) -> Json<Tally> {
    Json(api.change(|state| state.tally.clone()))
}

/// Runs the API in this process until the parent stops it.
pub(crate) async fn play(hang_after: usize, orders: Orders) -> Result<(), Failure> {
    let api = Api(Arc::new(Mutex::new(ApiState { hang_after, ..ApiState::default() })));
    let router = Router::new().route("/accounts/{account}/reports/{month}", post(make)).route("/tally", get(tally));
    let (address, _) = serve(router.with_state(api), 0).await?;
    report(&Report::Listening(address));
    orders.end().await;
    Ok(())
}
