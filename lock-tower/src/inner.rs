//! Access to the service that another one wraps, and the pause of a request that it does not serve.

use std::pin::pin;
use std::task::{Context, Poll};

use tokio::task::yield_now;

/// The accessors of a type with a field `inner: S`.
macro_rules! inner_accessors {
    () => {
        /// Returns the wrapped service.
        pub fn get_ref(&self) -> &S {
            &self.inner
        }

        /// Returns the wrapped service.
        pub fn get_mut(&mut self) -> &mut S {
            &mut self.inner
        }

        /// Returns the wrapped service, without the wrapper.
        pub fn into_inner(self) -> S {
            self.inner
        }
    };
}
pub(crate) use inner_accessors;

/// Gives back a readiness of the inner service that is not used: it belongs to the instance that
/// was ready.
pub(crate) fn give_back<S: Clone>(inner: &mut S) {
    *inner = inner.clone();
}

/// The pause of a request that is refused without a wait: it lets other tasks run once. A client
/// that asks again and again would otherwise stop the timers of its runtime.
#[derive(Default)]
pub(crate) struct Rest {
    is_over: bool,
}

impl Rest {
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if std::mem::replace(&mut self.is_over, true) {
            return Poll::Ready(());
        }
        pin!(yield_now()).poll(cx)
    }
}
