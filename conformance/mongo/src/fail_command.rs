//! Faults that a MongoDB server injects itself.

use std::sync::Arc;

use distlock_conformance::FixtureError;
use mongodb::Client;
use mongodb::bson::{Bson, Document, doc};
use tokio::sync::{Mutex, OwnedMutexGuard};

use crate::shared::{self, Turn};

/// `HostUnreachable`: transient and retryable, and no news about the server itself. An error that is, such as `InterruptedDueToReplStateChange`, makes a
/// driver wait for up to ten seconds until a server, whose state has not changed, says so.
const HOST_UNREACHABLE: i32 = 6;

/// The fail point `failCommand` of a server that was started with `enableTestCommands`: makes commands of one client, known by its `appName`, fail without
/// having been run.
///
/// A server has only one of them. Handles made by [`of`](Self::of) take turns: from [`fail_next`](Self::fail_next) to [`end`](Self::end) the fail point is one
/// handle's, and the others wait.
#[derive(Debug)]
pub struct FailCommand {
    server: Client,
    turns: Arc<Mutex<()>>,
    app: String,
    /// What the server had counted before, and the turn.
    running: Mutex<Option<(u64, Turns)>>,
}

/// The turn among the handles of this process, and among the processes that share the server, if they do.
type Turns = (OwnedMutexGuard<()>, Option<Turn>);

impl FailCommand {
    /// The fail point of the server that a client is connected to, not meant for anybody yet.
    #[must_use]
    pub fn new(server: Client) -> Self {
        Self { server, turns: Arc::default(), app: String::new(), running: Mutex::default() }
    }

    /// The same server's, for the clients of one `appName`.
    #[must_use]
    pub fn of(&self, app: impl Into<String>) -> Self {
        Self { server: self.server.clone(), turns: Arc::clone(&self.turns), app: app.into(), running: Mutex::default() }
    }

    /// Makes the next `times` of these commands fail.
    ///
    /// # Errors
    /// When the server cannot do it.
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

    /// Ends it, and tells how many commands failed.
    ///
    /// # Errors
    /// When the server cannot do it, or there was nothing to end.
    pub async fn end(&self) -> Result<u64, FixtureError> {
        let Some((before, _turns)) = self.running.lock().await.take() else {
            return Err("no command was made to fail".into());
        };
        Ok(configure(&self.server, "off".into(), doc! {}).await?.saturating_sub(before))
    }
}

/// Sets the fail point of a server, and answers how many commands it had hit until then.
pub(crate) async fn configure(server: &Client, mode: Bson, data: Document) -> Result<u64, FixtureError> {
    let command = doc! { "configureFailPoint": "failCommand", "mode": mode, "data": data };
    let answer = server.database("admin").run_command(command).await?;
    let count = answer.get("count").and_then(|count| count.as_i64().or(count.as_i32().map(Into::into)));
    let count = count.and_then(|count| u64::try_from(count).ok());
    count.ok_or_else(|| format!("the server does not count what it lets fail: {answer}").into())
}
