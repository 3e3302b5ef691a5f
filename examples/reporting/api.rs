//! The external API, as if from another company: it makes one report per account at a time, and
//! notices calls that overlap.

use std::collections::BTreeMap;
use std::future::pending;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::{Path, Query, State};
use axum::routing::post;
use distlock_examples::Clock;
use tokio::sync::oneshot;
use tokio::time::sleep;

/// How long the API works on a report.
const CALL: Duration = Duration::from_millis(120);

#[derive(Clone)]
pub(crate) struct Api {
    record: Arc<Mutex<Record>>,
    clock: Clock,
}

#[derive(Default)]
pub(crate) struct Record {
    /// How often each report was made.
    pub(crate) made: BTreeMap<String, usize>,
    /// Of each account: the calls that have not ended, when the last one ended, and whether it was
    /// broken off.
    accounts: BTreeMap<String, (u64, Option<(Instant, bool)>)>,
    begun: usize,
    pub(crate) broken_off: usize,
    /// Calls that began before another call for the account had ended.
    pub(crate) overlaps: usize,
    /// From the end of a call to the next one for the account.
    pub(crate) hand_overs: Vec<Duration>,
    /// From a call that was broken off to the next one for the account.
    pub(crate) recoveries: Vec<Duration>,
    /// The call that hangs for ever, and where to say which server has made it.
    hangs: Option<(usize, oneshot::Sender<String>)>,
}

/// A call that has not ended. It is dropped when the caller goes away.
struct Call {
    api: Api,
    account: String,
    month: String,
    server: String,
    is_made: bool,
}

impl Api {
    /// An API whose call of this number hangs. The sender gets the server that has made it.
    pub(crate) fn new(clock: Clock, hangs: (usize, oneshot::Sender<String>)) -> Self {
        let record = Record { hangs: Some(hangs), ..Record::default() };
        Self { record: Arc::new(Mutex::new(record)), clock }
    }

    pub(crate) fn router(&self) -> Router {
        Router::new().route("/accounts/{account}/reports/{month}", post(make)).with_state(self.clone())
    }

    pub(crate) fn record(&self) -> MutexGuard<'_, Record> {
        self.record.lock().expect("no code in here panics")
    }

    /// Begins a call. Returns whether it will hang.
    fn begin(&self, call: &Call) -> bool {
        let mut record = self.record();
        let account = record.accounts.entry(call.account.clone()).or_default();
        account.0 += 1;
        let (is_overlap, ended) = (account.0 > 1, account.1.take());
        record.overlaps += usize::from(is_overlap);
        if let Some((ended, broken_off)) = ended {
            let idle = ended.elapsed();
            if broken_off { &mut record.recoveries } else { &mut record.hand_overs }.push(idle);
        }
        record.begun += 1;
        let begun = record.begun;
        match record.hangs.take_if(|(number, _)| *number == begun) {
            Some((_, hangs)) => hangs.send(call.server.clone()).is_ok(),
            None => false,
        }
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        let Self { api, account, month, server, is_made } = self;
        let mut record = api.record();
        if let Some((running, ended)) = record.accounts.get_mut(account) {
            *running -= 1;
            *ended = Some((Instant::now(), !*is_made));
        }
        match is_made {
            true => *record.made.entry(format!("{account}/{month}")).or_default() += 1,
            false => record.broken_off += 1,
        }
        let how = if *is_made { "" } else { ": broken off" };
        api.clock.say(&format!("{account} {month}  called by {server}{how}"));
    }
}

async fn make(
    State(api): State<Api>,
    Path((account, month)): Path<(String, String)>,
    Query(mut caller): Query<BTreeMap<String, String>>,
) -> String {
    let text = format!("the report of {account} for {month}");
    let server = caller.remove("server").unwrap_or_default();
    let mut call = Call { api: api.clone(), account, month, server, is_made: false };
    if api.begin(&call) {
        api.clock.say(&format!("{} {}  called by {}: the call HANGS", call.account, call.month, call.server));
        pending::<()>().await;
    }
    sleep(CALL).await;
    call.is_made = true;
    text
}
