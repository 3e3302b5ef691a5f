//! A session: the part that looks like an application.

use std::time::Duration;

use distlock_api::{LockGuard, LockProvider, LockProviderExt};
use distlock_examples::{Failure, Orders, Place, report};
use distlock_mongo::mongodb::Collection;
use distlock_mongo::mongodb::bson::doc;
use distlock_mongo::{Fence, Fenced, MongoProvider, close_all};
use futures_util::TryStreamExt;
use serde::{Deserialize, Serialize};
use tokio::time::sleep;

use crate::{EDITS, FROZEN, ITEMS, KILLED, LOCKS, LOGS_OUT};

/// How many items are checked out at once.
const AT_ONCE: usize = 2;
/// How long to wait for an item if all that are open are taken.
const PATIENCE: Duration = Duration::from_millis(500);

/// The part of a session.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Part {
    pub(crate) place: Place,
    pub(crate) locked: bool,
    pub(crate) fenced: bool,
}

/// What a session reports.
#[derive(Serialize, Deserialize)]
pub(crate) enum Report {
    CheckedOut(String),
    /// The database has confirmed it: the item, and the edit.
    Saved(String, String),
    Refused {
        item: String,
        token: u64,
        newest: u64,
    },
    /// Thinks, with items checked out, until an order to continue.
    Lingers(Vec<String>),
    LoggedOut {
        freed: u64,
    },
}

/// A work item.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Item {
    #[serde(rename = "_id")]
    pub(crate) id: String,
    /// Each edit: the session, and its number of the edit. The whole list is read and written, as
    /// an editor does with a text.
    pub(crate) edits: Vec<String>,
}

/// An item that this session has.
struct CheckedOut {
    item: Item,
    guard: Option<LockGuard>,
}

struct Session {
    name: String,
    items: Collection<Item>,
    /// `None` shows what happens without locks.
    locks: Option<MongoProvider>,
    fenced: bool,
    edits: usize,
}

impl Session {
    /// The items that need more edits, shuffled.
    async fn open(&self) -> Result<Vec<String>, Failure> {
        let last = format!("edits.{}", EDITS - 1);
        let found = self.items.find(doc! { last: { "$exists": false } }).await?;
        let mut open: Vec<_> = found.map_ok(|item| item.id).try_collect().await?;
        fastrand::shuffle(&mut open);
        Ok(open)
    }

    /// Checks out some items that no other session has.
    async fn check_out(&self, open: &[String]) -> Result<Vec<CheckedOut>, Failure> {
        let mut checked_out = Vec::new();
        for id in open {
            if checked_out.len() == AT_ONCE {
                break;
            }
            let guard = match &self.locks {
                None => None,
                Some(locks) => match locks.try_acquire(id).await? {
                    Some(guard) => Some(guard),
                    None => continue,
                },
            };
            checked_out.extend(self.take(id, guard).await?);
        }
        // All are taken: wait for one.
        if let (true, Some(locks)) = (checked_out.is_empty(), &self.locks)
            && let Some(guard) = locks.try_acquire(&open[0]).within(PATIENCE).await?
        {
            checked_out.extend(self.take(&open[0], Some(guard)).await?);
        }
        Ok(checked_out)
    }

    /// Reads an item that this session has. Returns `None` if the item was finished meanwhile.
    async fn take(&self, id: &str, guard: Option<LockGuard>) -> Result<Option<CheckedOut>, Failure> {
        let item = match &guard {
            // The claim stamps the item with the token. From now on it refuses saves of earlier
            // holders, although this session has saved nothing yet.
            Some(guard) if self.fenced => Fence::of(guard)?.claim(&self.items, doc! { "_id": id }).await?.accepted(),
            _ => self.items.find_one(doc! { "_id": id }).await?,
        };
        let item = item.filter(|item| item.edits.len() < EDITS);
        if let Some(item) = &item {
            report(&Report::CheckedOut(item.id.clone()));
        }
        Ok(item.map(|item| CheckedOut { item, guard }))
    }

    /// Edits an item, saves all of it, and checks it in.
    async fn finish(&mut self, CheckedOut { mut item, guard }: CheckedOut) -> Result<(), Failure> {
        self.edits += 1;
        let edit = format!("{}/{}", self.name, self.edits);
        item.edits.push(edit.clone());
        let (this, change) = (doc! { "_id": &item.id }, doc! { "$set": { "edits": &item.edits } });
        let saved = match &guard {
            Some(guard) if self.fenced => Fence::of(guard)?.update_one(&self.items, this, change).await?,
            _ => match self.items.update_one(this, change).await?.matched_count {
                0 => Fenced::NoDocument,
                _ => Fenced::Accepted(()),
            },
        };
        match (saved, &guard) {
            (Fenced::Accepted(()), _) => report(&Report::Saved(item.id, edit)),
            (Fenced::FencedOff { newest }, Some(guard)) => {
                let token = guard.fencing_token().get();
                report(&Report::Refused { item: item.id, token, newest: newest.get() });
            }
            _ => return Err(format!("{} has gone", item.id).into()),
        }
        if let Some(guard) = guard {
            // Already lost if the session was ended meanwhile. The save was refused then, and that
            // is what counts.
            guard.release().await?;
        }
        Ok(())
    }

    /// Releases all that the session has, in one call.
    async fn log_out(&self) -> Result<u64, Failure> {
        let Some(admin) = self.locks.as_ref().and_then(LockProvider::admin) else { return Ok(0) };
        Ok(admin.release_owner(&self.name, "log-out").await?)
    }
}

/// Runs the session of this process until all items are done or the parent stops it.
pub(crate) async fn play(name: String, part: Part, mut orders: Orders) -> Result<(), Failure> {
    let database = part.place.open().await?;
    // The owner is the session. The leases have the default of 30 s.
    let locks = MongoProvider::builder(database.clone()).collection(LOCKS).owner(&name).build()?;
    let (items, used) = (database.collection(ITEMS), part.locked.then(|| locks.clone()));
    let mut is_diligent = ![LOGS_OUT, KILLED, FROZEN].contains(&&*name);
    let mut session = Session { name, items, locks: used, fenced: part.fenced, edits: 0 };
    while !orders.have_ended() {
        let open = session.open().await?;
        if open.is_empty() {
            break;
        }
        let checked_out = session.check_out(&open).await?;
        // Each session works for a while before its habit shows.
        if !is_diligent && session.edits >= AT_ONCE && !checked_out.is_empty() {
            is_diligent = true;
            if session.name == LOGS_OUT {
                report(&Report::LoggedOut { freed: session.log_out().await? });
                break;
            }
            report(&Report::Lingers(checked_out.iter().map(|on| on.item.id.clone()).collect()));
            // Asleep, it does not notice the end of its session. When it wakes up, it saves before
            // it looks.
            let Some(()) = orders.next().await? else { break };
        }
        sleep(Duration::from_millis(fastrand::u64(60..180))).await;
        for item in checked_out {
            session.finish(item).await?;
        }
    }
    close_all(database.client().clone(), [locks.close()]).await?;
    Ok(())
}
