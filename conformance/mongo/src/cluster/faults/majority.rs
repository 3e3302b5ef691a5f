//! Two of three members that are away at the same time.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use distlock_conformance::{Fault, FixtureError};
use futures_util::future::{join_all, try_join_all};
use mongodb::bson::{Document, doc};
use mongodb::options::{Acknowledgment, WriteConcern};
use tokio::time::timeout;

use super::super::member::Member;
use super::super::set::Cluster;
use super::process::Mode;

/// How long the remaining member may take to acknowledge a write.
const PROBE: Duration = Duration::from_millis(500);

pub(super) fn all(cluster: &Arc<Cluster>) -> [Arc<dyn Fault>; 2] {
    [Mode::Kill, Mode::Stop].map(|mode| -> Arc<dyn Fault> {
        Arc::new(WithoutMajority { mode, cluster: Arc::clone(cluster), state: Mutex::default() })
    })
}

/// Takes all members but one away, so that no majority acknowledges a write until they are back.
/// The remaining member is by turns the primary, which steps down after a while, and a secondary.
struct WithoutMajority {
    mode: Mode,
    cluster: Arc<Cluster>,
    state: Mutex<State>,
}

#[derive(Clone, Copy, Default)]
struct State {
    turn: usize,
    /// The remaining member, and whether it was the primary.
    left: Option<(usize, bool)>,
}

impl WithoutMajority {
    fn away(&self, left: usize) -> impl Iterator<Item = &Member> {
        self.cluster.members.iter().filter(move |member| member.number != left)
    }

    /// Fails if a majority acknowledges a write to the remaining member.
    async fn expect_no_write(&self, left: usize) -> Result<(), FixtureError> {
        let probes = self.cluster.members[left].client().database("distlock_arena").collection::<Document>("probes");
        let concern = WriteConcern::builder().w(Acknowledgment::Majority).w_timeout(PROBE).build();
        let probe = probes.insert_one(doc! {}).write_concern(concern);
        match timeout(PROBE * 4, async { probe.await }).await {
            Ok(Ok(_)) => Err("a majority acknowledged a write".into()),
            _ => Ok(()),
        }
    }
}

#[async_trait]
impl Fault for WithoutMajority {
    fn kind(&self) -> &'static str {
        match self.mode {
            Mode::Kill => "kill-majority",
            Mode::Stop => "stop-majority",
        }
    }

    /// Longer than a primary remains one without a majority.
    fn duration(&self) -> Duration {
        Duration::from_secs(6)
    }

    async fn begin(&self) -> Result<(), FixtureError> {
        let turn = self.state.lock().expect("not poisoned").turn + 1;
        let (left, is_primary) = self.cluster.member_of_turn(turn).await?;
        *self.state.lock().expect("not poisoned") = State { turn, left: Some((left, is_primary)) };
        try_join_all(self.away(left).map(|member| self.mode.send_away(member))).await?;
        self.expect_no_write(left).await
    }

    async fn end(&self) -> Result<String, FixtureError> {
        let left = self.state.lock().expect("not poisoned").left.take();
        let (left, was_primary) = left.ok_or("it was not begun")?;
        let silent = self.expect_no_write(left).await;
        // Bring each of them back, even if another one fails.
        let back = join_all(self.away(left).map(|member| self.mode.bring_back(member))).await;
        silent?;
        back.into_iter().collect::<Result<(), _>>()?;
        let written = self.cluster.until_written().await.ok_or("no majority acknowledges writes after it was back")?;
        let role = if was_primary { "the primary" } else { "a secondary" };
        Ok(format!(
            "all members but {left}, {role}, were {}, no write was acknowledged, and one was {written:.1?} after \
             they were back",
            self.mode.verb()
        ))
    }
}
