//! Acquisitions and providers, by their ids.

use std::any::Any;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use distlock_api::{AcquisitionId, FencingToken, LockKey, Mode};

use crate::simulation::random_bits;

/// One provider instance: the first half of all its acquisition ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ProviderId(u64);

impl ProviderId {
    /// Creates a random id.
    #[must_use]
    pub fn random() -> Self {
        // The lower half.
        Self(random_bits() as u64)
    }

    /// Creates the id of a new acquisition. It is a text of 25 letters and digits that begins with
    /// this provider's id and a hyphen, so that a store can filter its events by prefix. It is
    /// random for every acquisition, so that not even a cloned virtual machine uses one twice
    /// ([C7]).
    ///
    /// [C7]: distlock_api::contract#c7
    #[must_use]
    pub fn acquisition_id(self) -> AcquisitionId {
        let bits = random_bits();
        AcquisitionId::new(format!("{self}-{}{}", ShortId(bits as u64), ShortId((bits >> 64) as u64)))
    }
}

/// Writes eight letters and digits.
impl fmt::Display for ProviderId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        ShortId(self.0).fmt(f)
    }
}

/// The text of a random number: its last eight digits to the base 62, which are 47 bits. A store
/// writes ids with every request, so they are short. Letters and digits have no meaning in any
/// query language.
struct ShortId(u64);

impl ShortId {
    const DIGITS: &[u8] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
}

impl fmt::Display for ShortId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let base = Self::DIGITS.len() as u64;
        let (mut text, mut rest) = ([0; 8], self.0);
        for digit in &mut text {
            *digit = Self::DIGITS[(rest % base) as usize];
            rest /= base;
        }
        f.write_str(std::str::from_utf8(&text).expect("letters and digits"))
    }
}

/// One acquisition of one key, from its first attempt until it is settled. Clones are the same
/// claim.
#[derive(Clone)]
pub struct Claim {
    key: LockKey,
    id: AcquisitionId,
    mode: Mode,
    shared: Arc<Shared>,
}

struct Shared {
    /// What the store keeps.
    state: Slot,
    /// What an [`AcquireOp`](super::AcquireOp) keeps.
    op_state: Slot,
    /// See [`Used`]; [`UNKNOWN`], [`NONE`], or the token.
    used: AtomicU64,
}

/// A value of any one type, for the life of the claim.
#[derive(Default)]
struct Slot(OnceLock<Box<dyn Any + Send + Sync>>);

impl Slot {
    /// Returns the value, or `None` if it has another type.
    fn get_or_make<T: Any + Send + Sync>(&self, make: impl FnOnce() -> T) -> Option<&T> {
        self.0.get_or_init(|| Box::new(make())).downcast_ref()
    }
}

const UNKNOWN: u64 = u64::MAX;
const NONE: u64 = 0;

/// The tokens of its block that a claim has used, so that a release can give back the others: the
/// next grant of the key may then begin with the first one that no guard has had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Used {
    /// Not known: all may be used.
    Unknown,
    /// No guard has had the lease.
    None,
    /// The guards have had the tokens up to this one, and no guard will have another.
    UpTo(FencingToken),
}

impl Claim {
    /// Creates a claim. The engine creates claims; a store's own tests may, too.
    #[must_use]
    pub fn new(key: LockKey, id: AcquisitionId) -> Self {
        let shared = Shared { state: Slot::default(), op_state: Slot::default(), used: AtomicU64::new(UNKNOWN) };
        Self { key, id, mode: Mode::Exclusive, shared: Arc::new(shared) }
    }

    /// Sets how the claim holds the key. Defaults to [`Mode::Exclusive`]. The engine claims another
    /// mode only if the store declares [`shared`](super::StoreCapabilities::shared) or
    /// [`permits`](super::StoreCapabilities::permits).
    #[must_use]
    pub fn with_mode(mut self, mode: Mode) -> Self {
        self.mode = mode;
        self
    }

    /// Creates a claim that records the tokens that its guards have had.
    pub(crate) fn accounted(key: LockKey, id: AcquisitionId) -> Self {
        let claim = Self::new(key, id);
        claim.shared.used.store(NONE, Ordering::Relaxed);
        claim
    }

    /// Records that a guard is about to have this token.
    pub(crate) fn uses(&self, token: FencingToken) {
        self.shared.used.store(token.get(), Ordering::Release);
    }

    /// Returns the tokens that its guards have had, for a release or withdrawal. A store that
    /// grants blocks may grant the others again. [`Used::Unknown`] for claims that the engine has
    /// not created.
    #[must_use]
    pub fn used(&self) -> Used {
        match self.shared.used.load(Ordering::Acquire) {
            UNKNOWN => Used::Unknown,
            NONE => Used::None,
            token => Used::UpTo(FencingToken::new(token)),
        }
    }

    /// Returns the key.
    #[must_use]
    pub fn key(&self) -> &LockKey {
        &self.key
    }

    /// Returns the id.
    #[must_use]
    pub fn id(&self) -> &AcquisitionId {
        &self.id
    }

    /// Returns how the claim holds the key, or wants to hold it; the same for all its requests.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Returns what the store keeps for the claim's life, such as a database session. It is created
    /// on first use. It is dropped when the engine has settled the claim and the guard is gone, on
    /// any thread, with a runtime or without.
    ///
    /// For the store alone. What an operation brings is kept in [`op_state`](Self::op_state).
    ///
    /// # Panics
    /// If it is called with two different types for the same claim.
    #[track_caller]
    pub fn state<T: Any + Send + Sync>(&self, make: impl FnOnce() -> T) -> &T {
        self.shared.state.get_or_make(make).expect("the store keeps one type of state per claim")
    }

    /// Returns what the [`AcquireOp`](super::AcquireOp) of the claim's acquisition keeps for the
    /// claim's life, such as a document that it has read. It is created and dropped as
    /// [`state`](Self::state), and apart from it: the store and the operation need not know of each
    /// other.
    ///
    /// # Panics
    /// If it is called with two different types for the same claim.
    #[track_caller]
    pub fn op_state<T: Any + Send + Sync>(&self, make: impl FnOnce() -> T) -> &T {
        self.shared.op_state.get_or_make(make).expect("an operation keeps one type of state per claim")
    }
}

impl fmt::Debug for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Claim").field("key", &self.key).field("id", &self.id).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn the_store_and_an_operation_have_a_slot_each() {
        let claim = Claim::new(LockKey::new("key").unwrap(), ProviderId::random().acquisition_id());
        let clone = claim.clone();
        assert_eq!(claim.state(|| 1_u8), &1);
        assert_eq!(claim.op_state(|| "document"), &"document");
        assert_eq!((clone.state(|| 2_u8), clone.op_state(|| "another")), (&1, &"document"));
    }

    #[test]
    #[should_panic(expected = "an operation keeps one type of state per claim")]
    fn a_slot_has_one_type() {
        let claim = Claim::new(LockKey::new("key").unwrap(), ProviderId::random().acquisition_id());
        claim.op_state(|| 1_u8);
        claim.op_state(|| 1_u16);
    }

    #[test]
    fn c7_ids_are_short_and_begin_with_their_provider() {
        let provider = ProviderId::random();
        let ids: HashSet<String> = (0..1000).map(|_| provider.acquisition_id().to_string()).collect();
        assert_eq!(ids.len(), 1000);
        let halves = [9..17, 17..25].map(|half| ids.iter().map(|id| &id[half.clone()]).collect::<HashSet<_>>());
        assert!(halves[0].len() == 1000 && halves[1].len() == 1000 && halves[0].is_disjoint(&halves[1]));
        for id in &ids {
            let own = id.strip_prefix(&format!("{provider}-")).unwrap();
            assert_eq!((id.len(), own.len()), (25, 16), "{id}");
            assert!(own.bytes().all(|byte| byte.is_ascii_alphanumeric()), "{id}");
        }
        assert_eq!(
            [0, 61, 62, u64::MAX].map(|number| ShortId(number).to_string()),
            ["00000000", "z0000000", "01000000", "FYHA61aH"]
        );
    }
}
