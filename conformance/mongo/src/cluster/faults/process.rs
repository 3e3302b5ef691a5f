//! A primary that is killed, and one that is stopped.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use distlock_conformance::{Fault, FixtureError};
use tokio::task::JoinSet;

use super::super::member::Member;
use super::super::set::Cluster;

pub(super) fn all(cluster: &Arc<Cluster>) -> [Arc<dyn Fault>; 2] {
    [Mode::Kill, Mode::Stop].map(|mode| without_primary(cluster, mode))
}

pub(super) fn without_primary(cluster: &Arc<Cluster>, mode: Mode) -> Arc<dyn Fault> {
    Arc::new(WithoutPrimary { mode, cluster: Arc::clone(cluster), running: Mutex::default() })
}

/// How members are taken away.
#[derive(Clone, Copy)]
pub(super) enum Mode {
    /// Killed by SIGKILL, and started again.
    Kill,
    /// Stopped by SIGSTOP until SIGCONT.
    Stop,
}

impl Mode {
    pub(super) const fn verb(self) -> &'static str {
        match self {
            Self::Kill => "killed",
            Self::Stop => "stopped",
        }
    }

    pub(super) async fn send_away(self, member: &Member) -> Result<(), FixtureError> {
        match self {
            Self::Kill => member.server().kill().await,
            Self::Stop => member.server().pause().await,
        }
    }

    pub(super) async fn bring_back(self, member: &Member) -> Result<(), FixtureError> {
        match self {
            Self::Kill => member.launch().await,
            Self::Stop => member.server().resume().await,
        }
    }
}

struct WithoutPrimary {
    mode: Mode,
    cluster: Arc<Cluster>,
    running: Mutex<Option<Running>>,
}

struct Running {
    /// The former primary, and its term.
    number: usize,
    term: i64,
    /// The time until a plain driver's write was acknowledged again.
    written: JoinSet<Option<Duration>>,
}

#[async_trait]
impl Fault for WithoutPrimary {
    fn kind(&self) -> &'static str {
        match self.mode {
            Mode::Kill => "kill-primary",
            Mode::Stop => "stop-primary",
        }
    }

    /// Longer than an election. The connections of a stopped primary stay open. It stays stopped
    /// for longer than a request timeout after the election, so that clients must leave it without
    /// its help.
    fn duration(&self) -> Duration {
        match self.mode {
            Mode::Kill => Duration::from_secs(6),
            Mode::Stop => Duration::from_secs(12),
        }
    }

    async fn begin(&self) -> Result<(), FixtureError> {
        let primary = self.cluster.until_primary("a primary", |_| true).await?;
        let term = self.cluster.term(primary).await?;
        let running = Running { number: primary.number, term, written: JoinSet::new() };
        *self.running.lock().expect("not poisoned") = Some(running);
        self.mode.send_away(primary).await?;
        let cluster = Arc::clone(&self.cluster);
        if let Some(running) = &mut *self.running.lock().expect("not poisoned") {
            running.written.spawn(async move { cluster.until_written().await });
        }
        Ok(())
    }

    async fn end(&self) -> Result<String, FixtureError> {
        let running = self.running.lock().expect("not poisoned").take();
        let Running { number, term: before, mut written } = running.ok_or("it was not begun")?;
        let member = &self.cluster.members[number];
        let taken = self.cluster.until_primary("another primary", |primary| primary.number != number).await;
        self.mode.bring_back(member).await?;
        let (next, verb) = (taken?, self.mode.verb());
        let term = self.cluster.term(next).await?;
        if term <= before {
            return Err(format!("member {number} was {verb} in term {before}, and the term is {term}").into());
        }
        let written = written.join_next().await.ok_or("it was not begun")??.ok_or("no write was acknowledged again")?;
        Ok(format!(
            "member {number} was {verb}, member {} took over in term {term}, writes were acknowledged after {written:.1?}",
            next.number
        ))
    }
}
