//! Services that are not HTTP.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use distlock_api::{LockKey, LockProvider, LockProviderExt};
use distlock_memory::MemoryProvider;
use distlock_tower::keyed::KeyOf;
use distlock_tower::{HeldLock, KeyRejection, KeySet, KeyedLockError, KeyedLockLayer, Reason, Refusal};
use tokio::time::{Instant, sleep};
use tower::{BoxError, Layer, ServiceBuilder, ServiceExt, service_fn};

struct Job {
    customer: &'static str,
    held: Option<HeldLock>,
    deadline: Option<Duration>,
}

fn job(customer: &'static str) -> Job {
    Job { customer, held: None, deadline: None }
}

struct ByCustomer;

impl KeyOf<Job> for ByCustomer {
    fn keys(&self, job: &Job) -> Result<Option<KeySet>, KeyRejection> {
        match job.customer {
            "none" => Ok(None),
            customer => Ok(Some(LockKey::new(customer)?.into())),
        }
    }

    fn deadline(&self, job: &Job) -> Option<Duration> {
        job.deadline
    }

    fn granted(&self, job: &mut Job, held: HeldLock) {
        job.held = Some(held);
    }

    fn class(&self) -> &str {
        "customer"
    }
}

fn layer(locks: &MemoryProvider) -> KeyedLockLayer<ByCustomer> {
    KeyedLockLayer::new::<Job>(locks.clone(), ByCustomer)
}

#[tokio::test(start_paused = true)]
async fn jobs_of_one_customer_run_one_after_the_other() {
    let locks = MemoryProvider::new();
    let inside = Arc::new(AtomicUsize::new(0));
    let service = layer(&locks).layer(service_fn(move |job: Job| {
        let inside = inside.clone();
        async move {
            let held = job.held.as_ref().expect("the layer has set it");
            assert_eq!(held.key().as_str(), job.customer);
            assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
            sleep(Duration::from_secs(1)).await;
            inside.fetch_sub(1, Ordering::SeqCst);
            Ok::<_, BoxError>(held.fencing_token())
        }
    }));
    let started = Instant::now();
    let jobs = (0..3).map(|_| service.clone().oneshot(job("a")));
    let tokens = futures_util::future::try_join_all(jobs).await.unwrap();
    assert!(tokens.is_sorted(), "{tokens:?}");
    assert_eq!((started.elapsed().as_secs(), locks.keys_in_use()), (3, 0));
}

#[tokio::test(start_paused = true)]
async fn errors_say_where_they_come_from() {
    let locks = MemoryProvider::new();
    let failing = layer(&locks).layer(service_fn(|_: Job| async { Err::<(), BoxError>("inner".into()) }));
    let error = failing.clone().oneshot(job("a")).await.unwrap_err();
    assert_eq!((error.to_string(), locks.keys_in_use()), ("inner".into(), 0));
    assert_eq!(error.into_inner().unwrap().to_string(), "inner");

    let reason =
        |result: Result<(), KeyedLockError<BoxError>>| result.unwrap_err().refusal().map(|refusal| refusal.reason());
    assert_eq!(reason(failing.clone().oneshot(job("")).await), Some(Reason::BadKey));
    assert_eq!(reason(failing.clone().oneshot(job("none")).await), None, "passes, and fails inside");

    let _held = locks.acquire("a").await.unwrap();
    let hurried = Job { deadline: Some(Duration::from_millis(10)), ..job("a") };
    let started = Instant::now();
    assert_eq!(reason(failing.oneshot(hurried).await), Some(Reason::Timeout));
    assert!(started.elapsed() < Duration::from_millis(100));
}

#[tokio::test(start_paused = true)]
async fn refusals_can_be_made_into_answers() {
    let locks = MemoryProvider::new();
    let _held = locks.acquire("a").await.unwrap();
    let service = ServiceBuilder::new()
        .map_result(|result: Result<String, BoxError>| match result {
            Err(error) => error.downcast::<Refusal>().map(|refusal| refusal.to_string()),
            answer => answer,
        })
        .map_err(KeyedLockError::into_boxed)
        .layer(layer(&locks).fail_fast())
        .service(service_fn(|_: Job| async { Ok::<_, BoxError>("done".to_owned()) }));
    assert_eq!(service.clone().oneshot(job("b")).await.unwrap(), "done");
    assert_eq!(service.oneshot(job("a")).await.unwrap(), Reason::Busy.to_string());
}

#[tokio::test(start_paused = true)]
async fn a_loss_and_the_maximum_hold_end_the_call() {
    let locks = MemoryProvider::new();
    let layer = layer(&locks).max_hold(Duration::from_secs(2));
    let endless = layer.layer(service_fn(|_: Job| std::future::pending::<Result<(), BoxError>>()));
    let lost = tokio::spawn(endless.clone().oneshot(job("a")));
    tokio::task::yield_now().await;
    locks.admin().unwrap().force_release(&LockKey::new("a").unwrap(), "a test").await.unwrap();
    assert_eq!(lost.await.unwrap().unwrap_err().refusal().unwrap().reason(), Reason::Lost);
    let error = endless.oneshot(job("a")).await.unwrap_err();
    assert_eq!(error.refusal().unwrap().reason(), Reason::HeldTooLong);
    assert_eq!(locks.keys_in_use(), 0);
}
