//! Faults that a MongoDB server injects itself.

use std::sync::Arc;

use distlock_conformance::FixtureError;
use mongodb::Client;
use mongodb::bson::{Bson, Document, doc};
use tokio::sync::{Mutex, OwnedMutexGuard};

use crate::shared::{self, Turn};

/// `HostUnreachable`: transient and retryable, and without information about the server's state. An
/// error with such information, such as `InterruptedDueToReplStateChange`, makes a driver wait up
/// to ten seconds for the next report of the server, whose state has not changed.
const HOST_UNREACHABLE: i32 = 6;

/// The fail point `failCommand` of a server that was started with `enableTestCommands`. It makes
/// commands of one client, known by its `appName`, fail without being executed.
///
/// A server has only one such fail point. Handles made by [`of`](Self::of) take turns: from
/// [`fail_next`](Self::fail_next) to [`end`](Self::end) one handle owns the fail point, and the
/// others wait.
///
/// ```no_run
/// use distlock_conformance_mongo::FailCommand;
///
/// # async fn example(server: mongodb::Client) -> Result<(), distlock_conformance::FixtureError> {
/// let orders = FailCommand::new(server).of("orders");
/// orders.fail_next(&["findAndModify"], 2).await?;
/// // … the client with `appName=orders` sends commands …
/// assert_eq!(orders.end().await?, 2);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct FailCommand {
    server: Client,
    turns: Arc<Mutex<()>>,
    app: String,
    /// The server's count before, and the turn.
    running: Mutex<Option<(u64, Turns)>>,
}

/// The turn among the handles of this process, and among the processes that share the server, if
/// any.
type Turns = (OwnedMutexGuard<()>, Option<Turn>);

impl FailCommand {
    /// Makes a handle for the server of `server`, without an `appName` yet.
    #[must_use]
    pub fn new(server: Client) -> Self {
        Self { server, turns: Arc::default(), app: String::new(), running: Mutex::default() }
    }

    /// Makes a handle for the same server and the clients of one `appName`.
    #[must_use]
    pub fn of(&self, app: impl Into<String>) -> Self {
        Self { server: self.server.clone(), turns: Arc::clone(&self.turns), app: app.into(), running: Mutex::default() }
    }

    /// Makes the next `times` of these commands fail. Waits until no other handle uses the fail
    /// point.
    ///
    /// # Errors
    /// The server rejects the fail point.
    pub async fn fail_next(&self, commands: &[&str], times: u32) -> Result<(), FixtureError> {
        let mut running = self.running.lock().await;
        let turn = match running.take() {
            Some((_, turn)) => turn,
            None => (Arc::clone(&self.turns).lock_owned().await, shared::turn("failCommand").await?),
        };
        let data = doc! { "failCommands": commands.to_vec(), "errorCode": HOST_UNREACHABLE, "appName": &self.app };
        let before = configure(&self.server, doc! { "times": times }.into(), data).await?;
        *running = Some((before, turn));
        Ok(())
    }

    /// Ends the fault, and returns how many commands failed.
    ///
    /// # Errors
    /// The server rejects the command, or no fault was begun.
    pub async fn end(&self) -> Result<u64, FixtureError> {
        let Some((before, _turns)) = self.running.lock().await.take() else {
            return Err("no command was made to fail".into());
        };
        Ok(configure(&self.server, "off".into(), doc! {}).await?.saturating_sub(before))
    }
}

/// Sets the fail point of a server, and returns how many commands it had hit before.
pub(crate) async fn configure(server: &Client, mode: Bson, data: Document) -> Result<u64, FixtureError> {
    let command = doc! { "configureFailPoint": "failCommand", "mode": mode, "data": data };
    let answer = server.database("admin").run_command(command).await?;
    let count = answer.get("count").and_then(|count| count.as_i64().or(count.as_i32().map(Into::into)));
    let count = count.and_then(|count| u64::try_from(count).ok());
    count.ok_or_else(|| format!("the server does not report how many commands failed: {answer}").into())
}
