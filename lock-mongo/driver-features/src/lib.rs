//! An application of the backend. What it checks is that it compiles with each feature of the
//! driver, and that the backend's types are the driver's.

use distlock::mongodb::{DocumentLocks, MongoProvider};
use mongodb::Database;
use mongodb::bson::Document;

/// Makes the providers from a client of this application.
///
/// # Errors
/// Those of the builders.
pub fn providers(database: &Database) -> distlock::Result<(MongoProvider, DocumentLocks<Document>)> {
    let orders = database.collection("orders");
    Ok((MongoProvider::builder(database.clone()).build()?, DocumentLocks::builder(&orders).build()?))
}
