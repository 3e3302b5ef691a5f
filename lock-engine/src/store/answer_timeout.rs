//! How long the engine waits for an answer. The time that a reply lies unread, because the client
//! gets no CPU, is the client's and not the server's.

use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;

use tokio::task::yield_now;
use tokio::time::{Instant, timeout_at};

/// How late a timer may fire and still count as on time.
pub(crate) const ON_TIME: Duration = Duration::from_millis(50);

/// How many tasks may pass an answer on, from the connection to its caller.
const TASKS: usize = 8;

/// Awaits a call until this instant. An answer that is there by then is taken, even if no task has
/// read it yet.
///
/// # Cancel safety
/// Cancel safe if the call is.
pub(crate) async fn answered_by<T>(until: Instant, call: impl Future<Output = T>) -> Option<T> {
    let mut call = pin!(call);
    if let Ok(answer) = timeout_at(until, call.as_mut()).await {
        return Some(answer);
    }
    for _ in 0..TASKS {
        yield_now().await;
        if let Some(answer) = polled(call.as_mut()).await {
            return Some(answer);
        }
    }
    None
}

/// Awaits a call for `limit`: for stores that bound their calls themselves.
///
/// An answer that is there when the time is over is taken, even if no task has read it yet. If the
/// timer fires late, this process got no CPU meanwhile: the call then gets as much more time, twice
/// the limit in all. So a busy client does not take its own slowness for the server's, and repeats
/// nothing that the server has done (C14). Returns `None` without an answer; the call is dropped.
///
/// # Cancel safety
/// Cancel safe if the call is.
pub async fn answered_within<T>(limit: Duration, call: impl Future<Output = T>) -> Option<T> {
    let mut call = pin!(call);
    let start = Instant::now();
    let (mut until, latest) = (start + limit, start + 2 * limit);
    loop {
        if let Some(answer) = answered_by(until, call.as_mut()).await {
            return Some(answer);
        }
        let now = Instant::now();
        let late = now.saturating_duration_since(until);
        if late <= ON_TIME || now >= latest {
            return None;
        }
        until = latest.min(now + late);
    }
}

/// Polls a call once. Its waker is that of the caller's next poll.
async fn polled<F: Future>(mut call: Pin<&mut F>) -> Option<F::Output> {
    std::future::poll_fn(|context| match call.as_mut().poll(context) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending => Poll::Ready(None),
    })
    .await
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;
    use tokio::time::{advance, sleep};

    use super::*;
    use crate::test_kit::ms;

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_no_task_has_read_is_taken() {
        let (sender, receiver) = oneshot::channel();
        tokio::spawn(async move {
            sleep(ms(100)).await;
            for _ in 0..3 {
                yield_now().await;
            }
            sender.send(7).unwrap();
        });
        assert_eq!(answered_by(Instant::now() + ms(100), receiver).await, Some(Ok(7)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_without_an_answer_ends_on_time() {
        let start = Instant::now();
        assert_eq!(answered_within(ms(100), std::future::pending::<()>()).await, None);
        assert_eq!(start.elapsed(), ms(100));
    }

    #[tokio::test(start_paused = true)]
    async fn a_timer_that_fires_late_leaves_time_for_the_answer() {
        let start = Instant::now();
        let waits = tokio::spawn(answered_within(ms(100), async { sleep(ms(900)).await }));
        yield_now().await;
        // The process stands still.
        advance(ms(500)).await;
        assert_eq!((waits.await.unwrap(), start.elapsed()), (None, ms(500)), "twice the limit at most");
        let waits = tokio::spawn(answered_within(ms(1000), async { sleep(ms(1500)).await }));
        yield_now().await;
        advance(ms(1400)).await;
        assert_eq!(waits.await.unwrap(), Some(()));
    }
}
