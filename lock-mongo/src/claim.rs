//! The state that the store keeps for a claim between its requests.

use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex};

use distlock_engine::store::Claim;
use mongodb::ClientSession;
use mongodb::bson::RawDocumentBuf;

/// The session that numbers the writes of a claim (R11).
pub(crate) type Session = Arc<tokio::sync::Mutex<Option<ClientSession>>>;

/// The state of a claim.
#[derive(Default)]
pub(crate) struct ClaimState {
    pub(crate) session: Session,
    /// Whether an attempt was sent before. Then only the full path shows what the claim holds.
    pub(crate) attempted: AtomicBool,
    /// Whether there was no ticket and no other holder when the lease was granted.
    pub(crate) was_alone: AtomicBool,
    /// Whether a holder or a waiter of the key was not exclusive, by the last answer to an attempt.
    pub(crate) met_modes: AtomicBool,
    /// Whether a release was sent before. Then only the full path shows what the claim holds.
    pub(crate) release_sent: AtomicBool,
    /// From when on a batch that was not answered can no longer take effect (R24). In milliseconds
    /// since the epoch by the server's clock; 0 if there is no such batch.
    pub(crate) batch_ends: AtomicU64,
    /// Whether a batch has to return the document.
    pub(crate) wants_document: AtomicBool,
    /// The document that the last grant returned, if it was requested.
    pub(crate) document: Mutex<Option<RawDocumentBuf>>,
}

pub(crate) fn claim_state(claim: &Claim) -> &ClaimState {
    claim.state(ClaimState::default)
}
