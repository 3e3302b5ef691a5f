//! A primary that steps down, and one that accepts no writes for a while.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use distlock_conformance::{Fault, FixtureError};
use mongodb::bson::{Document, doc};

use super::super::set::Cluster;

pub(super) fn all(cluster: &Arc<Cluster>) -> [Arc<dyn Fault>; 2] {
    [
        Arc::new(StepDown { cluster: Arc::clone(cluster), running: Mutex::default() }),
        Arc::new(StalledDisk { cluster: Arc::clone(cluster), running: Mutex::default() }),
    ]
}

struct StepDown {
    cluster: Arc<Cluster>,
    /// The number of the former primary, and its term.
    running: Mutex<Option<(usize, i64)>>,
}

#[async_trait]
impl Fault for StepDown {
    fn kind(&self) -> &'static str {
        "step-down"
    }

    async fn begin(&self) -> Result<(), FixtureError> {
        let primary = self.cluster.until_primary("a primary", |_| true).await?;
        let term = self.cluster.term(primary).await?;
        primary.admin(doc! { "replSetStepDown": 5, "secondaryCatchUpPeriodSecs": 2, "force": true }).await?;
        *self.running.lock().expect("not poisoned") = Some((primary.number, term));
        Ok(())
    }

    async fn end(&self) -> Result<String, FixtureError> {
        let running = self.running.lock().expect("not poisoned").take();
        let (number, before) = running.ok_or("it was not begun")?;
        let next = self.cluster.until_primary("a primary after a step-down", |_| true).await?;
        let term = self.cluster.term(next).await?;
        if term <= before {
            return Err(format!("member {number} stepped down in term {before}, and the term is {term}").into());
        }
        Ok(format!("member {number} stepped down, member {} took over in term {term}", next.number))
    }
}

/// `fsyncLock`: writes wait, as for a disk that does not answer.
struct StalledDisk {
    cluster: Arc<Cluster>,
    running: Mutex<Option<usize>>,
}

#[async_trait]
impl Fault for StalledDisk {
    fn kind(&self) -> &'static str {
        "stalled-writes"
    }

    async fn begin(&self) -> Result<(), FixtureError> {
        let primary = self.cluster.until_primary("a primary", |_| true).await?;
        primary.admin(doc! { "fsync": 1, "lock": true }).await?;
        *self.running.lock().expect("not poisoned") = Some(primary.number);
        let probes = primary.client().database("distlock_arena").collection::<Document>("probes");
        let probe = probes.update_one(doc! { "_id": 0 }, doc! { "$inc": { "n": 1 } });
        let written = tokio::time::timeout(Duration::from_millis(500), async { probe.await }).await;
        if matches!(written, Ok(Ok(_))) { Err("a write was acknowledged".into()) } else { Ok(()) }
    }

    async fn end(&self) -> Result<String, FixtureError> {
        let running = self.running.lock().expect("not poisoned").take();
        let number = running.ok_or("it was not begun")?;
        let left = self.cluster.members[number].admin(doc! { "fsyncUnlock": 1 }).await?;
        match left.get_i64("lockCount") {
            Ok(0) => Ok(format!("no write was acknowledged by member {number}")),
            other => Err(format!("locks are left after the unlock: {other:?}").into()),
        }
    }
}
