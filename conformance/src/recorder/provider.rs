//! A provider that records its calls.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use distlock_api::{
    AcquireOptions, Acquired, LeaseHandle, LockKey, LockProvider, Loss, LostSignal, ReleaseFuture, ReleaseOutcome,
    Result, Wait, delegate_provider,
};
use tokio::time::Instant;

use super::{Acquisition, Holding, Recorder};
use crate::history::CallKind;

/// Records the calls of a client. It changes nothing and adds no await.
pub(crate) struct RecordedProvider {
    pub(crate) inner: Arc<dyn LockProvider>,
    pub(crate) client: usize,
    pub(crate) recorder: Recorder,
}

impl fmt::Debug for RecordedProvider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl fmt::Display for RecordedProvider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.inner, f)
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl LockProvider for RecordedProvider {
    async fn acquire_with(&self, key: LockKey, options: AcquireOptions) -> Result<Acquired> {
        let acquisition = self.recorder.acquisition(self.client, &key, options.mode());
        let busy = busy_of(&options);
        Ok(recorded(self.inner.acquire_with(key, options).await?, acquisition, busy))
    }

    /// Records nothing if there is no answer, because then the caller continues with
    /// `acquire_with`. It also does so after a batched try was refused without a request, which
    /// only says that the key was busy lately.
    fn acquire_now(&self, key: &LockKey, options: &AcquireOptions) -> Option<Result<Acquired>> {
        let asked = self.recorder.now();
        let answer = self.inner.acquire_now(key, options)?;
        if options.is_batched() && matches!(answer, Ok(Acquired::Busy(_))) {
            return Some(answer);
        }
        let acquisition = self.recorder.acquisition_since(self.client, key, options.mode(), asked);
        Some(answer.map(|acquired| recorded(acquired, acquisition, busy_of(options))))
    }

    delegate_provider!(this => this.inner; capabilities, accounting, admin, close);
}

/// Returns what the answer "busy" means for a call with these options: `None` after a wait.
fn busy_of(options: &AcquireOptions) -> Option<CallKind> {
    let what = if options.is_batched() { CallKind::GaveWay } else { CallKind::Busy };
    (options.wait() == Wait::Try).then_some(what)
}

fn recorded(acquired: Acquired, acquisition: Acquisition, busy_means: Option<CallKind>) -> Acquired {
    match acquired {
        Acquired::Held(guard) => {
            let holding = acquisition.granted(guard.fencing_token().get());
            Acquired::Held(guard.map_handle(|held| Box::new(RecordedHold::new(held, holding))))
        }
        Acquired::Busy(busy) => {
            if let Some(what) = busy_means {
                acquisition.busy(what);
            }
            Acquired::Busy(busy)
        }
    }
}

/// The state of a guard until it is released, abandoned or dropped.
struct RecordedHold(Option<(Box<dyn LeaseHandle>, Holding)>);

impl RecordedHold {
    fn new(held: Box<dyn LeaseHandle>, holding: Holding) -> Self {
        Self(Some((held, holding)))
    }

    fn parts(&self) -> (&dyn LeaseHandle, &Holding) {
        let (held, holding) = self.0.as_ref().expect("taken only at the end");
        (&**held, holding)
    }

    /// Takes the parts at the end, and records the certain hold, and that it ends. The end is
    /// recorded before it begins: another client can have the key before this thread continues.
    /// Returns the loss if the lease was lost.
    fn take(&mut self) -> Option<(Box<dyn LeaseHandle>, Holding, Option<Loss>)> {
        let (held, holding) = self.0.take()?;
        let loss = note(&*held, &holding);
        holding.ends();
        Some((held, holding, loss))
    }

    fn end(&mut self, end: impl FnOnce(Box<dyn LeaseHandle>) -> ReleaseFuture) -> ReleaseFuture {
        let (held, holding, _) = self.take().expect("taken only at the end");
        let asked = holding.now();
        let release = end(held);
        ReleaseFuture::running(async move {
            let outcome = release.await;
            match outcome {
                Ok(ReleaseOutcome::Released) => holding.released(asked),
                Ok(ReleaseOutcome::AlreadyLost) => holding.lost(),
                Err(_) => drop(holding),
            }
            outcome
        })
    }
}

/// Records until when it was held for certain. A guard is lost no later than its lease (C3).
fn note(held: &dyn LeaseHandle, holding: &Holding) -> Option<Loss> {
    let before = holding.now();
    let loss = held.loss();
    let valid_until = || match held.valid_until() {
        Some(until) => before.saturating_sub(Instant::now().saturating_duration_since(until)),
        None => before,
    };
    match loss {
        None => holding.until(before),
        Some(Loss::Expired) => holding.until(valid_until()),
        // It was taken away at an unknown moment.
        Some(_) => {}
    }
    loss
}

impl LeaseHandle for RecordedHold {
    fn valid_until(&self) -> Option<Instant> {
        self.parts().0.valid_until()
    }

    fn loss(&self) -> Option<Loss> {
        let (held, holding) = self.parts();
        note(held, holding)
    }

    fn lost(&self) -> LostSignal {
        self.parts().0.lost()
    }

    fn release(mut self: Box<Self>) -> ReleaseFuture {
        self.end(|held| held.release())
    }

    fn discard(mut self: Box<Self>) -> ReleaseFuture {
        self.end(|held| held.discard())
    }

    fn abandon(mut self: Box<Self>) {
        if let Some((held, holding, _)) = self.take() {
            holding.lost();
            held.abandon();
        }
    }
}

impl Drop for RecordedHold {
    fn drop(&mut self) {
        if let Some((held, holding, loss)) = self.take() {
            if loss.is_some() {
                holding.lost();
            }
            drop(held);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use distlock_api::{LockKey, Mode};

    use super::*;
    use crate::history::End;

    type Ends = Arc<Mutex<Vec<End>>>;

    /// A lock that looks up what is recorded of it when it ends.
    struct Looks(Recorder, Ends);

    impl LeaseHandle for Looks {
        fn valid_until(&self) -> Option<Instant> {
            None
        }

        fn loss(&self) -> Option<Loss> {
            None
        }

        fn lost(&self) -> LostSignal {
            LostSignal::never()
        }

        fn release(self: Box<Self>) -> ReleaseFuture {
            ReleaseFuture::done(Ok(ReleaseOutcome::Released))
        }
    }

    impl Drop for Looks {
        fn drop(&mut self) {
            let CallKind::Granted { end, .. } = self.0.calls()[0].what.clone() else { panic!("not granted") };
            self.1.lock().unwrap().push(end);
        }
    }

    fn held() -> (RecordedHold, Recorder, Ends) {
        let (recorder, ends) = (Recorder::default(), Ends::default());
        let holding = recorder.acquisition(1, &LockKey::new("k").unwrap(), Mode::Exclusive).granted(7);
        (RecordedHold::new(Box::new(Looks(recorder.clone(), Arc::clone(&ends))), holding), recorder, ends)
    }

    #[tokio::test]
    async fn an_end_is_recorded_before_others_can_have_the_key() {
        let (guard, _, ends) = held();
        drop(guard);
        let (guard, recorder, more) = held();
        assert!(Box::new(guard).release().await.is_ok());
        let (guard, _, even_more) = held();
        Box::new(guard).abandon();
        for seen in [ends, more, even_more] {
            assert!(!matches!(seen.lock().unwrap()[..], [End::Open] | []));
        }
        assert!(matches!(recorder.calls()[0].what, CallKind::Granted { end: End::Released { .. }, .. }));
    }
}
