//! One of the two processes.

use std::time::{Duration, SystemTime};

use distlock_api::{LeaseOptions, LockProvider, LockProviderExt};
use distlock_examples::{Database, Failure, Orders, report};
use distlock_mongo::MongoProvider;
use serde::{Deserialize, Serialize};
use tokio::time::sleep;

use crate::{A, HOLD, KEY, KILLED_AFTER, ROUNDS};

/// The part of a child.
#[derive(Serialize, Deserialize)]
pub(crate) struct Part {
    pub(crate) name: String,
    pub(crate) mongodb: String,
    pub(crate) database: String,
    pub(crate) lease: Duration,
}

/// What a child reports. The times are from [`now`].
#[derive(Serialize, Deserialize)]
pub(crate) enum Report {
    /// Connected. It begins at an order.
    Ready,
    Waits {
        at: u64,
    },
    Holds {
        at: u64,
        token: u64,
    },
    Releases {
        at: u64,
    },
    /// In the middle of its last hold. It would continue if it were not killed.
    WouldHold,
}

/// Microseconds since 1970 by the machine's clock, which both processes share.
pub(crate) fn now() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_micros()).unwrap_or(u64::MAX)
}

/// Takes the lock a few times, until the parent stops or kills this process.
pub(crate) async fn play(part: Part, mut orders: Orders) -> Result<(), Failure> {
    let client = Database::client(&part.mongodb).await?;
    let lease = LeaseOptions::new().ttl(part.lease);
    let locks = MongoProvider::builder(client.database(&part.database)).lease(lease).owner(&*part.name).build()?;
    locks.prepare().await?;
    // So that the first hold of the recording does not wait for a cold connection.
    let _ = locks.acquire(format!("warm-up/{}", part.name)).await?.release().await?;
    report(&Report::Ready);
    if orders.next::<()>().await?.is_some() {
        let end = orders.end();
        tokio::select! {
            done = take_turns(&part.name, part.lease, &locks) => done?,
            () = end => {}
        }
    }
    locks.close().await?;
    client.shutdown().await;
    Ok(())
}

async fn take_turns(name: &str, lease: Duration, locks: &MongoProvider) -> Result<(), Failure> {
    for round in 1..=ROUNDS {
        report(&Report::Waits { at: now() });
        let guard = locks.acquire(KEY).timeout(lease + Duration::from_secs(20)).await?;
        report(&Report::Holds { at: now(), token: guard.fencing_token().get() });
        if name == A && round == ROUNDS {
            sleep(KILLED_AFTER).await;
            report(&Report::WouldHold);
        }
        sleep(HOLD).await;
        report(&Report::Releases { at: now() });
        let _ = guard.release().await?;
    }
    Ok(())
}
