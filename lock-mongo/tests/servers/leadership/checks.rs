//! The checks.

use std::convert::Infallible;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use distlock_api::{FencingToken, LockKey, LockProvider};
use distlock_recipes::lead::{LeadExt, LeadHealth, LeadStatus, Led};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::fleet::{Fleet, key};

/// Of leases whose end no check waits for.
const LONG: Duration = Duration::from_secs(40);
/// Far less than [`LONG`].
const SOON: Duration = Duration::from_secs(10);

/// Runs a candidate that leads until it is stopped or aborted.
fn candidate(locks: &Arc<dyn LockProvider>, key: &LockKey, name: &str) -> Running {
    let (locks, key, name) = (Arc::clone(locks), key.clone(), name.to_owned());
    let (health, (stop, stopped)) = (LeadHealth::new(), oneshot::channel::<()>());
    let reports = health.clone();
    let task = tokio::spawn(async move {
        let lead = locks.lead(&key).owner(name).ttl(LONG).report_to(&reports).until(stopped);
        lead.run(async |_| pending::<Result<(), Infallible>>().await).await.expect("no error ends it")
    });
    Running { health, stop, task }
}

struct Running {
    health: LeadHealth,
    stop: oneshot::Sender<()>,
    task: JoinHandle<Led<()>>,
}

impl Running {
    async fn leads(&mut self) -> FencingToken {
        leads(&mut self.health).await
    }

    async fn resigns(self) {
        self.stop.send(()).expect("it runs");
        assert_eq!(self.task.await.expect("no panic"), Led::Stopped);
        assert_eq!(self.health.get(), LeadStatus::Idle);
    }
}

async fn leads(health: &mut LeadHealth) -> FencingToken {
    loop {
        if let LeadStatus::Leading { term } = health.get() {
            return term;
        }
        timeout(SOON, health.changed()).await.expect("a change of the status");
    }
}

pub(crate) async fn l5_errors_of_the_store(fleet: Fleet) {
    let (key, mut health) = (key(), LeadHealth::new());
    let second = Duration::from_secs(1);
    let lead = fleet.broken.lead(&key).round(second).backoff(second / 20, second / 10).report_to(&health);
    let (stop, stopped) = oneshot::channel::<()>();
    let candidate = lead.until(stopped).run(async |_| Ok::<_, Infallible>(()));
    let check = async {
        let failing = async |health: &mut LeadHealth| loop {
            if let LeadStatus::Failing { since, error } = health.get() {
                assert!(!error.is_empty());
                return since;
            }
            timeout(SOON, health.changed()).await.expect("a change of the status");
        };
        let since = failing(&mut health).await;
        // It is one failure, however often it campaigns again.
        sleep(second * 3).await;
        assert_eq!(failing(&mut health).await, since);
        stop.send(()).expect("it runs");
    };
    let (led, ()) = tokio::join!(candidate, check);
    assert_eq!(led.expect("no error ends it"), Led::Stopped);
    assert_eq!(health.get(), LeadStatus::Idle);
}

pub(crate) async fn l8_observation(fleet: Fleet) {
    let key = key();
    let mut observer = fleet.b.observe(&key).expect("administration");
    assert_eq!(observer.changed().await.expect("an answer"), None);
    let mut seen = Vec::new();
    let names = ["a", "b", "c", "d", "e", "f"];
    // A leader that has one token follows one that gives most of its block back.
    for (name, locks) in names.into_iter().zip([&fleet.a, &fleet.single].into_iter().cycle()) {
        let mut running = candidate(locks, &key, name);
        let term = running.leads().await;
        running.resigns().await;
        let leader = timeout(SOON, observer.changed()).await.expect("a change").expect("an answer");
        let leader = leader.expect("the term, although it is over");
        assert!(leader.last_term >= term, "{leader:?} of {term}");
        seen.push(leader.owner.expect("a name"));
        assert_eq!(timeout(SOON, observer.changed()).await.expect("a change").expect("an answer"), None);
    }
    assert_eq!(seen, names);
}
