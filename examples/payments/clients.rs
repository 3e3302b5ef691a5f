//! The clients: each sends one payment, again and again until it has an answer.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::http::{Request, StatusCode};
use distlock_examples::{Failure, HttpClient};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::TIMES;

/// How many payments are under way at once.
const AT_ONCE: usize = 16;
/// Before another try.
const PAUSE: Duration = Duration::from_millis(50);

/// The receipts that the clients of each payment got.
pub(crate) type Receipts = BTreeMap<String, BTreeSet<String>>;

struct Answer {
    payment: String,
    receipt: String,
    replayed: bool,
}

pub(crate) struct Clients {
    tasks: JoinSet<Result<Answer, Failure>>,
    receipts: Receipts,
    answers: usize,
    replayed: usize,
}

impl Clients {
    pub(crate) fn start(payments: usize, replicas: Vec<String>) -> Self {
        let (client, replicas) = (HttpClient::new(), Arc::<[String]>::from(replicas));
        let turns = Arc::new(Semaphore::new(AT_ONCE * TIMES));
        let mut tasks = JoinSet::new();
        for payment in 0..payments {
            for time in 0..TIMES {
                let (client, replicas, turns) = (client.clone(), replicas.clone(), turns.clone());
                tasks.spawn(async move {
                    let _turn = turns.acquire_owned().await?;
                    pay(&client, &replicas, format!("p-{payment}"), payment + time).await
                });
            }
        }
        Self { tasks, receipts: Receipts::new(), answers: 0, replayed: 0 }
    }

    /// Waits for the next answer. Returns `false` when all clients have theirs.
    pub(crate) async fn next(&mut self) -> Result<bool, Failure> {
        let Some(answered) = self.tasks.join_next().await else { return Ok(false) };
        let Answer { payment, receipt, replayed } = answered??;
        self.receipts.entry(payment).or_default().insert(receipt);
        self.answers += 1;
        self.replayed += usize::from(replayed);
        Ok(true)
    }

    pub(crate) fn are_served(&self) -> bool {
        self.tasks.is_empty()
    }

    pub(crate) fn receipts(&self) -> &Receipts {
        &self.receipts
    }

    pub(crate) fn answers(&self) -> usize {
        self.answers
    }

    /// How many answers were those of an earlier request.
    pub(crate) fn replayed(&self) -> usize {
        self.replayed
    }
}

/// Sends a payment to one replica after the other until there is an answer.
async fn pay(client: &HttpClient, replicas: &[String], payment: String, mut replica: usize) -> Result<Answer, Failure> {
    loop {
        let uri = format!("{}/payments", replicas[replica % replicas.len()]);
        let request = Request::post(uri).header("idempotency-key", format!("\"{payment}\"")).body(())?;
        match client.send(request.into_parts().0, Bytes::from(payment.clone())).await {
            Ok(response) if response.status() == StatusCode::CREATED => {
                let receipt = String::from_utf8_lossy(response.body()).into_owned();
                let replayed = response.headers().contains_key("idempotent-replayed");
                return Ok(Answer { payment, receipt, replayed });
            }
            // Still under way, or the replica is in trouble: the same key can be sent again.
            Ok(response) if response.status() == StatusCode::CONFLICT || response.status().is_server_error() => {}
            Ok(response) => return Err(format!("{payment} was answered with {}", response.status()).into()),
            // The replica is dead, and perhaps has died with this payment in its hands.
            Err(_) => {}
        }
        replica += 1;
        sleep(PAUSE).await;
    }
}
