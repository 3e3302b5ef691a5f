//! What several test programs need.

use std::future::{Future, poll_fn};
use std::task::Poll;

/// Polls a future so many times, and drops it then. Its output, if it got that far.
pub(crate) async fn polled<F: Future>(times: usize, future: F) -> Option<F::Output> {
    let mut future = Box::pin(future);
    let mut polls = 0;
    poll_fn(move |cx| {
        if polls == times {
            return Poll::Ready(None);
        }
        polls += 1;
        match future.as_mut().poll(cx) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending if polls == times => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}
