//! A future that runs under a hold.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use pin_project_lite::pin_project;

use super::ending::Ending;
use super::hold::Hold;

pin_project! {
    /// Resolves with the output and the hold, or with the reason why the hold ended early. When
    /// this is dropped, it drops the future and then releases the locks.
    #[derive(Debug)]
    pub(crate) struct Guarded<F> {
        // The order of the fields is the order in which they are dropped.
        #[pin]
        future: Option<F>,
        hold: Option<Hold>,
    }
}

impl<F> Guarded<F> {
    pub(crate) fn new(future: F, hold: Hold) -> Self {
        Self { future: Some(future), hold: Some(hold) }
    }
}

impl<F: Future> Future for Guarded<F> {
    type Output = Result<(F::Output, Hold), Ending>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let hold = this.hold.as_mut().expect("polled after completion");
        let mut end = hold.check();
        if end.is_none() {
            let future = this.future.as_mut().as_pin_mut().expect("there as long as the hold is");
            end = match hold.run(|| future.poll(cx)) {
                Poll::Ready(output) => {
                    this.future.set(None);
                    let hold = this.hold.take().expect("looked at above");
                    return Poll::Ready(Ok((output, hold)));
                }
                Poll::Pending => match hold.poll_ended(cx) {
                    Poll::Ready(ending) => Some(ending),
                    Poll::Pending => return Poll::Pending,
                },
            };
        }
        this.future.set(None);
        let (hold, ending) = (this.hold.take(), end.expect("all other cases have returned"));
        hold.expect("looked at above").abort(ending);
        Poll::Ready(Err(ending))
    }
}
