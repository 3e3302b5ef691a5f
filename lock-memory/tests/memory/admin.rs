//! Administration of both faces, and through a namespace.

use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex};
use std::task::{Context, Wake};
use std::time::Duration;

use distlock_api::{
    ErrorKind, FencingToken, Holder, ListOptions, LockAdmin, LockEvent, LockEvents, LockFilter, LockKey, LockProvider,
    LockProviderExt, Loss, Namespaced,
};
use distlock_engine::store::{Attempt, Claim, LeaseStore, ProviderId, Release, Reply};
use distlock_memory::{MemoryProvider, MemoryStore, Operation};
use futures_util::{FutureExt, StreamExt, TryStreamExt};

fn key(text: &str) -> LockKey {
    LockKey::new(text).unwrap()
}

fn claim(text: &str) -> Claim {
    Claim::new(key(text), ProviderId::random().acquisition_id())
}

/// Returns the events that can be received now.
fn received(events: &mut LockEvents) -> Vec<(String, &'static str)> {
    let mut received = Vec::new();
    while let Some(Some(event)) = events.next().now_or_never() {
        let event = event.unwrap();
        received.push((event.key().map(ToString::to_string).unwrap_or_default(), event.as_str()));
    }
    received
}

fn expected<const N: usize>(events: [(&str, &'static str); N]) -> Vec<(String, &'static str)> {
    events.map(|(key, event)| (key.to_owned(), event)).to_vec()
}

async fn names(admin: &dyn LockAdmin, options: ListOptions) -> Vec<String> {
    admin.list(options).map_ok(|info| info.key.to_string()).try_collect().await.unwrap()
}

async fn granted(store: &MemoryStore, claim: &Claim) {
    let attempt = Attempt::new(claim.clone(), Duration::from_secs(1));
    assert!(matches!(store.try_acquire(&attempt).await.unwrap(), Reply::Granted(_)));
}

#[tokio::test]
async fn a_store_reports_an_expiry_when_the_lock_is_taken_over() {
    let store = MemoryStore::with_manual_clock();
    let mut events = LockAdmin::watch(&store).await.unwrap();
    let (a, b) = (claim("k"), claim("k"));
    granted(&store, &a).await;
    granted(&store, &a).await;
    store.advance(Duration::from_secs(1));
    assert_eq!(
        received(&mut events),
        expected([("k", "granted")]),
        "nothing happens at the store when a lease expires"
    );
    granted(&store, &b).await;
    let release = Release::new(b.clone());
    for _ in 0..2 {
        assert!(store.release(&release).await.unwrap().is_released());
    }
    assert_eq!(received(&mut events), expected([("k", "expired"), ("k", "granted"), ("k", "released")]));
    granted(&store, &a).await;
    store.purge("k");
    assert_eq!(received(&mut events), expected([("k", "granted"), ("k", "expired")]));
    // The same acquisition again, after its own lease has expired, is a new grant.
    granted(&store, &a).await;
    store.advance(Duration::from_secs(1));
    granted(&store, &a).await;
    assert_eq!(received(&mut events), expected([("k", "granted"), ("k", "expired"), ("k", "granted")]));
}

#[tokio::test]
async fn a_watcher_that_is_late_gets_a_gap() {
    let store = MemoryStore::with_manual_clock();
    let mut events = LockAdmin::watch(&store).await.unwrap();
    for n in 0..400 {
        granted(&store, &claim(&n.to_string())).await;
    }
    assert_eq!(events.next().await.unwrap().unwrap(), LockEvent::Gap);
    let last = LockKey::new("399").unwrap();
    while events.next().await.unwrap().unwrap().key() != Some(&last) {}
    store.cut_watchers();
    assert!(events.next().now_or_never().unwrap().is_none());
}

#[tokio::test]
async fn c22_a_record_remembers_the_last_five() {
    let store = MemoryStore::with_manual_clock();
    for n in 0..7 {
        let a = claim("k");
        granted(&store, &a).await;
        store.advance(Duration::from_millis(1));
        LockAdmin::force_release(&store, a.key(), &n.to_string()).await.unwrap().unwrap();
    }
    let history = store.history(&key("k")).await.unwrap();
    assert_eq!(history.iter().map(|entry| &*entry.reason).collect::<Vec<_>>(), ["2", "3", "4", "5", "6"]);
    assert!(history.windows(2).all(|pair| pair[0].at < pair[1].at && pair[0].token < pair[1].token));
}

#[tokio::test]
async fn administration_can_be_made_to_fail() {
    let store = MemoryStore::new();
    store.fail_next(Operation::Administer, ErrorKind::Unavailable);
    let list: Vec<_> = store.list(ListOptions::new()).collect().await;
    assert_eq!(list.len(), 1, "the stream ends with its error");
    assert_eq!(list[0].as_ref().unwrap_err().kind(), ErrorKind::Unavailable);
    store.drop_reply_next(Operation::Administer);
    granted(&store, &claim("k")).await;
    assert!(store.release_matching(&LockFilter::new().prefix("k"), "test").await.unwrap_err().is_outcome_unknown());
    assert_eq!(store.release_matching(&LockFilter::new().prefix("k"), "test").await.unwrap(), 0);
}

#[tokio::test]
async fn a_minimum_hold_is_listed_and_not_released_by_owner() {
    let locks = MemoryProvider::new();
    let guard = locks.acquire("k").owner("me").hold_at_least(Duration::from_secs(60)).await.unwrap();
    assert!(guard.release().await.unwrap().is_released());
    assert_eq!(names(&locks, ListOptions::new()).await, ["k"]);
    assert!(names(&locks, ListOptions::new().owner("me")).await.is_empty());
    assert_eq!(locks.release_matching(&LockFilter::new().prefix("k"), "test").await.unwrap(), 0);
}

#[tokio::test]
async fn a_provider_describes_its_holders() {
    let locks = MemoryProvider::builder().owner("me").metadata("version", "1").build().unwrap();
    let plain = locks.acquire("plain").await.unwrap();
    let own = locks.acquire("own").owner("else").metadata("version", "2").await.unwrap();
    let info = locks.inspect(plain.key()).await.unwrap().unwrap();
    assert_eq!((info.owner.as_deref(), &*info.metadata["version"]), (Some("me"), "1"));
    let info = locks.inspect(own.key()).await.unwrap().unwrap();
    assert_eq!((info.owner.as_deref(), &*info.metadata["version"]), (Some("else"), "2"));
    assert_eq!(locks.release_owner("me", "test").await.unwrap(), 1);
    assert_eq!((plain.loss(), own.loss()), (Some(Loss::ForceReleased), None));
    let refused = MemoryProvider::builder().owner("o".repeat(300)).build().unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidOptions);
    let unsaid = MemoryProvider::new();
    let guard = unsaid.acquire("k").await.unwrap();
    let info = unsaid.inspect(guard.key()).await.unwrap().unwrap();
    assert_eq!(info.owner.as_deref(), Holder::this_process().owner.as_deref());
    assert_eq!(unsaid.keys_in_use(), 1);
}

#[tokio::test]
async fn c22_a_forced_release_is_in_the_history_before_any_event_of_it() {
    /// Looks as soon as it is woken, on the thread that wakes it.
    struct Looks(MemoryProvider, Mutex<Vec<FencingToken>>);
    impl Wake for Looks {
        fn wake(self: Arc<Self>) {
            let history = self.0.history(&key("k")).now_or_never().unwrap().unwrap();
            self.1.lock().unwrap().extend(history.iter().map(|entry| entry.token));
        }
    }
    let locks = MemoryProvider::new();
    let mut events = locks.watch().await.unwrap();
    let guard = locks.acquire("k").await.unwrap();
    assert_eq!(received(&mut events), expected([("k", "granted")]));
    let looks = Arc::new(Looks(locks.clone(), Mutex::default()));
    let waker = looks.clone().into();
    assert!(events.poll_next_unpin(&mut Context::from_waker(&waker)).is_pending());
    locks.force_release(guard.key(), "test").await.unwrap();
    assert_eq!(*looks.1.lock().unwrap(), [guard.fencing_token()]);
}

#[tokio::test]
async fn a_provider_reports_hand_overs_and_its_end() {
    let locks = MemoryProvider::new();
    let before = locks.acquire("before").await.unwrap();
    let mut events = locks.watch().await.unwrap();
    let first = locks.acquire("k").await.unwrap();
    let mut waiting = Box::pin(locks.acquire("k").into_future());
    assert!((&mut waiting).now_or_never().is_none());
    drop(first);
    let second = waiting.await.unwrap();
    assert_eq!(received(&mut events), expected([("k", "granted"), ("k", "released"), ("k", "granted")]));
    drop(before);
    locks.close().await.unwrap();
    assert_eq!(received(&mut events), expected([("before", "released"), ("k", "released")]));
    drop((second, locks));
    assert!(events.next().await.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_namespace_neither_shows_nor_touches_others() {
    let store = MemoryStore::new();
    let inner = store.provider();
    let [one, two] = ["one", "on"].map(|name| Namespaced::new(store.provider(), name).unwrap());
    let (one_admin, two_admin) = (one.admin().unwrap(), two.admin().unwrap());
    let mut events = one_admin.watch().await.unwrap();
    let mut guards = Vec::new();
    for text in ["b", "a", "c"] {
        guards.push(one.acquire(text).owner("me").await.unwrap());
    }
    let other = two.acquire("a").owner("me").await.unwrap();
    // Keys of the inner provider that look like the namespace.
    let _bare = [inner.acquire("one").await.unwrap(), inner.acquire("one/").await.unwrap()];

    for size in [1, 2, 100] {
        assert_eq!(names(one_admin, ListOptions::new().page_size(size)).await, ["a", "b", "c"]);
    }
    assert_eq!(names(one_admin, ListOptions::new().prefix("b").owner("me")).await, ["b"]);
    assert_eq!(names(two_admin, ListOptions::new()).await, ["a"]);
    let page = |after: &'static str| async move {
        let after = Some(key(after)).filter(|after| after.as_str() != "-");
        let limit = NonZeroUsize::new(2).unwrap();
        let page = one_admin.page(&LockFilter::new(), after.as_ref(), limit).await.unwrap();
        page.into_iter().map(|info| info.key.to_string()).collect::<Vec<_>>()
    };
    assert_eq!((page("-").await, page("a").await), (vec!["a".into(), "b".into()], vec!["b".into(), "c".into()]));

    let everything = one_admin.release_matching(&LockFilter::new(), "test").await.unwrap_err();
    assert_eq!(everything.kind(), ErrorKind::InvalidOptions, "a namespace is not a prefix that the caller gave");
    assert_eq!(one_admin.release_owner("me", "ended").await.unwrap(), 3);
    for guard in &guards {
        assert_eq!(guard.lost().await, Loss::ForceReleased);
    }
    assert_eq!(other.loss(), None);
    assert_eq!(one_admin.history(&key("a")).await.unwrap()[0].reason, "ended");
    assert!(two_admin.history(&key("a")).await.unwrap().is_empty());
    let mut received = received(&mut events);
    received[3..].sort();
    let granted = [("b", "granted"), ("a", "granted"), ("c", "granted")];
    let forced = ["a", "b", "c"].map(|key| (key, "force_released"));
    assert_eq!((&received[..3], &received[3..]), (&*expected(granted), &*expected(forced)));
}

/// A page that finds and sorts all keys again would take minutes here.
#[tokio::test]
async fn a_list_of_many_locks_finds_them_once() {
    const MANY: u32 = 100_000;

    let locks = MemoryProvider::new();
    let mut guards = Vec::new();
    for number in 0..MANY {
        guards.push(locks.acquire(format!("{number:06}")).await.unwrap());
    }
    let begun = std::time::Instant::now();
    let mut list = LockAdmin::list(&locks, ListOptions::new());
    let first = list.try_next().await.unwrap().unwrap();
    assert_eq!(first.key, key("000000"));
    // A lock that is released before its page is reached is not shown.
    drop(guards.pop());
    let mut shown = 1;
    while let Some(info) = list.try_next().await.unwrap() {
        assert_eq!(info.key.as_str(), format!("{shown:06}"));
        shown += 1;
    }
    assert_eq!(shown, MANY - 1);
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
}
