use distlock_api::AcquisitionId;
use distlock_memory::MemoryStore;

use super::*;

#[tokio::test(start_paused = true)]
async fn a_client_that_is_cut_off_has_no_request_under_way() {
    let memory = MemoryStore::new();
    let store = DisturbedStore::new(Arc::new(memory.clone()));
    let hangs = memory.hang_next(distlock_memory::Operation::TryAcquire);
    let claim = || Claim::new(LockKey::new("k").unwrap(), AcquisitionId::new("a-1"));
    let request = tokio::spawn({
        let (store, attempt) = (store.clone(), Attempt::new(claim(), Duration::from_secs(9)));
        async move { store.try_acquire(&attempt).await }
    });
    sleep(Duration::from_millis(1)).await;
    let mut cut_off = pin!(store.cut_off());
    assert!(timeout(Duration::from_secs(1), &mut cut_off).await.is_err(), "a request is under way");
    hangs.proceed();
    cut_off.await.unwrap();
    assert!(memory.peek("k").is_some(), "it has been carried out");
    assert!(request.await.unwrap().unwrap_err().is_outcome_unknown(), "its reply is lost");
    let late = store.try_acquire(&Attempt::new(claim(), Duration::from_secs(9))).await;
    assert!(late.unwrap_err().is_outcome_unknown());
    assert_eq!(memory.calls(distlock_memory::Operation::TryAcquire), 1);
}
