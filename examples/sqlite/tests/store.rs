//! What the suite cannot see: this store's clock across a restart of the machine, its errors when
//! the file cannot be used, and how many steps many locks take.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use distlock_api::{
    ErrorKind, FencingToken, LockAdmin, LockKey, LockProvider, LockProviderExt, Loss, ReleaseOutcome, Result,
    async_trait,
};
use distlock_conformance::fetch;
use distlock_engine::store::{
    Attempt, BatchStore, Claim, ProviderId, Release, Renewal, Reply, Standing, StoreCapabilities, StoreExtras, Ticket,
};
use distlock_engine::{LeaseProvider, LeaseStore};
use distlock_example_sqlite::SqliteStore;
use futures_util::future::join_all;
use rusqlite::{Connection, TransactionBehavior};

const LONG: Duration = Duration::from_secs(60);

/// A file in a folder that is removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        let folder = fetch::memory_dir().map_or_else(std::env::temp_dir, Path::to_path_buf);
        let path = folder.join(format!("distlock-sqlite-{:016x}", fastrand::u64(..)));
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn file(&self) -> PathBuf {
        self.0.join("locks")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn key() -> LockKey {
    LockKey::new("orders/4711").unwrap()
}

fn claim() -> Claim {
    Claim::new(key(), ProviderId::random().acquisition_id())
}

async fn token(store: &SqliteStore, attempt: &Attempt) -> Option<u64> {
    match store.try_acquire(attempt).await.unwrap() {
        Reply::Granted(grant) => Some(grant.token.get()),
        _ => None,
    }
}

/// Counts the calls that acquire.
#[derive(Debug)]
struct Counted(SqliteStore, AtomicUsize);

#[async_trait]
impl LeaseStore for Counted {
    fn capabilities(&self) -> StoreCapabilities {
        self.0.capabilities()
    }

    async fn try_acquire(&self, attempt: &Attempt) -> Result<Reply> {
        self.1.fetch_add(1, Ordering::Relaxed);
        self.0.try_acquire(attempt).await
    }

    async fn renew(&self, renewal: &Renewal) -> Result<Standing> {
        self.0.renew(renewal).await
    }

    async fn release(&self, release: &Release) -> Result<ReleaseOutcome> {
        self.0.release(release).await
    }

    fn extras(&self) -> StoreExtras<'_> {
        let mut extras = self.0.extras();
        extras.batch = Some(self);
        extras
    }
}

#[async_trait]
impl BatchStore for Counted {
    fn acquire_batch(&self) -> NonZeroUsize {
        self.0.acquire_batch()
    }

    async fn try_acquire_many(&self, attempts: &[Attempt]) -> Vec<Result<Reply>> {
        self.1.fetch_add(1, Ordering::Relaxed);
        self.0.try_acquire_many(attempts).await
    }

    async fn release_many(&self, releases: &[Release]) -> Vec<Result<ReleaseOutcome>> {
        self.0.release_many(releases).await
    }

    async fn withdraw_many(&self, claims: &[Claim], timeout: Duration) -> Vec<Result<()>> {
        self.0.withdraw_many(claims, timeout).await
    }
}

/// A hundred acquisitions that start at once need a flush each if each is a step of its own.
#[tokio::test]
async fn acquisitions_of_different_keys_share_steps() {
    let folder = Folder::new();
    let store = Arc::new(Counted(SqliteStore::open(folder.file()).await.unwrap(), AtomicUsize::new(0)));
    let locks = LeaseProvider::new(store.clone());
    let held = join_all((0..100).map(|n| locks.acquire(format!("orders/{n}")).into_future())).await;
    let guards: Vec<_> = held.into_iter().map(Result::unwrap).collect();
    let calls = store.1.load(Ordering::Relaxed);
    assert!(calls <= 20, "{calls} calls for 100 locks");
    drop(guards);
    locks.close().await.unwrap();
}

#[tokio::test]
async fn a_lease_from_before_a_restart_of_the_machine_is_void_and_its_token_is_not() {
    let folder = Folder::new();
    let store = SqliteStore::open(folder.file()).await.unwrap();
    let first = token(&store, &Attempt::new(claim(), LONG)).await.unwrap();
    let waiter = Attempt::new(claim(), LONG).with_ticket(Ticket::new(LONG, LONG, 8));
    assert_eq!(token(&store, &waiter).await, None);
    drop(store);

    let reopened = SqliteStore::open(folder.file()).await.unwrap();
    assert_eq!(token(&reopened, &Attempt::new(claim(), LONG)).await, None, "the machine has not been restarted");
    // A clock that has started again is behind all that was written before.
    let earlier = format!("UPDATE lock SET written = written + {}", i64::MAX / 2);
    Connection::open(folder.file()).unwrap().execute_batch(&earlier).unwrap();
    let restarted = SqliteStore::open(folder.file()).await.unwrap();
    assert_eq!(restarted.inspect(&key()).await.unwrap(), None);
    assert!(token(&restarted, &Attempt::new(claim(), LONG)).await.unwrap() > first);
}

#[tokio::test]
async fn a_file_in_use_is_reported_in_time_and_nothing_has_happened() {
    let folder = Folder::new();
    let store = SqliteStore::open(folder.file()).await.unwrap();
    let attempt = Attempt::new(claim(), LONG).with_timeout(Duration::from_millis(50));
    let mut other = Connection::open(folder.file()).unwrap();
    let step = other.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
    let begun = Instant::now();
    // The second one waits for the first, and no longer than it may.
    let (first, second) = tokio::join!(store.try_acquire(&attempt), store.try_acquire(&attempt));
    assert!(begun.elapsed() < Duration::from_secs(20));
    for error in [first.unwrap_err(), second.unwrap_err()] {
        assert!(error.kind() == ErrorKind::Timeout && error.is_retryable(), "{error:?}");
    }
    drop(step);
    assert_eq!(store.inspect(&key()).await.unwrap(), None);
    assert!(token(&store, &attempt.with_timeout(LONG)).await.is_some());
}

#[tokio::test]
async fn a_release_is_remembered_although_another_claim_has_held_the_key_since() {
    let folder = Folder::new();
    let store = SqliteStore::open(folder.file()).await.unwrap();
    let [first, second] = [claim(), claim()];
    for claim in [&first, &second] {
        token(&store, &Attempt::new(claim.clone(), LONG)).await.unwrap();
        assert_eq!(store.release(&Release::new(claim.clone())).await.unwrap(), ReleaseOutcome::Released);
    }
    assert_eq!(store.release(&Release::new(first)).await.unwrap(), ReleaseOutcome::Released);
    assert_eq!(store.release(&Release::new(claim())).await.unwrap(), ReleaseOutcome::AlreadyLost);
}

#[tokio::test]
async fn a_step_whose_caller_leaves_is_finished_before_the_next_begins() {
    let folder = Folder::new();
    let store = SqliteStore::open(folder.file()).await.unwrap();
    let mut other = Connection::open(folder.file()).unwrap();
    let blocked = other.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
    let left = claim();
    let attempt = Attempt::new(left.clone(), LONG);
    let calling = store.try_acquire(&attempt);
    // Enough time to begin. Then the caller leaves.
    assert!(tokio::time::timeout(Duration::from_millis(50), calling).await.is_err());
    drop(blocked);
    assert_eq!(store.release(&Release::new(left)).await.unwrap(), ReleaseOutcome::Released, "the attempt came after");
    assert_eq!(store.inspect(&key()).await.unwrap(), None);
}

#[tokio::test]
async fn a_renewal_that_comes_after_the_expiry_revives_nothing() {
    let folder = Folder::new();
    let store = SqliteStore::open(folder.file()).await.unwrap();
    let late = claim();
    let token = token(&store, &Attempt::new(late.clone(), Duration::from_millis(50))).await.unwrap();
    let renewal = Renewal::lease(late.clone(), FencingToken::new(token), LONG);
    while store.inspect(&key()).await.unwrap().is_some() {
        tokio::task::yield_now().await;
    }
    // No other claim has taken the key.
    assert_eq!(store.renew(&renewal).await.unwrap(), Standing::Gone(Loss::Gone));
    assert_eq!(store.inspect(&key()).await.unwrap(), None);
    assert_eq!(store.release(&Release::new(late)).await.unwrap(), ReleaseOutcome::AlreadyLost);
}

#[tokio::test]
async fn a_renewal_that_waits_for_the_file_beyond_the_expiry_revives_nothing() {
    let folder = Folder::new();
    let store = SqliteStore::open(folder.file()).await.unwrap();
    let late = claim();
    let ttl = Duration::from_millis(300);
    let token = token(&store, &Attempt::new(late.clone(), ttl)).await.unwrap();
    let renewal = Renewal::lease(late, FencingToken::new(token), LONG);
    let mut other = Connection::open(folder.file()).unwrap();
    let blocked = other.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
    let unblock = async {
        tokio::time::sleep(ttl).await;
        drop(blocked);
    };
    let (renewed, ()) = tokio::join!(store.renew(&renewal), unblock);
    assert_eq!(renewed.unwrap(), Standing::Gone(Loss::Gone));
}

#[tokio::test]
async fn a_withdrawn_claim_may_attempt_again() {
    let folder = Folder::new();
    let store = SqliteStore::open(folder.file()).await.unwrap();
    let claim = claim();
    let mut tokens = Vec::new();
    for _ in 0..2 {
        tokens.push(token(&store, &Attempt::new(claim.clone(), LONG)).await.unwrap());
        store.withdraw(&claim, LONG).await.unwrap();
    }
    assert!(tokens[0] < tokens[1], "{tokens:?}");
}

/// And no other request of its batch.
#[tokio::test]
async fn a_record_that_cannot_be_read_fails_its_own_request() {
    let folder = Folder::new();
    let store = SqliteStore::open(folder.file()).await.unwrap();
    let other = Connection::open(folder.file()).unwrap();
    for garbled in ["'{\"holders\": 7}'", "'no record'", "''", "NULL, token = -7"] {
        token(&store, &Attempt::new(claim(), LONG)).await;
        other
            .execute(&format!("UPDATE lock SET record = {garbled} WHERE key = ?1"), [key().as_str().as_bytes()])
            .unwrap();
        let free = Claim::new(LockKey::new(format!("free {garbled}")).unwrap(), ProviderId::random().acquisition_id());
        let attempts = [claim(), free].map(|claim| Attempt::new(claim, LONG));
        let [bad, good] = store.try_acquire_many(&attempts).await.try_into().unwrap();
        assert_eq!(bad.unwrap_err().kind(), ErrorKind::Corrupt, "{garbled}");
        assert!(matches!(good, Ok(Reply::Granted(_))), "{garbled}: {good:?}");
        other.execute("DELETE FROM lock", []).unwrap();
    }
}

#[tokio::test]
async fn a_file_that_is_no_database_is_refused_without_a_panic() {
    let folder = Folder::new();
    std::fs::write(folder.file(), "a text that is long enough to be looked at ".repeat(40)).unwrap();
    let error = SqliteStore::open(folder.file()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error:?}");
    let error = SqliteStore::open(folder.0.join("nowhere/locks")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
}
