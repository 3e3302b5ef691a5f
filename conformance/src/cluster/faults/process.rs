//! A primary that is killed, and one that is stopped.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;

use super::super::Cluster;
use crate::arena::Fault;
use crate::fixture::FixtureError;
use crate::signal;

pub(super) fn all(cluster: &Arc<Cluster>) -> [Arc<dyn Fault>; 2] {
    [Mode::Kill, Mode::Stop].map(|mode| -> Arc<dyn Fault> {
        Arc::new(WithoutPrimary { mode, cluster: Arc::clone(cluster), running: Mutex::default() })
    })
}

#[derive(Clone, Copy)]
enum Mode {
    /// SIGKILL, and started again.
    Kill,
    /// SIGSTOP and SIGCONT.
    Stop,
}

struct WithoutPrimary {
    mode: Mode,
    cluster: Arc<Cluster>,
    /// Who it was, and in which term.
    running: Mutex<Option<(usize, i64)>>,
}

#[async_trait]
impl Fault for WithoutPrimary {
    fn kind(&self) -> &'static str {
        match self.mode {
            Mode::Kill => "kill-primary",
            Mode::Stop => "stop-primary",
        }
    }

    /// Longer than an election takes.
    fn lasts(&self) -> Duration {
        Duration::from_secs(6)
    }

    async fn begin(&self) -> Result<(), FixtureError> {
        let primary = self.cluster.until_primary("a primary", |_| true).await?;
        let term = self.cluster.term(primary).await?;
        *self.running.lock().expect("not poisoned") = Some((primary.number, term));
        let (name, happened) = match self.mode {
            Mode::Kill => ("KILL", primary.signal("KILL").await.map(|()| signal::is_dead as fn(u32) -> bool)),
            Mode::Stop => ("STOP", primary.signal("STOP").await.map(|()| is_stopped as fn(u32) -> bool)),
        };
        if primary.is_soon(happened?).await {
            return Ok(());
        }
        Err(format!("member {} got SIG{name}, and goes on", primary.number).into())
    }

    async fn end(&self) -> Result<String, FixtureError> {
        let running = self.running.lock().expect("not poisoned").take();
        let (number, before) = running.ok_or("it was not begun")?;
        let member = &self.cluster.members[number];
        let taken = self.cluster.until_primary("another primary", |primary| primary.number != number).await;
        match self.mode {
            Mode::Kill => member.launch().await?,
            Mode::Stop => member.signal("CONT").await?,
        }
        if !member.is_soon(|pid| !signal::is_dead(pid) && !is_stopped(pid)).await {
            return Err(format!("member {number} does not run again").into());
        }
        let (next, verb) = (taken?, if matches!(self.mode, Mode::Kill) { "killed" } else { "stopped" });
        let term = self.cluster.term(next).await?;
        if term <= before {
            return Err(format!("member {number} was {verb} in term {before}, and the term is {term}").into());
        }
        Ok(format!("member {number} was {verb}, member {} took over in term {term}", next.number))
    }
}

fn is_stopped(pid: u32) -> bool {
    signal::state(pid) == Some('T')
}
