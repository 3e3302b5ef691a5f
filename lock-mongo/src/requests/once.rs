//! Reading the record of work that is done once.

use std::time::Duration;

use distlock_api::{LockKey, Result};
use mongodb::options::ReadConcern;

use crate::budget::Budget;
use crate::lease::{Layout, Marked, OnceFound, WriteId};
use crate::records::Records;
use crate::topology::Deployment;

/// How much a read must have seen.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Seen<'a> {
    /// Only what no fail-over can take back.
    Majority,
    /// Also everything that any server has carried out before, such as this write.
    Everything(WriteId<'a>),
}

/// Finds the record of a key, within `limit`. Returns `None` if there is no document.
pub(crate) async fn find(
    records: &Records,
    key: &LockKey,
    seen: Seen<'_>,
    limit: Duration,
) -> Result<Option<OnceFound>> {
    let budget = Budget::new(limit);
    let with_key = |error: distlock_api::LockError| error.with_key(key.clone());
    let filter = Layout::document(records.layout.identity(key)?);
    let deployment = records.deployment_within(budget).await.map_err(with_key)?;
    let concern = match (deployment, seen) {
        // It has no other members, and refuses `linearizable`.
        (Deployment::Standalone, _) => ReadConcern::local(),
        (_, Seen::Majority) => ReadConcern::majority(),
        (_, Seen::Everything(_)) => ReadConcern::linearizable(),
    };
    let documents = records.collection.clone_with_type::<Marked<OnceFound>>();
    let write = if let Seen::Everything(write) = seen { Some(write) } else { None };
    let projection = records.layout.once_record(write);
    let find = async {
        documents.find_one(filter).projection(projection).read_concern(concern).max_time(budget.on_server()).await
    };
    let found = records.run(budget, crate::error::Effect::None, find).await.map_err(with_key)?;
    Ok(found.and_then(|found| found.answer))
}
