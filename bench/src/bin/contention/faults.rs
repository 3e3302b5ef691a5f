//! Faults that figures inject into the servers and their connections.

use std::time::Duration;

use mongodb::Client;
use mongodb::bson::{Document, doc};
use rustix::process::{Pid, Signal, kill_process};

use crate::Outcome;
use crate::deployment;

/// The fail point `failCommand` of the present primary: delays commands of the clients with one
/// `appName`.
///
/// The server waits before it runs a command. Only the connection is occupied meanwhile, so the
/// delay does not limit how many commands run at once.
pub struct SlowCommands {
    server: Client,
    app: &'static str,
}

impl SlowCommands {
    /// The fail point, switched off.
    pub async fn of(uri: &str, app: &'static str) -> Outcome<Self> {
        let slow = Self { server: deployment::primary(uri).await?.client, app };
        slow.end().await?;
        Ok(slow)
    }

    /// Delays each of these commands by `by` from now on.
    pub async fn begin(&self, commands: &[&str], by: Duration) -> Outcome<()> {
        let data = doc! {
            "failCommands": commands,
            "blockConnection": true,
            "blockTimeMS": by.as_millis() as i64,
            "appName": self.app,
        };
        self.configure("alwaysOn", data).await
    }

    /// Ends the delays. Commands that already wait in the server keep waiting.
    pub async fn end(&self) -> Outcome<()> {
        self.configure("off", doc! {}).await
    }

    async fn configure(&self, mode: &str, data: Document) -> Outcome<()> {
        let command = doc! { "configureFailPoint": "failCommand", "mode": mode, "data": data };
        self.server.database("admin").run_command(command).await?;
        Ok(())
    }
}

/// A server that is stopped by `SIGSTOP`. It keeps its connections, the kernel accepts new ones,
/// and no request is answered. The server continues when this is dropped.
pub struct Frozen(Pid);

impl Frozen {
    /// Stops a process.
    pub fn new(server: Pid) -> Outcome<Self> {
        kill_process(server, Signal::STOP)?;
        Ok(Self(server))
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        // Fails only if the server no longer exists.
        let _ = kill_process(self.0, Signal::CONT);
    }
}
