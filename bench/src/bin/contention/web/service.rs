//! The service that is measured: a request works for a while, under the lock of the key in its path
//! or without one.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::Path;
use axum::http::StatusCode;
use axum::routing::post;
use axum::serve::ListenerExt;
use distlock_api::LockProvider;
use distlock_tower::LockLayer;
use distlock_tower::key::RouteKey;
use mongodb::Collection;
use mongodb::bson::Document;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tower::layer::util::Identity;

use crate::Outcome;
use crate::locks::{Locks, PATIENCE, raw};

/// Paths without a lock begin so.
pub const BARE: &str = "/bare/";
/// Paths with one; as long as the others.
pub const LOCKED: &str = "/lock/";

/// Paths behind a layer that does nothing; as long as the others.
pub const IDLE: &str = "/idle/";

/// How requests get their locks.
pub enum Guard {
    /// From our middleware.
    Layer(Arc<dyn LockProvider>),
    /// By hand, as there is no middleware for them: the handler acquires, works, releases and
    /// answers.
    Calls(Arc<dyn Locks>),
    /// From nothing: the handler makes the two writes of a lock by hand, without its conditions.
    Writes(Collection<Document>),
}

/// Serves requests that work for `work`; those to [`LOCKED`] under their lock.
pub fn router(guard: Guard, work: Duration) -> Router {
    let plain = move || working(work);
    let locked = match guard {
        Guard::Layer(provider) => {
            let layer = LockLayer::new(provider, RouteKey::any_method().text("key")).wait_up_to(PATIENCE);
            Router::new().route("/lock/{key}", post(plain)).route_layer(layer)
        }
        Guard::Calls(locks) => {
            let call = move |Path(key): Path<String>| async move {
                let held = locks.acquire(&key).await.map_err(|_| StatusCode::SERVICE_UNAVAILABLE)?;
                let answer = working(work).await;
                held.release().await.map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)?;
                answer
            };
            Router::new().route("/lock/{key}", post(call))
        }
        Guard::Writes(records) => {
            let call = move |Path(key): Path<String>| async move {
                raw::take(&records, &key).await.map_err(|_| StatusCode::SERVICE_UNAVAILABLE)?;
                let answer = working(work).await;
                raw::give_back(&records, &key).await.map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)?;
                answer
            };
            Router::new().route("/lock/{key}", post(call))
        }
    };
    // axum gives each layer of a route a box of its own, and each request clones them.
    let idle = Router::new().route("/idle/{key}", post(plain)).route_layer(Identity::new());
    locked.merge(idle).route("/bare/{key}", post(plain))
}

async fn working(time: Duration) -> Result<&'static str, StatusCode> {
    if !time.is_zero() {
        pause(time).await.map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)?;
    }
    Ok("done")
}

/// A sleep as exact as the kernel's: the runtime's timer counts in milliseconds, so that one of 1
/// ms lasts up to two.
#[expect(
    deprecated,
    reason = "its replacement is unsafe, for descriptors that other code may close; this one is owned"
)]
async fn pause(time: Duration) -> std::io::Result<()> {
    let timer: OwnedFd = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)?;
    let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
    let it_value = Timespec { tv_sec: time.as_secs() as i64, tv_nsec: i64::from(time.subsec_nanos()) };
    timerfd_settime(&timer, TimerfdTimerFlags::empty(), &Itimerspec { it_interval: zero, it_value })?;
    AsyncFd::with_interest(timer, Interest::READABLE)?.readable().await?.retain_ready();
    Ok(())
}

/// Serves on a port of this machine, in a task.
pub async fn serve(router: Router) -> Outcome<(SocketAddr, JoinHandle<()>)> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let listener = listener.tap_io(|connection| {
        // Without it the times are those of delayed acknowledgements.
        let _ = connection.set_nodelay(true);
    });
    let task = tokio::spawn(async {
        let _ = axum::serve(listener, router).await;
    });
    Ok((address, task))
}
