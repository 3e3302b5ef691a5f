//! Locks in documents: the commands, their effect, and the state that they leave.

mod basics;
mod batch;
mod changes;
mod creating;
mod foreign;
mod identities;
mod losing;
mod lost_replies;
mod rejecting;
mod transactions;

use std::time::Duration;

use distlock_api::{LeaseOptions, LockProvider};
use distlock_mongo::mongodb::bson::{Bson, Deserializer, Document, doc};
use distlock_mongo::mongodb::{Client, Collection};
use distlock_mongo::{DocumentLocks, DocumentLocksBuilder};
use serde::{Deserialize, Serialize};

use super::Checks;
use super::world::{LONG, World, random_name};

pub(super) fn add(checks: &mut Checks<'_>) {
    basics::add(checks);
    batch::add(checks);
    changes::add(checks);
    creating::add(checks);
    foreign::add(checks);
    identities::add(checks);
    losing::add(checks);
    lost_replies::add(checks);
    rejecting::add(checks);
    transactions::add(checks);
}

/// An application's document. Its type does not have the lock.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Account {
    _id: String,
    owner: String,
    balance: i64,
}

fn account(id: &str) -> Account {
    Account { _id: id.into(), owner: "$ada".into(), balance: 10 }
}

/// The options of leases that outlive their check without a renewal.
fn lasting() -> LeaseOptions {
    LeaseOptions::new().ttl(10 * LONG)
}

/// Closes the locks of a check in which none was lost.
async fn close(locks: DocumentLocks<Account>) {
    let provider = locks.provider();
    provider.close().await.expect("all guards are released");
    assert!(provider.accounting().balances() && provider.accounting().lost == 0, "{:?}", provider.accounting());
}

/// A collection of accounts of its own, and locks in it.
struct Bank {
    raw: Collection<Document>,
    accounts: Collection<Account>,
}

impl Bank {
    fn of(world: &World) -> Self {
        Self::on(&world.client, &random_name("accounts"))
    }

    fn on(client: &Client, name: &str) -> Self {
        let database = client.database("distlock_test");
        Self { raw: database.collection(name), accounts: database.collection(name) }
    }

    fn builder(&self) -> DocumentLocksBuilder<Account> {
        DocumentLocks::builder(&self.accounts)
    }

    /// Locks that a busy machine does not disturb: a call may take long, and no lease is renewed
    /// between two commands.
    fn locks(&self) -> DocumentLocks<Account> {
        self.builder().lease(lasting()).request_timeout(LONG).build().expect("valid options")
    }

    /// A new account.
    async fn open(&self) -> String {
        let id = random_name("account");
        self.accounts.insert_one(account(&id)).await.expect("inserted");
        id
    }

    async fn raw(&self, id: impl Into<Bson>) -> Document {
        self.raw.find_one(doc! { "_id": id.into() }).await.expect("an answer").expect("a document")
    }

    /// Waits until the document has no holder.
    async fn freed(&self, id: &str) -> Document {
        loop {
            let document = self.raw(id).await;
            if document.get_document("lock").is_ok_and(|lock| !lock.contains_key("lockId")) {
                return document;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    /// The document without the lock.
    async fn read(&self, id: &str) -> Account {
        let mut document = self.raw(id).await;
        document.remove("lock");
        Account::deserialize(Deserializer::new(document.into())).expect("an account")
    }
}
