//! Whether all was as promised: counts the API's record of its calls, and the reports in the
//! database.

use std::time::Duration;

use axum::http::Method;
use distlock_examples::{Checks, Database, Failure, HttpClient};
use distlock_mongo::mongodb::bson::{Document, doc};

use crate::SERVERS;
use crate::api::Tally;
use crate::users::ReportId;

pub(crate) struct Counted {
    tally: Tally,
    made_twice: u64,
    missing: usize,
    stored: u64,
    stored_twice: u64,
}

/// Queries the API and the database.
pub(crate) async fn count(api: &str, database: &Database, wanted: &[ReportId]) -> Result<Counted, Failure> {
    let answer = HttpClient::new().call(Method::GET, &format!("{api}/tally"), String::new()).await;
    let answer = answer.map_err(|_| "the API does not answer")?;
    let tally: Tally = serde_json::from_slice(answer.body())?;

    let client = Database::client(database.uri()).await?;
    let reports = client.database(database.name()).collection::<Document>("reports");
    let (mut missing, mut stored_twice) = (0, 0);
    for ReportId { account, month } in wanted {
        match reports.count_documents(doc! { "account": account, "month": month }).await? {
            0 => missing += 1,
            copies => stored_twice += copies - 1,
        }
    }
    let stored = reports.count_documents(doc! {}).await?;
    client.shutdown().await;
    let made_twice = tally.made.values().map(|times| times - 1).sum();
    Ok(Counted { tally, made_twice, missing, stored, stored_twice })
}

impl Counted {
    pub(crate) fn show(&self, lease: Duration) {
        let Tally { made, broken_off, overlaps, hand_overs, recoveries } = &self.tally;
        let made: u64 = made.values().sum();
        println!("  API          {made} reports made, {broken_off} call broken off");
        println!("  overlaps     {overlaps}");
        println!("  made twice   {}", self.made_twice);
        println!("  database     {} reports, {} of them twice", self.stored, self.stored_twice);
        println!("  missing      {}", self.missing);
        println!(
            "  hand-over    {} (median, from call to call, which includes storing the report)",
            millis(median(hand_overs))
        );
        println!(
            "  recovery     {} after the kill, with leases of {}",
            millis(longest(recoveries)),
            millis(Some(lease))
        );
    }

    /// Checks the promises.
    pub(crate) fn check(&self, wished: usize, lease: Duration, is_complete: bool) -> Checks {
        let Tally { made, overlaps, broken_off, recoveries, .. } = &self.tally;
        let mut checks = Checks::new(is_complete);
        checks.always(*overlaps == 0, format!("{overlaps} calls overlapped"));
        checks.always(self.made_twice == 0, format!("{} reports were made twice", self.made_twice));
        checks.always(self.stored_twice == 0, format!("{} reports are stored twice", self.stored_twice));
        checks.at_the_end(self.missing == 0 && made.len() == wished, format!("{} reports are missing", self.missing));
        checks.at_the_end(*broken_off > 0, format!("none of the {} servers was killed in a call", SERVERS.len()));
        let recovery = longest(recoveries).unwrap_or(Duration::MAX);
        // How much later than its lease ends a dead server's account must have been served again.
        // Where longer leases are needed, everything takes longer.
        let grace = lease * 5 / 4;
        checks.at_the_end(recovery <= lease + grace, "the dead server's account was not served soon");
        checks
    }
}

fn median(times: &[Duration]) -> Option<Duration> {
    let mut times = times.to_vec();
    times.sort();
    times.get(times.len() / 2).copied()
}

fn longest(times: &[Duration]) -> Option<Duration> {
    times.iter().max().copied()
}

fn millis(time: Option<Duration>) -> String {
    time.map_or("–".to_owned(), |time| format!("{:.1} ms", time.as_secs_f64() * 1000.0))
}
