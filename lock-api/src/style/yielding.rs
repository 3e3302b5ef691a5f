//! Answers without I/O, which let other tasks run.

use std::future::Future;

use tokio::task::yield_now;

/// Awaits a call, and lets other tasks run before it fails.
///
/// A call that is refused without I/O would otherwise be a loop without an end for a caller that
/// repeats it at once. A task that never waits keeps its thread, and on a runtime whose threads are
/// all kept no timer fires: leases are not renewed, and they are lost. So every provider and every
/// typed style lets other tasks run where it refuses a call by itself.
///
/// # Errors
/// Those of the call.
///
/// # Cancel safety
/// As cancel safe as the call, if a failed one leaves nothing behind.
pub async fn yield_on_error<T, E>(call: impl Future<Output = Result<T, E>>) -> Result<T, E> {
    let answer = call.await;
    if answer.is_err() {
        yield_now().await;
    }
    answer
}
