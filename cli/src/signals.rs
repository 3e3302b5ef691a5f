//! The signals that end a program.

use std::future::poll_fn;
use std::task::Poll;

use rustix::process::Signal as Number;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// SIGHUP, SIGINT, SIGQUIT and SIGTERM from now on. They no longer end this process.
#[derive(Debug)]
pub(crate) struct Signals {
    streams: [(Number, Signal); 4],
}

impl Signals {
    /// Begins to receive the signals.
    ///
    /// # Errors
    /// The handlers cannot be installed.
    pub(crate) fn listen() -> std::io::Result<Self> {
        let stream = |number: Number| Ok::<_, std::io::Error>((number, signal(kind(number))?));
        Ok(Self { streams: [stream(Number::HUP)?, stream(Number::INT)?, stream(Number::QUIT)?, stream(Number::TERM)?] })
    }

    /// Waits for the next of them. Cancel safe: no signal is lost.
    pub(crate) async fn next(&mut self) -> Number {
        poll_fn(|context| {
            for (number, stream) in &mut self.streams {
                if let Poll::Ready(Some(())) = stream.poll_recv(context) {
                    return Poll::Ready(*number);
                }
            }
            Poll::Pending
        })
        .await
    }
}

/// Returns the number as tokio names it.
pub(crate) fn kind(number: Number) -> SignalKind {
    SignalKind::from_raw(number.as_raw())
}
