//! Commands of clients that fail at the server, by the fail point `failCommand`.

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use mongodb::bson::{Document, doc};

use super::super::{Cluster, MARK};
use crate::arena::Fault;
use crate::fail_command::configure;
use crate::fixture::FixtureError;

/// What the store of a lock sends.
const COMMANDS: [&str; 5] = ["findAndModify", "update", "find", "aggregate", "getMore"];
/// Of the writes among them a write concern error is said after they were carried out.
const WRITES: [&str; 2] = ["findAndModify", "update"];
/// `HostUnreachable`, `NetworkTimeout`, `ShutdownInProgress`, `PrimarySteppedDown`, `NotWritablePrimary`, `InterruptedDueToReplStateChange`: transient, and most of them retryable.
const CODES: [i32; 6] = [6, 89, 91, 189, 10_107, 11_602];
/// Of ten commands so many fail.
const SHARE: f64 = 0.3;

/// What the fail point is told, unlike from time to time.
type Data = fn(usize) -> Document;

pub(super) fn all(cluster: &Arc<Cluster>) -> Vec<Arc<dyn Fault>> {
    let kinds: [(&'static str, Data); 3] = [
        ("close-connection", |_| doc! { "failCommands": COMMANDS.to_vec(), "closeConnection": true }),
        ("error-code", |turn| doc! { "failCommands": COMMANDS.to_vec(), "errorCode": CODES[turn % CODES.len()] }),
        ("write-concern-error", |_| {
            let error =
                doc! { "code": 64, "codeName": "WriteConcernFailed", "errmsg": "waiting for replication timed out" };
            doc! { "failCommands": WRITES.to_vec(), "writeConcernError": error }
        }),
    ];
    let of = |(kind, data)| -> Arc<dyn Fault> {
        Arc::new(FailingCommands { kind, data, cluster: Arc::clone(cluster), state: Mutex::default() })
    };
    kinds.map(of).into()
}

struct FailingCommands {
    kind: &'static str,
    data: Data,
    cluster: Arc<Cluster>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    turn: usize,
    /// The member, and how many commands it had let fail before.
    running: Option<(usize, u64)>,
}

#[async_trait]
impl Fault for FailingCommands {
    fn kind(&self) -> &'static str {
        self.kind
    }

    async fn begin(&self) -> Result<(), FixtureError> {
        let primary = self.cluster.until_primary("a primary", |_| true).await?;
        let turn = self.state.lock().expect("not poisoned").turn;
        let mut data = (self.data)(turn);
        data.insert("appName", MARK);
        let before = configure(primary.client(), doc! { "activationProbability": SHARE }.into(), data).await?;
        *self.state.lock().expect("not poisoned") = State { turn: turn + 1, running: Some((primary.number, before)) };
        Ok(())
    }

    async fn end(&self) -> Result<String, FixtureError> {
        let running = self.state.lock().expect("not poisoned").running.take();
        let (number, before) = running.ok_or("it was not begun")?;
        let after = configure(self.cluster.members[number].client(), "off".into(), doc! {}).await?;
        match after.saturating_sub(before) {
            0 => Err("no command failed".into()),
            count => Ok(format!("{count} commands failed")),
        }
    }
}
