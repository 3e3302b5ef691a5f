//! Shared locks and permits of a `MemoryStore`, through its store interface and its administration.

use std::time::Duration;

use distlock_api::{
    ErrorKind, FencingToken, Holder, ListOptions, LockAdmin, LockEvent, LockEvents, LockKey, LockProviderExt, Loss,
    Mode,
};
use distlock_engine::LeaseStore;
use distlock_engine::store::{
    Attempt, Claim, EventStore, EventStream, ProviderId, Release, Renewal, Reply, Standing, StoreEvent, Ticket, Watch,
};
use distlock_memory::{MemoryStore, Operation};
use futures_util::{FutureExt, StreamExt, TryStreamExt};

use crate::kit::store::{claim, claim_of};

const TTL: Duration = Duration::from_secs(30);
const CLAIM_TTL: Duration = Duration::from_secs(1);
const TICKET: Ticket = Ticket::new(Duration::from_secs(15), CLAIM_TTL, 100);

async fn acquire(store: &MemoryStore, claim: &Claim, owner: &'static str) -> Reply {
    let attempt = Attempt::new(claim.clone(), TTL).with_ticket(TICKET).with_holder(Holder::new().with_owner(owner));
    store.try_acquire(&attempt).await.unwrap()
}

/// A store whose key `k` has two readers, of the owners `one` and `two`.
async fn two_readers() -> (MemoryStore, [Claim; 2]) {
    let store = MemoryStore::with_manual_clock();
    let readers = [claim("k"), claim("k")].map(|claim| claim.with_mode(Mode::Shared));
    for (reader, owner) in readers.iter().zip(["one", "two"]) {
        assert!(matches!(acquire(&store, reader, owner).await, Reply::Granted(_)));
    }
    (store, readers)
}

fn key() -> LockKey {
    LockKey::new("k").unwrap()
}

fn pushed(events: &mut EventStream) -> Vec<StoreEvent> {
    std::iter::from_fn(|| events.next().now_or_never().flatten()).map(Result::unwrap).collect()
}

fn seen(events: &mut LockEvents) -> Vec<LockEvent> {
    std::iter::from_fn(|| events.next().now_or_never().flatten()).map(Result::unwrap).collect()
}

#[tokio::test]
async fn c28_one_release_grants_to_several_and_each_is_told() {
    let store = MemoryStore::with_manual_clock();
    let (mine, other) = (ProviderId::random(), ProviderId::random());
    let [mut to_me, mut to_other] =
        [mine, other].map(|id| EventStore::subscribe(&store, &Watch::provider(id)).now_or_never().unwrap().unwrap());
    let (writer, mut events) = (claim("k"), LockAdmin::watch(&store).await.unwrap());
    assert!(matches!(acquire(&store, &writer, "w").await, Reply::Granted(_)));
    let readers = [mine, other].map(|id| claim_of(id, "k").with_mode(Mode::Shared));
    for reader in &readers {
        assert!(matches!(acquire(&store, reader, "r").await, Reply::Busy(_)));
    }
    drop((pushed(&mut to_me), seen(&mut events)));
    assert!(store.release(&Release::new(writer)).await.unwrap().is_released());
    assert_eq!(store.calls(Operation::Release), 1);
    for (events, (reader, token)) in [&mut to_me, &mut to_other].into_iter().zip(readers.iter().zip(2..)) {
        let [StoreEvent::Granted { id, grant, .. }] = &pushed(events)[..] else { panic!("one grant each") };
        assert_eq!((id, grant.token), (reader.id(), FencingToken::new(token)));
    }
    let modes = seen(&mut events).into_iter().map(|event| match event {
        LockEvent::Granted { mode, .. } => mode.to_string(),
        other => other.as_str().to_owned(),
    });
    assert_eq!(modes.collect::<Vec<_>>(), ["released", "shared", "shared"]);
}

#[tokio::test]
async fn a_release_beside_holders_frees_the_key_for_no_ticket() {
    let (store, readers) = two_readers().await;
    let mut events = EventStore::subscribe(&store, &Watch::provider(ProviderId::random())).await.unwrap();
    assert!(matches!(acquire(&store, &claim("k"), "w").await, Reply::Busy(_)));
    assert!(store.release(&Release::new(readers[0].clone())).await.unwrap().is_released());
    assert_eq!(pushed(&mut events), [], "the writer has a ticket, and another reader holds the key");
}

#[tokio::test]
async fn admin_shows_all_holders_and_finds_each_by_its_owner() {
    let (store, readers) = two_readers().await;
    let info = store.inspect(&key()).await.unwrap().unwrap();
    assert_eq!((info.id.as_ref(), info.owner.as_deref()), (Some(readers[0].id()), Some("one")));
    assert_eq!((info.mode(), info.token), (Mode::Shared, FencingToken::new(2)));
    let holders: Vec<_> =
        info.holders.iter().map(|holder| (&holder.id, holder.token.get(), holder.remaining)).collect();
    assert_eq!(holders, [(readers[0].id(), 1, TTL), (readers[1].id(), 2, TTL)]);
    for (owner, found) in [("one", 1), ("two", 1), ("three", 0)] {
        let list: Vec<_> = store.list(ListOptions::new().owner(owner)).try_collect().await.unwrap();
        assert_eq!(list.len(), found, "{owner}");
    }
    let exclusive = claim("e");
    assert!(matches!(acquire(&store, &exclusive, "one").await, Reply::Granted(_)));
    assert_eq!(store.inspect(exclusive.key()).await.unwrap().unwrap().holders, []);
    // Both locks of the owner, and nothing of the other reader.
    assert_eq!(store.release_owner("one", "test").await.unwrap(), 2);
    let info = store.inspect(&key()).await.unwrap().unwrap();
    assert_eq!((info.owner.as_deref(), info.holders.len()), (Some("two"), 1));
}

#[tokio::test]
async fn c22_one_of_several_holders_is_taken_away() {
    let (store, readers) = two_readers().await;
    let mut events = LockAdmin::watch(&store).await.unwrap();
    assert_eq!(store.force_release_holder(&key(), claim("k").id(), "test").await.unwrap(), None);
    let before = store.force_release_holder(&key(), readers[1].id(), "test").await.unwrap().unwrap();
    assert_eq!(before.holders.len(), 2);
    assert_eq!(seen(&mut events), [LockEvent::ForceReleased { key: key(), id: readers[1].id().clone() }]);
    let renew = async |reader: &Claim, token| {
        store.renew(&Renewal::lease(reader.clone(), FencingToken::new(token), TTL)).await.unwrap()
    };
    assert_eq!(renew(&readers[0], 1).await, Standing::Held { remaining: TTL });
    assert_eq!(renew(&readers[1], 2).await, Standing::Gone(Loss::ForceReleased));
    assert_eq!(store.history(&key()).await.unwrap()[0].id, Some(readers[1].id().clone()));
    assert!(store.force_release("k").is_some() && store.peek("k").is_none());
}

#[tokio::test]
async fn a_store_that_was_declared_without_modes_refuses_them() {
    let mut capabilities = MemoryStore::new().capabilities();
    (capabilities.shared, capabilities.permits) = (false, false);
    let store = MemoryStore::new().with_capabilities(capabilities);
    let provider = store.provider();
    for error in
        [provider.acquire("k").shared().await.unwrap_err(), provider.acquire("k").permits(1, 2).await.unwrap_err()]
    {
        assert_eq!(error.kind(), ErrorKind::Unsupported);
    }
    assert_eq!(store.calls(Operation::TryAcquire), 0);
}
