//! The users. Each requests a report from two servers at once, and without an answer tries another
//! server.

use std::time::Duration;

use axum::http::Method;
use distlock_examples::{Failure, HttpClient};
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::ACCOUNTS;

/// All users come within this time, in milliseconds.
const RUSH: u64 = 800;
/// After this many attempts without an answer the run fails.
const ATTEMPTS: usize = 20;
const PAUSE: Duration = Duration::from_millis(100);

/// A report that a user wants.
#[derive(Clone, Debug)]
pub(crate) struct ReportId {
    pub(crate) account: String,
    pub(crate) month: String,
}

impl ReportId {
    pub(crate) fn all(months: usize) -> Vec<Self> {
        let months = 1..=months;
        months
            .flat_map(|month| {
                ACCOUNTS.map(|account| Self { account: account.to_owned(), month: format!("{month:02}") })
            })
            .collect()
    }
}

/// The requests of all users. Dropping it drops them.
pub(crate) struct Users(JoinSet<Result<(), Failure>>);

impl Users {
    pub(crate) fn come(wanted: &[ReportId], servers: Vec<String>) -> Self {
        let (client, mut users) = (HttpClient::new(), JoinSet::new());
        for report in wanted {
            let first = fastrand::usize(..servers.len());
            let come = Duration::from_millis(fastrand::u64(..RUSH));
            for click in 0..2 {
                let (client, servers, report) = (client.clone(), servers.clone(), report.clone());
                users.spawn(async move {
                    sleep(come).await;
                    for attempt in 0..ATTEMPTS {
                        let server = &servers[(first + click + attempt) % servers.len()];
                        let uri = format!("{server}/reports/{}/{}", report.account, report.month);
                        match client.call(Method::POST, &uri, String::new()).await {
                            Ok(answer) if answer.status().is_success() => return Ok(()),
                            Ok(_) | Err(_) => sleep(PAUSE).await,
                        }
                    }
                    Err(format!("no server returns the report of {} for {}", report.account, report.month).into())
                });
            }
        }
        Self(users)
    }

    pub(crate) fn are_served(&self) -> bool {
        self.0.is_empty()
    }

    /// Waits for the answer to one of them.
    pub(crate) async fn next(&mut self) -> Result<(), Failure> {
        self.0.join_next().await.ok_or("all users are served")??
    }
}
