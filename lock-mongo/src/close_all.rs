//! The end of a client and of what uses it.

use std::future::Future;
use std::time::Duration;

use distlock_api::Result;
use futures_util::future::join_all;
use mongodb::Client;
use tokio::time::timeout;

/// How long the client waits for what the application has not dropped, such as cursors.
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(5);

/// Closes providers, all at the same time, and then shuts their client down, which they need for
/// the last releases.
///
/// ```no_run
/// use distlock_api::{LockError, LockProvider};
/// use distlock_mongo::mongodb::Client;
/// use distlock_mongo::mongodb::bson::Document;
/// use distlock_mongo::{DocumentLocks, MongoOnce, MongoProvider, close_all};
/// use distlock_recipes::once::OnceProvider;
///
/// async fn end(
///     client: Client,
///     (locks, accounts, jobs): (MongoProvider, DocumentLocks<Document>, MongoOnce),
/// ) -> Result<(), LockError> {
///     close_all(client, [locks.close(), accounts.provider().close(), jobs.close()]).await
/// }
/// ```
///
/// The client waits up to 5 s for cursors, sessions and guards that the application has not
/// dropped.
///
/// # Errors
/// The first error of [`close`](distlock_api::LockProvider::close). The other providers are closed
/// and the client is shut down nevertheless.
///
/// # Cancel safety
/// The providers stay closed, and the client may still be open; call again to wait for the rest.
pub async fn close_all<C>(client: Client, closing: impl IntoIterator<Item = C>) -> Result<()>
where
    C: Future<Output = Result<()>>,
{
    let closed = join_all(closing).await;
    if timeout(SHUTDOWN_LIMIT, client.clone().shutdown()).await.is_err() {
        client.shutdown().immediate(true).await;
    }
    closed.into_iter().collect()
}
