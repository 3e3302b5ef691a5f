//! C30: what a provider refuses before any I/O.

use distlock_api::{ErrorKind, Mode, Wait};

use super::{lasting, permits};
use crate::bounded::{SOON, within};
use crate::check::checks;
use crate::client::Client;
use crate::context::Context;
use crate::failure::{Failure, Verdict, ensure, located_at_caller};
use crate::need::Need;

checks! {
    C30 shared_without_the_capability Smoke [NoShared]
        "A backend without shared locks refuses them, sends nothing, and counts nothing. A failure \
         means that a reader gets another mode than it has requested.";
    C30 permits_without_the_capability Smoke [NoPermits]
        "A backend without permits refuses them, sends nothing, and counts nothing. A failure \
         means that a caller gets another mode than it has requested.";
    C30 wrong_numbers Smoke [Permits]
        "Permits of none, no permits, and more permits than there are, are refused, nothing is \
         sent, and nothing is counted. A failure means that a caller waits for what cannot be \
         granted, or is granted what there is not.";
}

/// Ensures that a mode is refused with this kind of error, before any I/O.
#[track_caller]
fn ensure_refused(cx: &Context, client: &Client, mode: Mode, expected: ErrorKind) -> impl Future<Output = Verdict> {
    located_at_caller(async move {
        let requests = || -> Result<u64, Failure> {
            if cx.profile().has(Need::Faults) { Ok(client.disturbed()?.requests()) } else { Ok(0) }
        };
        let (before, sent) = (client.counts(), requests()?);
        for wait in [Wait::Try, Wait::UpTo(SOON)] {
            let acquiring = client.acquire_with(cx.key(), lasting(mode).with_wait(wait));
            let answer = within(SOON * 2, "an acquisition to be refused", acquiring).await?;
            let kind = answer.err().map(|error| error.kind());
            ensure!(kind == Some(expected), "an acquisition ({mode}) ended with {kind:?} instead of {expected:?}");
        }
        let (after, now) = (client.counts(), requests()?);
        ensure!(before == after, "refused acquisitions were counted: {before:?} became {after:?}");
        ensure!(sent == now, "refused acquisitions sent {} requests", now - sent);
        Ok(())
    })
}

async fn shared_without_the_capability(cx: Context) -> Verdict {
    let [client] = cx.clients().await?;
    ensure_refused(&cx, &client, Mode::Shared, ErrorKind::Unsupported).await
}

async fn permits_without_the_capability(cx: Context) -> Verdict {
    let [client] = cx.clients().await?;
    ensure_refused(&cx, &client, permits(1, 2), ErrorKind::Unsupported).await
}

async fn wrong_numbers(cx: Context) -> Verdict {
    let [client] = cx.clients().await?;
    for mode in [permits(0, 0), permits(0, 2), permits(1, 0), permits(3, 2)] {
        ensure_refused(&cx, &client, mode, ErrorKind::InvalidOptions).await?;
    }
    Ok(())
}
