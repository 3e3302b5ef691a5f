//! A replica of a service.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use distlock_memory::MemoryProvider;

use super::protocol::{Report, Serve, Spec, Window};
use crate::Outcome;
use crate::clock;
use crate::commands::Monitor;
use crate::locks::{self, Contender};
use crate::web::service::{self, Guard};

/// Serves, with the locks of the contender that `spec` names.
pub(super) async fn start(spec: &Spec, task: Serve, monitor: &Arc<Monitor>) -> Outcome<SocketAddr> {
    let guard = match spec.who {
        _ if task.in_memory => Guard::Layer(Arc::new(MemoryProvider::new())),
        Contender::Ours => {
            let client = locks::client(&spec.uri, spec.settings.counted.then_some(monitor)).await?;
            let provider = locks::ours::provider(&client, spec.who.database(), spec.settings).await?;
            Guard::Layer(Arc::new(provider))
        }
        Contender::Raw => {
            let client = locks::client(&spec.uri, spec.settings.counted.then_some(monitor)).await?;
            Guard::Writes(locks::raw::majority(&client, spec.who.database(), "locks"))
        }
        peer => Guard::Calls(locks::connect(peer, &spec.uri, spec.settings, monitor).await?),
    };
    let router = service::router(guard, Duration::from_micros(task.work_us));
    // It serves as long as the process lives.
    let (address, _) = service::serve(router).await?;
    Ok(address)
}

pub(super) async fn until_end(window: Window) -> Outcome<Report> {
    clock::sleep_until(window.stop).await;
    Ok(Report::default())
}
