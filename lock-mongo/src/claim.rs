//! What the store keeps for a claim, between its requests.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

use distlock_engine::store::Claim;
use mongodb::ClientSession;
use mongodb::bson::RawDocumentBuf;

/// The session that numbers the writes of a claim (R11).
pub(crate) type Session = Arc<tokio::sync::Mutex<Option<ClientSession>>>;

/// What the store keeps for a claim.
#[derive(Default)]
pub(crate) struct ClaimState {
    pub(crate) session: Session,
    /// An attempt was made before: what the claim has by now, only the long way tells.
    pub(crate) attempted: AtomicBool,
    /// No ticket was waiting when the lease was granted.
    pub(crate) alone: AtomicBool,
    /// It has been given up before: what it has by now, only the long way tells.
    pub(crate) given_up: AtomicBool,
    /// The document that the last grant returned, if it was requested.
    pub(crate) document: Mutex<Option<RawDocumentBuf>>,
}

pub(crate) fn claim_state(claim: &Claim) -> &ClaimState {
    claim.state(ClaimState::default)
}
