//! Many providers of one process, each with a client of its own, as if each were a process.

use std::sync::Arc;

use futures_util::stream::{self, StreamExt, TryStreamExt};

use super::contend;
use super::protocol::{Crowd, Report, Spec, Window};
use crate::Outcome;
use crate::commands::Monitor;
use crate::locks::{self, Locks};

/// How many connect at the same time.
const AT_A_TIME: usize = 16;

/// Connects all of them.
pub(super) async fn connect(spec: &Spec, providers: usize, monitor: &Arc<Monitor>) -> Outcome<Vec<Arc<dyn Locks>>> {
    stream::iter(0..providers)
        .map(|_| async {
            let locks = locks::connect(spec.who, &spec.uri, spec.settings, monitor).await?;
            contend::warm_up(&*locks).await?;
            Ok(locks)
        })
        .buffer_unordered(AT_A_TIME)
        .try_collect()
        .await
}

/// Takes turns. They start before the window, so that it shows none of the crowd's arrival.
pub(super) async fn run(providers: Vec<Arc<dyn Locks>>, task: &Crowd, window: Window) -> Outcome<Report> {
    let begin = window.start.saturating_sub(task.settle_ms * 1_000_000);
    contend::run(providers, task.contend.clone(), window, begin).await
}
