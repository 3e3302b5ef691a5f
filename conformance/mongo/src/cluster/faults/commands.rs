//! Commands of clients that fail or are slow at the server, by the fail point `failCommand`.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use distlock_conformance::{Fault, FixtureError};
use futures_util::future::try_join_all;
use mongodb::Client;
use mongodb::bson::{Bson, Document, doc};

use super::super::member::Member;
use super::super::set::{Cluster, MARK};

/// The commands that the store of locks sends.
const COMMANDS: [&str; 5] = ["findAndModify", "update", "find", "aggregate", "getMore"];
/// The writes among them: an `aggregate` may insert records. A write concern error is reported
/// after they were executed.
const WRITES: [&str; 3] = ["findAndModify", "update", "aggregate"];
/// `HostUnreachable`, `NetworkTimeout`, `ShutdownInProgress`, `PrimarySteppedDown`,
/// `NotWritablePrimary`, `InterruptedDueToReplStateChange`: transient, and most of them retryable.
const CODES: [i32; 6] = [6, 89, 91, 189, 10_107, 11_602];
/// How many of ten commands fail.
const SHARE: f64 = 0.3;

/// How long a slow command waits before it is executed, by turns.
const SLOW_MS: [i32; 3] = [300, 1_000, 600];

/// The settings of the fail point, by turns.
type Data = fn(usize) -> Document;

pub(super) fn all(cluster: &Arc<Cluster>) -> Vec<Arc<dyn Fault>> {
    let kinds: [(&'static str, Extent, Data); 5] = [
        ("close-connection", Extent::Some, |_| doc! { "failCommands": COMMANDS.to_vec(), "closeConnection": true }),
        ("error-code", Extent::Some, |turn| {
            doc! { "failCommands": COMMANDS.to_vec(), "errorCode": CODES[turn % CODES.len()] }
        }),
        ("write-concern-error", Extent::Some, |_| {
            let error =
                doc! { "code": 64, "codeName": "WriteConcernFailed", "errmsg": "waiting for replication timed out" };
            doc! { "failCommands": WRITES.to_vec(), "writeConcernError": error }
        }),
        ("slow-find-and-modify", Extent::All, |turn| slow(&["findAndModify"], turn)),
        ("slow-writes", Extent::All, |turn| slow(&WRITES, turn)),
    ];
    let of = |(kind, extent, data)| -> Arc<dyn Fault> {
        Arc::new(DisturbedCommands { kind, extent, data, cluster: Arc::clone(cluster), state: Mutex::default() })
    };
    kinds.map(of).into()
}

fn slow(commands: &[&str], turn: usize) -> Document {
    doc! { "failCommands": commands.to_vec(), "blockConnection": true, "blockTimeMS": SLOW_MS[turn % SLOW_MS.len()] }
}

/// Which commands of clients are affected.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Extent {
    /// A share of the commands to the primary.
    Some,
    /// Every command, on every member: an election does not end the fault.
    All,
}

struct DisturbedCommands {
    kind: &'static str,
    extent: Extent,
    data: Data,
    cluster: Arc<Cluster>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    turn: usize,
    /// The members, and how many commands each had hit before.
    running: Vec<(usize, u64)>,
}

#[async_trait]
impl Fault for DisturbedCommands {
    fn kind(&self) -> &'static str {
        self.kind
    }

    /// Slow commands queue up in the clients, so the fault lasts longer than the request timeout of
    /// a caller in that queue.
    fn duration(&self) -> Duration {
        Duration::from_secs(if self.extent == Extent::All { 8 } else { 3 })
    }

    async fn begin(&self) -> Result<(), FixtureError> {
        let members: Vec<&Member> = match self.extent {
            Extent::Some => vec![self.cluster.until_primary("a primary", |_| true).await?],
            Extent::All => self.cluster.members.iter().collect(),
        };
        let mode: Bson = match self.extent {
            Extent::Some => doc! { "activationProbability": SHARE }.into(),
            Extent::All => "alwaysOn".into(),
        };
        let turn = self.state.lock().expect("not poisoned").turn;
        let mut data = (self.data)(turn);
        data.insert("appName", MARK);
        let beginning = members.into_iter().map(async |member| {
            let before = configure(member.client(), mode.clone(), data.clone()).await?;
            Ok::<_, FixtureError>((member.number, before))
        });
        let running = try_join_all(beginning).await?;
        *self.state.lock().expect("not poisoned") = State { turn: turn + 1, running };
        Ok(())
    }

    async fn end(&self) -> Result<String, FixtureError> {
        let running = std::mem::take(&mut self.state.lock().expect("not poisoned").running);
        if running.is_empty() {
            return Err("it was not begun".into());
        }
        let ending = running.into_iter().map(async |(number, before)| {
            let after = configure(self.cluster.members[number].client(), "off".into(), doc! {}).await?;
            Ok::<_, FixtureError>(after.saturating_sub(before))
        });
        let happened = if self.extent == Extent::All { "were slow" } else { "failed" };
        match try_join_all(ending).await?.iter().sum::<u64>() {
            0 => Err(format!("no commands {happened}").into()),
            count => Ok(format!("{count} commands {happened}")),
        }
    }
}

/// Sets the fail point of a server, and returns how many commands it had hit before.
async fn configure(server: &Client, mode: Bson, data: Document) -> Result<u64, FixtureError> {
    let command = doc! { "configureFailPoint": "failCommand", "mode": mode, "data": data };
    let answer = server.database("admin").run_command(command).await?;
    let count = answer.get("count").and_then(|count| count.as_i64().or(count.as_i32().map(Into::into)));
    let count = count.and_then(|count| u64::try_from(count).ok());
    count.ok_or_else(|| format!("the server does not report how many commands failed: {answer}").into())
}
