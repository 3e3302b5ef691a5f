//! The bank: it charges whatever it is sent, and keeps a ledger.

use std::collections::BTreeMap;
use std::future::pending;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::routing::get;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::sleep;

/// How long a charge takes.
const CHARGE: Duration = Duration::from_millis(2);

/// The receipts of each payment.
pub(crate) type Ledger = BTreeMap<String, Vec<String>>;

#[derive(Clone)]
pub(crate) struct Bank {
    state: Arc<Mutex<BankState>>,
    hanging: UnboundedSender<String>,
}

#[derive(Default)]
struct BankState {
    ledger: Ledger,
    charges: usize,
    found: usize,
    hang_at: usize,
}

impl Bank {
    /// Opens the bank. One charge is not answered. The name of the replica that waits for it comes
    /// through the receiver.
    pub(crate) fn open(hang_at: usize) -> (Self, UnboundedReceiver<String>) {
        let (hanging, receiver) = unbounded_channel();
        let state = BankState { hang_at, ..BankState::default() };
        (Self { state: Arc::new(Mutex::new(state)), hanging }, receiver)
    }

    pub(crate) fn router(&self) -> Router {
        Router::new().route("/charges/{payment}", get(find).post(charge)).with_state(self.clone())
    }

    pub(crate) fn ledger(&self) -> Ledger {
        self.change(|state| state.ledger.clone())
    }

    /// How many charges were looked up and found.
    pub(crate) fn found(&self) -> usize {
        self.change(|state| state.found)
    }

    fn change<T>(&self, change: impl FnOnce(&mut BankState) -> T) -> T {
        change(&mut self.state.lock().expect("no code in here panics"))
    }
}

/// Charges a payment. The body is the name of the replica.
async fn charge(State(bank): State<Bank>, Path(payment): Path<String>, replica: String) -> String {
    sleep(CHARGE).await;
    let (receipt, hangs) = bank.change(|state| {
        state.charges += 1;
        let receipt = format!("receipt {}", state.charges);
        state.ledger.entry(payment).or_default().push(receipt.clone());
        (receipt, state.charges == state.hang_at)
    });
    if hangs {
        // An error means that the run is over.
        let _ = bank.hanging.send(replica);
        pending::<()>().await;
    }
    receipt
}

/// Returns the receipt of a payment that was charged.
async fn find(State(bank): State<Bank>, Path(payment): Path<String>) -> Result<String, StatusCode> {
    bank.change(|state| {
        let receipt = state.ledger.get(&payment).and_then(|receipts| receipts.first()).cloned();
        state.found += usize::from(receipt.is_some());
        receipt.ok_or(StatusCode::NOT_FOUND)
    })
}
